# Runs a command in a separate process group, so that a signal to this script ends all its processes.
stoppable() {
    local code=0
    set -m
    "$@" </dev/null &
    group=$!
    set +m
    trap stop HUP INT TERM
    wait "$group" || code=$?
    trap - HUP INT TERM
    return "$code"
}
stop() {
    trap '' HUP INT TERM
    kill -TERM -- "-$group" 2>/dev/null || :
    wait "$group" || :
    kill -KILL -- "-$group" 2>/dev/null || :
    printf '%s: interrupted; %s was not changed\n' @SCRIPT@ "$@TARGET@" >&2
    exit 130
}
for left in "$@TARGET@".new-* "$@TARGET@".old-*; do
    printf '%s: %s belongs to a build that still runs or was killed; if no build runs, remove it\n' @SCRIPT@ "$left" >&2
done
