# A new environment does not include the packages of a Python that is in an environment itself.
if "$python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'; then
    sed -i 's/^include-system-site-packages = .*/include-system-site-packages = false/' @PREFIX@/pyvenv.cfg
    "$python" -c 'import sys
for path in sys.path:
    if path.endswith("-packages"):
        print(f"import site; site.addsitedir({path!r})")' > "@PREFIX@/lib/python$minor/site-packages/base_image.pth"
fi
if ! has_torch @PREFIX@/bin/python; then
    echo "The image's torch is not visible in the environment." >&2
    exit 3
fi
# The image's packages stay as they are: pip fails rather than install another version over them.
@PREFIX@/bin/python - > @PREFIX@/image.txt <<'INSTALLED'
import re
import sys
from importlib import metadata

replacing = {@REPLACING@, "pip"}
required = @REQUIRED@
installed = {}
for distribution in metadata.distributions():
    name = re.sub(r"[-_.]+", "-", str(distribution.metadata["Name"])).lower()
    if re.fullmatch(r"[0-9][0-9a-z.!+_-]*", distribution.version) and name not in replacing:
        installed.setdefault(name, distribution.version)
others = [
    f"{name} {installed[name]}, but the lock installs {name} {version}"
    for name, version in required.items()
    if installed.get(name, version) != version
]
if others:
    sys.exit(
        "The image has " + "; ".join(others) + ". The environment must not replace packages of the image. "
        "Resolve again with all of its packages: "
        "`matrix resolve ... --base-image IMAGE.sif --keep-installed image`"
    )
print("\n".join(f"{name}=={version}" for name, version in sorted(installed.items())))
INSTALLED
