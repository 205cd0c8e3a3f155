#!/usr/bin/env bash
@ABOUT@
@SBATCH@
set -euo pipefail
fail() { printf 'job: %s\n' "$*" >&2; exit 3; }
usage='sbatch -A PROJECT @SCRIPT@ @CHOICES@PROGRAM..., or --smoke'
# The environment: a container (*.sif), run.sh of `matrix env --for venv`, or a directory of tykky or of a venv.
environment=${MATRIX_ENVIRONMENT:-@ENVIRONMENT@}
[ -e "$environment" ] || fail "there is no $environment in $PWD; set MATRIX_ENVIRONMENT=PATH"
environment=$(realpath -- "$environment")
@MODULES@
@ISOLATED@
@BINDS@
case "$environment" in
    *.sif)
        runtime=$(command -v singularity || command -v apptainer) || fail "neither SingularityCE nor Apptainer is on PATH"
        inside=("$runtime" exec ${binds:+-B "$binds"} "$environment")
        ;;
    *.sh) inside=(bash "$environment") ;;
    *) inside=(env "PATH=$environment/bin:$PATH") ;;
esac
@SMOKE@
launcher=srun
no_torchrun=@NO_TORCHRUN@
if [ "${1:-}" = --torchrun ]; then
    [ -z "$no_torchrun" ] || fail "$no_torchrun"
    launcher=torchrun
    shift
fi
if [ "${1:-}" = --smoke ]; then set -- python -c "$smoke"; fi
[ "$#" -gt 0 ] || fail "usage: $usage"
# This script runs on the first node, where the ranks meet. Two jobs on a node have different ports.
MASTER_ADDR=$(hostname)
MASTER_PORT=$(printf '1%04d' $((SLURM_JOB_ID % 10000)))
export MASTER_ADDR MASTER_PORT
# Caches in the nodes' memory: file locks on Lustre are slow or fail, and ranks share one directory per node.
cache=/tmp/${USER:-$(id -un)}-$SLURM_JOB_ID
export cache
trap 'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 rm -rf -- "$cache"' EXIT
# This part runs in each task, because a batch script knows neither the rank nor the other nodes.
step=$(cat <<'STEP'
set -eu
(umask 077; mkdir -p "$cache")
# Triton runs what is in its cache, and everybody can make a directory in /tmp.
if [ -L "$cache" ] || [ ! -O "$cache" ]; then echo "job: $cache belongs to somebody else" >&2; exit 3; fi
@SITE@
export TRITON_CACHE_DIR="$cache/triton" TORCHINDUCTOR_CACHE_DIR="$cache/inductor" TORCH_EXTENSIONS_DIR="$cache/extensions"
# HIP counts after ROCr's list: the same list in both hides GPUs.
if [ -n "${ROCR_VISIBLE_DEVICES:-}" ]; then unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES; fi
if [ "$launcher" = srun ]; then
    export RANK=$SLURM_PROCID LOCAL_RANK=@LOCAL_RANK@ WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
fi
exec "$@"
STEP
)
export launcher
if [ "$launcher" = torchrun ]; then
    # One task per node; torchrun starts the others.
    srun --kill-on-bad-exit=1 --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=@NODE_CPUS@ bash -c "$step" step \
        "${inside[@]}" python -m torch.distributed.run --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=@RANKS@ \
        --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --no-python "$@"
else
    srun --kill-on-bad-exit=1 @SRUN@ bash -c "$step" step "${inside[@]}" "$@"
fi
