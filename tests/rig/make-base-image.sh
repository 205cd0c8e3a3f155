#!/bin/bash
# Make two small images, as root on Debian 12, in about 80 s: make-base-image.sh DIR
#
# DIR/base.sif has a real HIP compiler. DIR/runtime.sif is the same system without compilers and headers, for tests
# that compile nothing: each tool that extends an image writes all its files several times.
#
# hipcc, clang, lld, device libraries, HIP headers and runtime, the headers of the maths libraries, cmake, ninja
# and gcc are the real ones of Debian. The runtimes of the maths libraries would need gigabytes. They are STAND-INS:
# empty shared objects with the right names. Programs link against them, but do not run on a GPU. The layout is
# /opt/rocm, as in AMD's images. Python is Debian 12's 3.11, moved to /opt/python3.11, so that its headers and its
# module venv are in one tree.
set -euo pipefail
out=$(realpath "$1")
user=${RIG_USER:-hpc}
here=$(cd "$(dirname "$0")" && pwd)
mirror=$("$here/mirror.sh")
work=$(mktemp -d) # the user must be able to read it, and cannot read root's home
chmod 755 "$work"
root=$work/rootfs
trap 'rm -rf "$work"' EXIT
id "$user" >/dev/null 2>&1 || useradd -m "$user"
if ! grep -q "^$user:" /etc/subuid; then
    echo "$user:100000:65536" >>/etc/subuid
    echo "$user:100000:65536" >>/etc/subgid
fi

# 1. The system: Debian sid, with the HIP stack of experimental.
debootstrap --variant=minbase --include=ca-certificates sid "$root" "$mirror" >/dev/null
printf 'deb %s sid main\ndeb %s experimental main\n' "$mirror" "$mirror" >"$root/etc/apt/sources.list"
printf 'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n' >"$root/etc/apt/apt.conf.d/99rig"
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get update -qq
inside apt-get install -y -qq -t experimental \
    cmake file g++ gcc git hipcc libamdhip64-dev libdrm-dev make ninja-build patchelf rocminfo >/dev/null
headers="libhipblas-common-dev libhipblas-dev libhipblaslt-dev libhipcub-dev libhipfft-dev libhiprand-dev
 libhipsolver-dev libhipsparse-dev libhipsparselt-dev librccl-dev librocblas-dev librocm-smi-dev librocprim-dev
 librocrand-dev librocsolver-dev librocsparse-dev librocthrust-dev"
wanted=$(for name in $headers; do printf '%s/experimental ' "$name"; done)
inside bash -c "mkdir -p /var/tmp/d && cd /var/tmp/d && apt-get download -qq $wanted rocm-cmake 'libmiopen-dev=7.2.4*' &&
    for f in *.deb; do dpkg -x \$f /; done; rm -rf /var/tmp/d"

# 2. Stand-ins for the runtimes that are not installed, and the layout of /opt/rocm.
cd "$root"
libraries=usr/lib/x86_64-linux-gnu
for link in $(find $libraries -maxdepth 1 -xtype l -name '*.so'); do
    soname=$(readlink "$link")
    file=$(grep -rhoE "$(basename "$link")\.[0-9.]+" $libraries/cmake --include='*-targets-*.cmake' | sort -u | tail -1 || true)
    file=${file:-$soname}
    inside gcc -shared -nostdlib -Wl,-soname,"$soname" -o "/$libraries/$file" -x c /dev/null
    if [ "$file" != "$soname" ]; then ln -sf "$file" "$libraries/$soname"; fi
done
rocm=opt/rocm
mkdir -p $rocm/{bin,include,lib,share,.info}
echo 7.2.4 >$rocm/.info/version
for name in amd_comgr hip hipblas hipblas-common hipblaslt hipcub hipfft hiprand hipsolver hipsparse hipsparselt hsa \
    miopen rccl rocblas rocm_smi rocprim rocrand rocsolver rocsparse thrust; do
    # Do not link all of /usr/include: as the first -isystem, it breaks #include_next.
    if [ -e usr/include/$name ]; then ln -s /usr/include/$name $rocm/include/$name; fi
done
for name in hipcc hipconfig rocm_agent_enumerator rocminfo; do ln -s /usr/bin/$name $rocm/bin/$name; done
for file in $libraries/lib{amdhip64,hip*,roc*,rccl,MIOpen,hsa-runtime64,amd_comgr}.so*; do
    if [ -e "$file" ]; then ln -sf "/$file" $rocm/lib/; fi
done
llvm=$(find usr/lib -maxdepth 1 -name 'llvm-*' | sort -V | tail -1)
for name in llvm lib/llvm "lib/$(basename "$llvm")"; do ln -s "/$llvm" $rocm/$name; done
ln -s "/$(find "$llvm/lib/clang" -maxdepth 2 -name amdgcn | head -1)" $rocm/amdgcn
ln -s "/$libraries" $rocm/lib/x86_64-linux-gnu # cmake looks for lib/<triplet>/cmake/hip-lang
ln -s /usr/share/hip $rocm/share/hip           # without share/hip/version, clang drops its HIP headers

# 3. Python: Debian's packages, moved to a separate prefix, with the usual paths instead of Debian's.
mkdir "$work/debs" "$work/unpacked"
chmod 777 "$work/debs"
apt-get update -qq
(cd "$work/debs" && apt-get download -qq libpython3.11-dev libpython3.11-minimal libpython3.11-stdlib \
    python3-distutils python3-pip-whl python3-setuptools-whl python3.11-minimal python3.11-venv)
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/unpacked"; done
python=opt/python3.11
stdlib=$python/lib/python3.11
mkdir -p $python/{bin,include,lib,share}
cp "$work/unpacked/usr/bin/python3.11" $python/bin/
cp -r "$work/unpacked/usr/lib/python3.11" $stdlib
cp -r "$work/unpacked/usr/include/python3.11" $python/include/
cp "$work/unpacked/usr/include/x86_64-linux-gnu/python3.11/pyconfig.h" $python/include/python3.11/
cp -r "$work/unpacked/usr/share/python-wheels" $python/share/
rm -rf $stdlib/{EXTERNALLY-MANAGED,config-*,sitecustomize.py,test}
sed -i 's#/usr/#/opt/python3.11/#g' $stdlib/_sysconfigdata__x86_64-linux-gnu.py
sed -i "s/prefix_scheme = 'posix_local'/prefix_scheme = 'posix_prefix'/" $stdlib/sysconfig.py
ln -s python3.11 $python/bin/python3
ln -s python3.11 $python/bin/python

# 4. An ordinary user packs the images. This user cannot make device nodes and must be able to read every file.
# Documents, translations and large programs that no build starts are left out.
cd "$root"
rm -rf dev/* var/cache/apt/* var/lib/apt/lists/* usr/share/{doc,info,locale,man} usr/share/cmake-*/Help usr/lib32 \
    usr/bin/{*-lto-dump*,cpack,ctest} usr/lib/llvm-*/bin/{c-index-test,llvm-exegesis} usr/libexec/gcc/*/*/lto1
mkdir -p var/cache/apt/archives/partial
chmod -R a+rX .
cat >"$work/image.def" <<D
Bootstrap: localimage
From: $root
%environment
  export LC_ALL=C.UTF-8 ROCM_PATH=/opt/rocm ROCM_HOME=/opt/rocm PATH=/opt/python3.11/bin:/opt/rocm/bin:/usr/bin:/bin
%labels
  rocm.version 7.2.4
D
install -d -o "$user" "$work/out"
pack() {
    (cd / && runuser -u "$user" -- env HOME="$work/out" TMPDIR="$work/out" apptainer build \
        --mksquashfs-args '-comp zstd -Xcompression-level 3' "$work/out/$1" "$work/image.def")
    mv "$work/out/$1" "$out/$1"
}
pack base.sif
rm -rf usr/include usr/lib/{gcc,git-core,llvm-*,python3*} usr/libexec/gcc usr/share/{cmake-*,perl} \
    usr/bin/{*-linux-gnu-*,cmake,git,ninja} $libraries/{libclang*,perl,*.a} $rocm/{amdgcn,include,llvm,lib/llvm*}
pack runtime.sif
