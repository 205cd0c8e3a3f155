set -eu
export PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
# Tells whether an interpreter is of the wanted version and holds the wanted torch, if any.
sees() {
    [ -x "$1" ] && "$1" -c '
import sys
from importlib import metadata
minor, wanted = sys.argv[1:]
found = metadata.version("torch") if wanted else ""
right = "%d.%d" % sys.version_info[:2] == minor and wanted in (found, found.partition("+")[0])
sys.exit(not right)' @PYTHON@ '@TORCH@' 2>/dev/null
}
python=
for one in "$(command -v python || :)" "$(command -v python@PYTHON@ || :)" \
    /opt/*/bin/python@PYTHON@ /opt/*/envs/*/bin/python@PYTHON@ /usr/local/bin/python@PYTHON@ /usr/bin/python@PYTHON@; do
    if sees "$one"; then
        python=$one
        break
    fi
done
if [ -z "$python" ]; then
    echo "The image has no Python @PYTHON@@WITH@." >&2
    exit 3
fi
"$python" -m venv @SYSTEM@ @PREFIX@
@LIMITS@
@PREFIX@/bin/python -m pip install -r @FILES@/requirements.txt -c @FILES@/constraints.txt @IMAGE_LIMITS@
@PREFIX@/bin/python - <<'CHECK'
@CHECK@
CHECK
