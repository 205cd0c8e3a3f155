#!/bin/bash
# A STAND-IN for Miniforge's installer and for conda, which cannot be had where the tests run. cotainr calls it
# as it calls the real one: bash conda_installer.sh -b -s -p PREFIX, inside the container that it makes.
#
# What it shows: that cotainr, the container runtime, the index and pip work together. Its `conda env create`
# runs exactly conda's pip command on exactly the lines of the pip section: joined by newlines into a file beside
# the environment file, `python -m pip install -U -r FILE --exists-action=b` from that directory.
# What it does not show: anything of conda packages. The environment is a venv of the image's own Python of the
# version that `python=` names; all other conda dependencies are passed over, and it says so.
set -euo pipefail

while getopts bsp: option; do
    case $option in p) prefix=$OPTARG ;; *) ;; esac
done
mkdir -p "$prefix/condabin" "$prefix/etc/profile.d" "$prefix/envs" "$prefix/conda-meta"

cat >"$prefix/etc/profile.d/conda.sh" <<END
PATH=$prefix/condabin:\$PATH
export PATH
conda() {
    case \$1 in
        activate) PATH=$prefix/envs/\$2/bin:\$PATH && export PATH ;;
        *) command conda "\$@" ;;
    esac
}
END

cat >"$prefix/condabin/conda" <<'END'
#!/bin/bash
set -euo pipefail
prefix=$(cd "$(dirname "$0")/.." && pwd)

create() { # conda env create -f FILE -n NAME [-q]
    local file name requirements python
    while [ $# -gt 0 ]; do
        case $1 in -f) file=$2 && shift ;; -n) name=$2 && shift ;; *) ;; esac
        shift
    done
    python=$(sed -n 's/^ *- *"\{0,1\}python *=*= *\([0-9]*\.[0-9]*\).*/\1/p' "$file")
    sed -n '/^  - [a-z]/p' "$file" | grep -v -e '- python' -e '- pip' |
        sed 's/^/stand-in for conda, not installed: /' || :
    "python$python" -m venv "$prefix/envs/$name"
    requirements=$(mktemp "$(dirname "$file")/condaenv.XXXXXXXX.requirements.txt")
    # The pip section: what is indented below "- pip:", without the quotes of YAML.
    sed -n '/^ *- *pip: *$/,$p' "$file" | sed -n "s/^    *- *//p" | sed "s/^\(['\"]\)\(.*\)\1\$/\2/" |
        grep -v '^pip:$' >"$requirements"
    cd "$(dirname "$file")"
    "$prefix/envs/$name/bin/python" -m pip install -U -r "$requirements" --exists-action=b
    rm -f "$requirements"
}

case "$1 ${2-}" in
    "info --base") echo "$prefix" ;;
    "env create") shift 2 && create "$@" ;;
    "update "* | "clean "*) ;;
    *) echo "stand-in for conda: it cannot do: $*" >&2 && exit 1 ;;
esac
END
chmod +x "$prefix/condabin/conda"
