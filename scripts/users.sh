# Sourced by engine.sh and cluster.sh: what they start is used by several runs at once, and the last one stops it.
# They have $run, $cache and the functions up, stop_all, print_env, have and say.

lock() { if have flock; then flock "$@"; fi; }

# Pid files outlive their processes; one is believed only if that process works in our run folder.
is_ours() { [ "$1" ] && tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "$run/"; }

children() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }

# Each `run` holds a shared lock on $run/users; whoever can take it alone was the last one.
leave() {
    local pid
    for pid in $(children $$); do # our command, where a signal ended this script before it
        if ! is_ours "$pid" && kill "$pid" 2>/dev/null; then wait "$pid" || true; fi
    done
    lock -x 8
    if [ -d "$run" ] && ! [ -e "$run/keep" ] && lock -n -x 9; then stop_all; fi
}

# run_with CMD…
run_with() {
    lock -x 8
    up || say "going on with what there is"
    if [ -d "$run" ]; then
        exec 9>"$run/users"
        trap leave EXIT
        lock -s 9
    fi
    lock -u 8
    eval "$(print_env)"
    "$@" 8>&- 9>&-
}

# An explicit `up` lasts until an explicit `down`, whoever runs tests in between.
up_to_keep() {
    lock -x 8
    up "$@"
    [ ! -d "$run" ] || : >"$run/keep"
}

down() {
    lock -x 8
    stop_all
}
