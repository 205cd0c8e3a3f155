# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "torch",
# ]
#
# [[tool.uv.index]]
# url = "https://mirrors.example.edu/simple"
# default = true
# ///
"""Remember what was said."""
