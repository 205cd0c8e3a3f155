#!/bin/bash
# A STAND-IN for conda-containerize of tykky (LUMI container wrapper), which is not available in CI: its commands
#   new --prefix DIR [--environ FILE] -r REQUIREMENTS ENVIRONMENT
#   update [--environ FILE] -r REQUIREMENTS DIR
# and, called as pip-containerize, which makes a virtual environment of the python3 on PATH,
#   new --prefix DIR [--environ FILE] REQUIREMENTS
#
# It behaves like the real tool, CSCfi/hpc-container-wrapper@b0956d9, where that matters for the files of `matrix env`:
# - The container has access to all directories of the machine.
# - conda (a stand-in too, standin_miniforge.sh) creates the environment. Its pip installs the requirements with the
#   caller's environment variables.
# - The environment is packed into a squashfs, which the programs in bin/ mount; they run the --environ file first.
# - `update` keeps the environment and its Python, and writes into the given directory.
# - A failure leaves the directory unchanged or empty.
# The same tests run with the real tool if ROCM_MATRIX_TYKKY names its directory.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
fail() { echo "[ ERROR ] $*" && exit 1; }

command=$1 prefix='' requirements='' environ=/dev/null given=''
shift
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=$2 && shift ;;
        --environ) environ=$2 && shift ;;
        -r) requirements=$2 && shift ;;
        *) given=$1 ;;
    esac
    shift
done
build=$(mktemp -d "${CW_BUILD_TMPDIR:-/tmp}/cw-XXXXXX")
trap 'rm -rf "$build"' EXIT
mkdir "$build/inst" "$build/deploy" "$build/deploy/bin" "$build/deploy/share"
with=conda
[ "${0##*/}" = conda-containerize ] || with=pip
if [ "$with" = pip ] && [ "$command" = new ]; then requirements=$given; fi
if [ "$command" = new ]; then
    [ -f "$given" ] || fail "Env file $given does not exist"
    mkdir -p "$prefix"
    cp "$given" "$build/inst"
    inside=/STANDIN_TYKKY_$RANDOM
else
    prefix=$given
    [ -f "$prefix/share/conf.yaml" ] || fail "$prefix is not a valid installation"
    inside=$(sed -n 's/^installation_path: //p' "$prefix/share/conf.yaml")
    unsquashfs -q -n -f -d "$build/inst" "$prefix/img.sqfs"
fi
for file in "$environ" "$requirements"; do [ -e "$file" ] || fail "The file $file does not exist!"; done
cp "$requirements" "$build/inst"
runtime=$(command -v singularity || command -v apptainer)
if [ "$with" = pip ]; then
    bin=env1/bin
    make="[ -e env1 ] || python3 -m venv env1; . env1/bin/activate"
else
    bin=conda/envs/env1/bin
    make="if [ ! -e conda ]; then bash $here/standin_miniforge.sh -b -p $inside/conda; fi
eval \"\$($inside/conda/bin/conda shell.bash hook)\"
if [ ! -e conda/envs/env1 ]; then conda env create -y --name env1 -f ${given##*/}; fi
conda activate env1"
fi
cat >"$build/install.sh" <<END
set -e
cd $inside
$make
pip install -r ${requirements##*/}
END
cat >"$build/binds.sh" <<'END'
binds=()
for directory in /*; do
    case $directory in /dev | /proc | /sys) ;; *) [ ! -d "$directory" ] || binds+=(-B "$directory") ;; esac
done
END
binds=()
# shellcheck source=/dev/null
. "$build/binds.sh"
"$runtime" --silent exec "${binds[@]}" -B "$build/inst:$inside" "$STANDIN_IMAGE" bash "$build/install.sh" ||
    fail "Installation failed"

cat "$build/binds.sh" "$environ" >"$build/deploy/common.sh"
cp "$STANDIN_IMAGE" "$build/deploy/container.sif"
echo "installation_path: $inside" >"$build/deploy/share/conf.yaml"
mksquashfs "$build/inst" "$build/deploy/img.sqfs" -noappend -comp lz4 -quiet -no-progress
for program in "$build/inst/$bin"/*; do
    cat >"$build/deploy/bin/${program##*/}" <<END
#!/bin/bash
prefix=\$(dirname "\$(dirname "\$(realpath "\$0")")")
. "\$prefix/common.sh"
exec $runtime --silent exec "\${binds[@]}" -B "\$prefix/img.sqfs:$inside:image-src=/" "\$prefix/container.sif" \\
    $inside/$bin/${program##*/} "\$@"
END
    chmod +x "$build/deploy/bin/${program##*/}"
done
mkdir -p "$prefix"
rm -rf "${prefix:?}/bin" "${prefix:?}/share"
cp -r "$build"/deploy/* "$prefix"
echo "[ INFO ] Program has been installed to $prefix"
