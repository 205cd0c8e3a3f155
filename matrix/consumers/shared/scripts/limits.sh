# An environment of a Python that is in an environment itself does not see that one's packages.
has_torch @PREFIX@/bin/python || "$python" -c 'from importlib import metadata
print(metadata.distribution("torch").locate_file(""))' > @PREFIX@/lib/python@PYTHON@/site-packages/base_image.pth
if ! has_torch @PREFIX@/bin/python; then
    echo "The environment does not see the image's torch." >&2
    exit 3
fi
# The image's packages stay as they are: pip fails rather than install another version over them.
@PREFIX@/bin/python - > @PREFIX@/image.txt <<'INSTALLED'
import re
from importlib import metadata
ours = {@OURS@, "pip"}
installed = {}
for distribution in metadata.distributions():
    name = re.sub(r"[-_.]+", "-", str(distribution.metadata["Name"])).lower()
    if re.fullmatch(r"[0-9][0-9a-z.!+_-]*", distribution.version) and name not in ours:
        installed.setdefault(name, distribution.version)
print("\n".join(f"{name}=={version}" for name, version in sorted(installed.items())))
INSTALLED
