# Run by /bin/sh in a base image. Print one fact per line: @fact, key and values, separated by tabs. The last
# line is "@fact<tab>end"; other output is ignored. POSIX shell only: an image may have no bash, Python or
# GNU tools. Only regular files are read: a pipe or a device may have no end.

tab=$(printf '\t')
newline='
'
fact() {
    line=@fact
    for value in "$@"; do
        case $value in *"$tab"* | *"$newline"*) value=$(printf '%s' "$value" | tr '\t\n' '  ') ;; esac
        line=$line$tab$value
    done
    printf '%s\n' "$line"
}
has() { command -v "$1" >/dev/null 2>&1; }
first() { "$@" 2>/dev/null </dev/null | head -n 1; }
unique() { # print the directories that exist, each under one of its names
    seen=:
    for dir in "$@"; do
        real=$(cd -P "$dir" 2>/dev/null && pwd) || continue
        case $seen in *":$real:"*) ;; *) seen=$seen$real: && printf '%s\n' "$dir" ;; esac
    done
}
split() { printf '%s' "$1" | tr ':' ' '; }

cd / || exit 1
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# The system.
for f in /etc/os-release /usr/lib/os-release; do
    if [ -f "$f" ] && [ -r "$f" ]; then
        (
            . "$f"
            fact os "${PRETTY_NAME-}"
        )
        break
    fi
done
fact architecture "$(uname -m)"
has getconf && fact glibc "$(first getconf GNU_LIBC_VERSION)"

# Libraries in the loader's cache, in LD_LIBRARY_PATH and in ROCm's directories.
has ldconfig && ldconfig -p 2>/dev/null | while read -r name _ rest; do
    case $name in *.so | *.so.*) fact library "$name" "${rest##*=> }" ;; esac
done
for d in $(unique $(split "${LD_LIBRARY_PATH-}") /opt/rocm/lib /opt/rocm/lib64 /opt/rocm-*/lib); do
    for f in "$d"/*.so "$d"/*.so.*; do
        [ -e "$f" ] && fact library "${f##*/}" "$f"
    done
done

# Symbol versions of the C++ and GCC runtimes, and of libfabric.
for name in libstdc++.so.6 libgcc_s.so.1 libfabric.so.1; do
    f=$(ldconfig -p 2>/dev/null | sed -n "s/^[[:space:]]*$name (libc6,x86-64.*=> //p" | head -n 1)
    [ -n "$f" ] || for d in /usr/lib64 /lib64 /usr/lib/x86_64-linux-gnu /lib/x86_64-linux-gnu /usr/lib /lib; do
        [ -f "$d/$name" ] && f=$d/$name && break
    done
    [ -n "$f" ] || continue
    for family in GLIBCXX CXXABI GCC FABRIC; do
        grep -a -o "${family}_[0-9][0-9.]*" "$f" 2>/dev/null | sort -u | while read -r version; do
            fact symbol "$name" "$version"
        done
    done
done

# ROCm.
for d in $(unique ${ROCM_PATH-} /opt/rocm /opt/rocm-*); do
    for f in "$d/.info/version" "$d/.info/version-dev" "$d/.info/version-rocm"; do
        if [ -f "$f" ] && [ -r "$f" ]; then
            fact rocm "$d" "$(head -n 1 "$f")"
            break
        fi
    done
done
PATH=$PATH:/opt/rocm/bin:/opt/rocm/llvm/bin
if has hipcc; then
    hipcc --version 2>/dev/null </dev/null | while read -r line; do fact hipcc "$(command -v hipcc)" "$line"; done
fi
for name in rocminfo amdgpu-arch rocm_agent_enumerator offload-arch llvm-objdump; do
    has "$name" && fact gpu-tool "$name" "$(command -v "$name")"
done

# Compilers and tools, also under names with a version.
for d in $(unique $(split "$PATH")); do
    for f in "$d"/gcc "$d"/gcc-[0-9]* "$d"/g++ "$d"/g++-[0-9]* "$d"/clang "$d"/clang++ \
        "$d"/clang-[0-9]* "$d"/clang++-[0-9]* "$d"/amdclang++ "$d"/gfortran; do
        [ -f "$f" ] && [ -x "$f" ] && fact compiler "$f" "$(first "$f" -dumpfullversion -dumpversion)" "$(first "$f" --version)"
    done
done
for name in cmake ninja git make ccache sccache patchelf mpicc; do
    has "$name" && fact tool "$name" "$(command -v "$name")" "$(first "$name" --version)"
done

# MPI.
has mpichversion && fact mpi "$(first mpichversion)"
for name in ompi_info mpirun; do
    has "$name" && fact mpi "$(first "$name" --version)"
done

# RCCL's network plugin where the loader finds it, and the headers that a plugin is compiled with.
for name in librccl-net.so libnccl-net.so; do
    f=$(ldconfig -p 2>/dev/null | sed -n "s/^[[:space:]]*$name (libc6,x86-64.*=> //p" | head -n 1)
    for d in $(split "${LD_LIBRARY_PATH-}"); do
        [ -f "$d/$name" ] && f=$d/$name && break
    done
    [ -n "$f" ] && [ -f "$f" ] && fact network-plugin "$f" "$(grep -a -o 'aws-ofi-[nr]ccl [0-9][0-9.]*' "$f" 2>/dev/null | head -n 1)"
done
for d in $(unique $(split "${CPATH-}") /usr/local/include /usr/include /usr/include/x86_64-linux-gnu); do
    [ -f "$d/hwloc.h" ] && fact header hwloc.h ""
    [ -f "$d/rdma/fabric.h" ] && fact header rdma/fabric.h "$(
        for part in MAJOR MINOR REVISION; do
            sed -n "s/^#define FI_${part}_VERSION //p" "$d/rdma/fabric.h" | head -n 1
        done | tr '\n' '.'
    )"
done

# Pythons and conda.
for d in $(unique /opt/conda /opt/miniconda* /opt/miniforge* ${CONDA_PREFIX-}); do
    [ -d "$d/conda-meta" ] && fact conda "$d"
    for e in "$d"/envs/*; do [ -d "$e/conda-meta" ] && fact conda "$e"; done
done
ask='
import importlib.metadata as m, importlib.util as u, json, os, sys, sysconfig
dists = [d for d in reversed(list(m.distributions())) if d.metadata["Name"]]
held = {d.metadata["Name"]: d.version for d in dists}
needs = {d.metadata["Name"]: [r for r in d.requires or () if "extra" not in r.partition(";")[2]] for d in dists}
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "path": sys.executable,
"prefix": sys.prefix, "base": sys.base_prefix, "implementation": sys.implementation.name,
"headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
"venv": u.find_spec("venv") is not None and u.find_spec("ensurepip") is not None,
"holds": held, "requires": needs}))
'
for d in $(unique $(split "$PATH") /opt/*/bin /opt/conda/envs/*/bin /usr/local/*/bin); do
    for f in "$d"/python3 "$d"/python3.[0-9] "$d"/python3.[0-9][0-9]; do
        [ -x "$f" ] && [ -f "$f" ] && fact python "$f" "$(first "$f" -s -c "$ask")"
    done
done

if [ -f /.singularity.d/labels.json ] && [ -r /.singularity.d/labels.json ]; then
    fact labels "$(tr -d '\n' </.singularity.d/labels.json)"
fi
fact end
