set -eu
export PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# Compiled modules then depend neither on the time nor on the order of sets, so the same files are made again.
export SOURCE_DATE_EPOCH=@EPOCH@ PYTHONHASHSEED=0
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
minor=@PYTHON@
torch=@TORCH@
# Succeeds if an interpreter has the right version and torch.
has_torch() {
    [ -x "$1" ] && "$1" -c '
import sys
from importlib import metadata
minor, torch = sys.argv[1:]
installed = metadata.version("torch") if torch else ""
right = "%d.%d" % sys.version_info[:2] == minor and torch in (installed, installed.partition("+")[0])
sys.exit(not right)' "$minor" "$torch" 2>/dev/null
}
python=
for candidate in "$(command -v python || :)" "$(command -v "python$minor" || :)" \
    /opt/*/bin/"python$minor" /opt/*/envs/*/bin/"python$minor" "/usr/local/bin/python$minor" "/usr/bin/python$minor"; do
    if has_torch "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "The image has no Python $minor${torch:+ with torch $torch}." >&2
    exit 3
fi
# The image's pip is enough. A pip that venv installs would hide the image's pip and setuptools.
without_pip=
[ -z '@SYSTEM@' ] || ! "$python" -c 'import pip' 2>/dev/null || without_pip=--without-pip
"$python" -m venv $without_pip @SYSTEM@ @PREFIX@
@LIMITS@
@VARIABLES@@PREFIX@/bin/python -m pip install @NO_DEPS@-r @FILES@/requirements.txt -c @FILES@/constraints.txt @IMAGE_LIMITS@
@REPLACE@
@PREFIX@/bin/python - <<'CHECK'
@CHECK@
CHECK
@HIDES@
