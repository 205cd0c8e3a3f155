#!/bin/bash
# Make the libraries of ROCm that an object needs and this image does not have: standin_libraries.sh OBJECT DIR   (inside the image)
#
# They are STAND-INS: shared objects with the right names, and a function that returns 0 for each symbol that nothing defines, also those
# of the image's own empty stand-ins. The object can be loaded with them, and runs nothing on a GPU.
set -euo pipefail
object=$1
out=$2
mkdir -p "$out"
missing=$(ldd "$object" | awk '/not found/ {print $1}')
for name in $missing; do gcc -shared -nostdlib -Wl,-soname,"$name" -o "$out/$name" -x c /dev/null; done
symbols=$(LD_LIBRARY_PATH=$out ldd -r "$object" 2>&1 | awk '/undefined symbol/ {sub(",", "", $3); print $3}' | sort -u)
first=$(echo "$missing" | head -1)
for name in $symbols; do echo "long $name(void) { return 0; }"; done |
    gcc -shared -fPIC -Wno-builtin-declaration-mismatch -Wl,-soname,"$first" -o "$out/$first" -x c -
echo "$missing"
