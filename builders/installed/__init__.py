"""What is installed in an image or environment: read from its files, and judged.

`reading` reads the files, without starting anything in it; `checks` judges what was read.
"""
