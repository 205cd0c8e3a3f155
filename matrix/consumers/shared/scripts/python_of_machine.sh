# pip-containerize makes a virtual environment of the python3 on PATH, unless it is told otherwise.
if [ -z "$update" ] && [[ " $* " != *" --uv "* && " $* " != *" --slim "* ]]; then
    found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || :)
    [ "$found" = "$locked" ] ||
        fail "python3 is Python ${found:-?}, and the lock has $locked; load a module with it, or add: --uv --pyver $locked"
fi
