#!/usr/bin/env bash
@ABOUT@
# Usage: extend-venv-activate VENV, for a virtual environment that this module's `python -m venv` made.
# Then `source VENV/bin/activate` loads the module, whose packages come after those of VENV, and `deactivate` unloads it.
set -euo pipefail
fail() { printf 'extend-venv-activate: %s\n' "$*" >&2; exit 3; }
[ "$#" -eq 1 ] || fail "name a directory that \`python -m venv\` made"
venv=$(realpath -- "$1")
activate=$venv/bin/activate
environment=@ENVIRONMENT@
python=@PYTHON@
folder=@FOLDER@
name=@NAME@
case $venv in *[:,]*) fail "a container cannot see a path with : or , in it: $venv" ;; esac
grep -qs 'unset -f deactivate' "$activate" || fail "$venv is not a virtual environment; make it with \`python -m venv\`"
# The packages are seen only while the module is loaded.
seen=$("$python" - "$environment" <<'SEEN'
import sys
paths = [path for path in sys.path if path.endswith("-packages")]
print("python%d.%d" % sys.version_info[:2])
print(f"import os, site; os.environ.get('MATRIX_ENVIRONMENT') == {sys.argv[1]!r} and list(map(site.addsitedir, {paths!r}))")
SEEN
) || fail "the module's Python does not start (see above)"
version=${seen%%$'\n'*}
packages=$venv/lib/$version/site-packages
[ -d "$packages" ] || fail "$venv has another Python than the module, which has $version"
printf '%s\n' "${seen#*$'\n'}" > "$packages/matrix-module.pth"
in_container=@IN_CONTAINER@
if [ -n "$in_container" ]; then
    # The venv's python is a link that leads somewhere in the container only.
    home=$(sed -n 's/^home = //p' "$venv/pyvenv.cfg")
    rm -f -- "$venv"/bin/{python,python3,"$version"}
    cat > "$venv/bin/python" <<PYTHON
#!/usr/bin/env bash
export VIRTUAL_ENV=${venv@Q}
program=\$VIRTUAL_ENV/bin/\${0##*/}
# In the container, its Python: the name that it is started by is how Python finds a virtual environment.
[ -z "\${SINGULARITY_CONTAINER:-}" ] || exec -a "\$program" ${home@Q}/$version "\$@"
MATRIX_PROGRAM=\$program exec ${python@Q} "\$@"
PYTHON
    chmod --reference="$activate" "$venv/bin/python"
    chmod +x "$venv/bin/python"
    for link in python3 "$version"; do ln -s python "$venv/bin/$link"; done
fi
new=$activate.new-$$
trap 'rm -f -- "$new" "$new.old"' EXIT
sed '/^# >>> extend-venv-activate/,/^# <<< extend-venv-activate/d' "$activate" > "$new.old"
{
    cat <<LOAD
# >>> extend-venv-activate
if [ -n "\${VIRTUAL_ENV:-}" ] && command -v deactivate >/dev/null; then deactivate; fi
if [ "\${MATRIX_ENVIRONMENT:-}" != ${environment@Q} ]; then
    case ":\${MODULEPATH:-}:" in *:${folder@Q}:*) ;; *) module use ${folder@Q}; _MATRIX_USED=1 ;; esac
    module load ${name@Q} || return 1
    _MATRIX_LOADED=1
fi
# <<< extend-venv-activate
LOAD
    sed '/unset -f deactivate/r /dev/stdin' "$new.old" <<'UNDO'
# >>> extend-venv-activate
        if [ -n "${_MATRIX_LOADED:-}" ]; then module unload @NAME@; fi
        if [ -n "${_MATRIX_USED:-}" ]; then module unuse @FOLDER@; fi
        unset _MATRIX_LOADED _MATRIX_USED
# <<< extend-venv-activate
UNDO
} > "$new"
mv -- "$new" "$activate"
"$venv/bin/python" -c '' || fail "the Python of $venv does not start"
printf 'To load the module: source %q\n' "$activate"
