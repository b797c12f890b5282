# Sourced by the other scripts.
#
# with_progress LOG CMD…: run a command with its output in LOG, and show meanwhile that it goes on:
# the newest line of its output, in place on a terminal and as lines elsewhere.

with_progress() {
    local log=$1 code=0 watcher
    shift
    : >"$log"
    # Without the descriptors of locks: it may end a moment after us.
    show_progress "$log" $$ 8>&- 9>&- &
    watcher=$!
    "$@" >"$log" 2>&1 || code=$?
    { kill "$watcher" && wait "$watcher"; } 2>/dev/null || true
    [ ! -t 2 ] || printf '\r\033[K' >&2
    return "$code"
}

# show_progress LOG PID: until PID is gone.
show_progress() {
    local log=$1 pid=$2 began=$SECONDS every=${PROGRESS_S:-15} line
    [ ! -t 2 ] || every=0.5
    # Waits without a process of its own, which would outlive it.
    while ! read -rt "$every" && kill -0 "$pid" 2>/dev/null; do
        line=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-100)
        if [ -t 2 ]; then
            printf '\r\033[K  %4d s  %s' $((SECONDS - began)) "${line:0:60}" >&2
        else
            echo "  $((SECONDS - began)) s  $line" >&2
        fi
    done <> <(:)
}

# step LOG TEXT CMD…: run, showing that it goes on; when it fails, show the end of what it said. For
# scripts that have $cache, where logs are, and say.
step() {
    local log=$cache/$1 text=$2
    shift 2
    say "$text"
    with_progress "$log" "$@" && return
    say "failed: $text; the end of $log:"
    tail -n 20 "$log" >&2
    return 1
}
