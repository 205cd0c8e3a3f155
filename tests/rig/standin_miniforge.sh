#!/bin/bash
# A STAND-IN for Miniforge's installer and for conda, which are not available where the tests run. cotainr and tykky
# call it like the real installer: bash INSTALLER -b [-s] -p PREFIX, inside the container that they create.
#
# It shows that these tools, the container runtime, the index and pip work together. Its `conda env create` runs
# exactly conda's pip command on exactly the lines of the pip section: joined by newlines into a file next to the
# environment file, `python -m pip install -U -r FILE --exists-action=b` from that directory.
# It shows nothing about conda packages. The Python of the environment is a copy of the directory STANDIN_PYTHON, or
# else a venv of the image's own Python of the version in `python=`. All other conda dependencies are skipped with a
# message.
set -euo pipefail

while getopts bsp: option; do
    case $option in p) prefix=$OPTARG ;; *) ;; esac
done
mkdir -p "$prefix/bin" "$prefix/condabin" "$prefix/etc/profile.d" "$prefix/envs" "$prefix/conda-meta"

cat >"$prefix/etc/profile.d/conda.sh" <<END
PATH=$prefix/condabin:\$PATH
export PATH
conda() {
    case \$1 in
        activate) PATH=$prefix/envs/\$2/bin:\$PATH CONDA_DEFAULT_ENV=\$2 && export PATH CONDA_DEFAULT_ENV ;;
        *) command conda "\$@" ;;
    esac
}
END

cat >"$prefix/condabin/conda" <<'END'
#!/bin/bash
set -euo pipefail
prefix=$(cd "$(dirname "$0")/.." && pwd)

copy_python() { # Debian's Python in a prefix of its own, with Debian's pip
    local wheel
    cp -r "$STANDIN_PYTHON" "$1"
    mkdir -p "$1/lib/python3.11/site-packages"
    ln -s site-packages "$1/lib/python3.11/dist-packages"
    wheel=$(echo "$1"/share/python-wheels/pip-*.whl)
    "$1/bin/python" -I "$wheel/pip" install -q --no-index "$wheel"
}

create() { # conda env create -f FILE {-n|--name} NAME [-q] [-y]
    local file name requirements python
    while [ $# -gt 0 ]; do
        case $1 in -f) file=$2 && shift ;; -n | --name) name=$2 && shift ;; *) ;; esac
        shift
    done
    python=$(sed -n 's/^ *- *"\{0,1\}python *=*= *\([0-9]*\.[0-9]*\).*/\1/p' "$file")
    sed -n '/^  - [a-z]/p' "$file" | grep -v -e '- python' -e '- pip' |
        sed 's/^/stand-in for conda, not installed: /' || :
    if [ -n "${STANDIN_PYTHON-}" ]; then
        copy_python "$prefix/envs/$name"
    else
        "python$python" -m venv "$prefix/envs/$name"
    fi
    if ! grep -q '^ *- *pip: *$' "$file"; then return; fi
    requirements=$(mktemp "$(dirname "$file")/condaenv.XXXXXXXX.requirements.txt")
    # The pip section: the lines that are indented below "- pip:", without the quotes of YAML.
    sed -n '/^ *- *pip: *$/,$p' "$file" | sed -n "s/^    *- *//p" | sed "s/^\(['\"]\)\(.*\)\1\$/\2/" |
        grep -v '^pip:$' >"$requirements"
    cd "$(dirname "$file")"
    "$prefix/envs/$name/bin/python" -m pip install -U -r "$requirements" --exists-action=b
    rm -f "$requirements"
}

case "$1 ${2-}" in
    "info --base") echo "$prefix" ;;
    "env create") shift 2 && create "$@" ;;
    "shell.bash hook") cat "$prefix/etc/profile.d/conda.sh" ;;
    "list ") ls "$prefix/envs/$CONDA_DEFAULT_ENV/lib/"python*/site-packages ;;
    "update "* | "clean "*) ;;
    *) echo "stand-in for conda: it cannot do: $*" >&2 && exit 1 ;;
esac
END
chmod +x "$prefix/condabin/conda"
ln -s ../condabin/conda "$prefix/bin/conda"
