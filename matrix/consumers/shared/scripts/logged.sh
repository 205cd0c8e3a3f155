# Runs a command like `stoppable`, with a copy of its output in $temporary/output.
logged() {
    stoppable bash -c 'set -o pipefail; output=$1; shift; "$@" 2>&1 | tee -i -- "$output"' bash "$temporary/output" "$@"
}
# Prints the first errors of pip, conda and others in that output, because tracebacks of many lines follow them,
# and the lines of the given files with the packages that they name.
causes() {
    grep -aE '(^|[^[:alnum:]])([[:alnum:]]*(ERROR|Error|Exception)|error|fatal): |No space left on device' \
        -- "$temporary/output" | grep -avE 'CalledProcessError|Pip failed|Invalid command cmd=' |
        sed 's/^[[:space:]]*/    /' | awk '!seen[$0]++' | head -n 3 || :
    LC_ALL=C awk '
        function plain(word) { word = tolower(word); gsub(/[-_.]+/, "-", word); return word }
        FILENAME != ARGV[ARGC - 1] {
            if (!sub(/^[[:space:]]*- /, "") && FILENAME ~ /ml$/) next
            sub(/ --hash=.*/, "")
            name = $0; sub(/[^[:alnum:]._-].*/, "", name); name = plain(name)
            if (name ~ /^[a-z0-9]/ && name != "pip" && name != "python") line[name] = FILENAME ":" FNR ": " $0
            next
        }
        { gsub(/\033\[[0-9;]*[A-Za-z]/, "") }
        /CalledProcessError|Pip failed|Invalid command cmd=/ { next }
        /(^|[^[:alnum:]])([[:alnum:]]*(ERROR|Error|Exception)|error|fatal): / { error = FNR }
        (error && FNR <= error + 20) || (!error && /(Collecting|Building wheel for|Processing|Downloading) /) {
            found = ""
            count = split($0, words, /[^[:alnum:]._-]+/)
            for (i = 1; i <= count; i++) {
                word = plain(words[i]); sub(/-+$/, "", word)
                if (!(word in line)) sub(/-[0-9].*/, "", word)
                if (word in line && index(found, line[word] "\n") == 0) found = found "    " line[word] "\n"
            }
            if (found != "") last = found
            if (found != "" && error) exit
        }
        END { if (error) printf "%s", last }
    ' "$@" "$temporary/output" || :
}
