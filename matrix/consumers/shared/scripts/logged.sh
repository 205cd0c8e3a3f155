# Runs a command like `stoppable`, with a copy of its output in $temporary/output.
logged() {
    stoppable bash -c 'set -o pipefail; output=$1; shift; "$@" 2>&1 | tee -i -- "$output"' bash "$temporary/output" "$@"
}
# Prints the first errors of pip, conda and others in that output, because tracebacks of many lines follow them.
causes() {
    grep -aE '(^|[^[:alnum:]])([[:alnum:]]*(ERROR|Error|Exception)|error|fatal): |No space left on device' \
        -- "$temporary/output" | grep -avE 'CalledProcessError|Pip failed|Invalid command cmd=' |
        sed 's/^[[:space:]]*/    /' | awk '!seen[$0]++' | head -n 3 || :
}
