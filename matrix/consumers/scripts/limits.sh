# An environment of a Python that is in an environment itself does not see what that one holds.
sees @PREFIX@/bin/python || "$python" -c 'from importlib import metadata
print(metadata.distribution("torch").locate_file(""))' > @PREFIX@/lib/python@PYTHON@/site-packages/base_image.pth
if ! sees @PREFIX@/bin/python; then
    echo "The environment does not see the image's torch." >&2
    exit 3
fi
# What the image holds stays as it is: pip fails rather than put another version over it.
@PREFIX@/bin/python - > @PREFIX@/image.txt <<'HELD'
import re
from importlib import metadata
ours = {@OURS@, "pip"}
held = {}
for one in metadata.distributions():
    name = re.sub(r"[-_.]+", "-", str(one.metadata["Name"])).lower()
    if re.fullmatch(r"[0-9][0-9a-z.!+_-]*", one.version) and name not in ours:
        held.setdefault(name, one.version)
print("\n".join(f"{name}=={version}" for name, version in sorted(held.items())))
HELD
