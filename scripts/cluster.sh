#!/usr/bin/env bash
# A real Kubernetes cluster on one Debian machine, for tests: nothing but Debian's packages.
#
#   cluster.sh up [NODES]    build it (once, some minutes), start it with NODES nodes (2)
#   cluster.sh down          stop it, and leave nothing running
#   cluster.sh build         what `up` does before it starts anything
#   cluster.sh env           print `export` lines that tell a test run where it is
#   cluster.sh run CMD…      up, run CMD with that environment, and down again when its last user leaves; where
#                            it cannot be had, SANDBOX_TEST_MISSING says so
#   cluster.sh smoke         a pod, an exec, both nodes, a pod on gVisor
#   cluster.sh power-cut N   cut node N off the network, and kill it and every pod on it at once
#   cluster.sh stop PART     kill a part, whose work stays as it is: apiserver, kubelet-N
#   cluster.sh start PART    start it again, also a node after a power cut: apiserver, kubelet-N, node-N.
#                            Returns when it answers
#   cluster.sh load IMAGE…   bring images of the Docker engine onto its nodes
#
# API server, controller manager, scheduler and kubelet are built from Debian's source package with
# Debian's Go. Each node is a network, a pid and a mount namespace of its own. Not in it: Services,
# DNS, enforcement of NetworkPolicies, volumes on disks.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/agent-sandbox}/cluster
id=$(printf %s "$cache" | cksum | cut -d' ' -f1)
run=/run/agent-sandbox-cluster-$id
bridge=sbk$((id % 100000))
bin=$cache/bin
unpacked=$cache/root
box_image=sandbox-secure:latest
export PATH=$bin:$unpacked/usr/bin:$PATH:/usr/sbin:/sbin
. "$root/scripts/progress.sh"
. "$root/scripts/users.sh"
. "$root/scripts/cluster_build.sh"

say() { echo "cluster: $*" >&2; }
die() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# until_true SECONDS WHAT CMD…
until_true() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || {
            say "no $what in time; see $run/log"
            return 1
        }
        sleep 0.2
    done
}

# --- the control plane ------------------------------------------------------------------------

# The first of our /16 networks that nothing on this machine leads to.
choose_network() {
    local octet=$((100 + id % 100)) _
    for _ in $(seq 100); do
        if ! ip -4 route show | grep -q "^10\.$octet\."; then
            echo "10.$octet" >"$run/network"
            return
        fi
        octet=$((100 + (octet - 99) % 100))
    done
    die "no network is left"
}

network() { cat "$run/network"; }
host() { echo "$(network).0.1"; }
node_address() { echo "$(network).0.$((10 + $1))"; }
pods_of() { echo "$(network).$((100 + $1)).0/24"; }

make_keys() {
    local dir=$run/pki n
    mkdir -p "$dir"
    openssl rand -hex 16 >"$dir/token"
    (
        cd "$dir"
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=cluster-ca -keyout ca.key -out ca.crt
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=kube-apiserver -keyout server.key -out server.csr
        printf 'subjectAltName=IP:%s,IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc' "$(host)" >ext
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out server.crt
        openssl ecparam -name prime256v1 -genkey -noout -out sa.key
    ) 2>/dev/null
    {
        echo "$(cat "$dir/token"),admin,admin,\"system:masters\""
        for n in 1 2 3 4 5 6 7 8; do echo "$(cat "$dir/token")-n$n,system:node:n$n,n$n,\"system:nodes\""; done
    } >"$dir/tokens.csv"
    chmod 600 "$dir"/token "$dir"/tokens.csv "$dir"/*.key
}

# kubeconfig FILE TOKEN
kubeconfig() {
    cat >"$1" <<END
apiVersion: v1
kind: Config
clusters: [{name: tests, cluster: {server: "https://$(host):6443", certificate-authority: $run/pki/ca.crt}}]
users: [{name: tests, user: {token: "$2"}}]
contexts: [{name: tests, context: {cluster: tests, user: tests}}]
current-context: tests
END
    chmod 600 "$1"
}

kube() { kubectl --kubeconfig "$run/kubeconfig" --cache-dir "$run/kubectl" "$@"; }

# start NAME CMD…: in a session of its own, or Ctrl-C would end it before the tests have cleaned up,
# and without files of its caller, or a lock of theirs would last as long as it runs.
start() {
    local name=$1
    shift
    (
        for fd in /proc/self/fd/*; do
            fd=${fd##*/}
            [ "$fd" -le 2 ] || eval "exec $fd>&-"
        done
        exec setsid "$@" >"$run/log/$name.log" 2>&1 </dev/null
    ) &
    echo $! >"$run/$name.pid"
}

start_apiserver() {
    local at pki=$run/pki
    at=$(host)
    start apiserver "$bin/kube-apiserver" --etcd-servers "http://$at:2379" --bind-address "$at" --advertise-address "$at" \
        --secure-port 6443 --tls-cert-file "$pki/server.crt" --tls-private-key-file "$pki/server.key" \
        --token-auth-file "$pki/tokens.csv" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
        --kubelet-preferred-address-types InternalIP --service-cluster-ip-range "$(network).200.0/24" \
        --service-account-issuer https://cluster.local --service-account-key-file "$pki/sa.key" \
        --service-account-signing-key-file "$pki/sa.key" --cert-dir "$run/apiserver"
    until_true 60 "API server" kube get --raw /readyz
}

start_control_plane() {
    local at pki=$run/pki etcd
    at=$(host) etcd=http://$(host):2379
    ETCD_UNSUPPORTED_ARCH=$(dpkg --print-architecture) start etcd "$unpacked/usr/bin/etcd" \
        --data-dir "$run/etcd" --log-level warn --unsafe-no-fsync \
        --listen-client-urls "$etcd" --advertise-client-urls "$etcd" --listen-peer-urls "http://$at:2380" \
        --initial-advertise-peer-urls "http://$at:2380" --initial-cluster "default=http://$at:2380"
    until_true 20 etcd bash -c ": >/dev/tcp/$at/2379" || return
    start_apiserver || return
    start controllers "$bin/kube-controller-manager" --kubeconfig "$run/kubeconfig" --leader-elect=false --port 0 \
        --bind-address "$at" --service-account-private-key-file "$pki/sa.key" --root-ca-file "$pki/ca.crt" \
        --cert-dir "$run/controllers" --node-monitor-period 1s --node-monitor-grace-period 20s
    start scheduler "$bin/kube-scheduler" --kubeconfig "$run/kubeconfig" --leader-elect=false --port 0 \
        --bind-address "$at" --cert-dir "$run/scheduler"
}

# --- nodes ------------------------------------------------------------------------------------

namespace_of() { echo "cluster-$id-n$1"; }

start_node() {
    local n=$1 dir=$run/n$1 space group other
    space=$(namespace_of "$n")
    mkdir -p "$dir"/{cni,kubelet,sysctl} "$cache/nodes/n$n" /var/lib/kubelet /var/lib/cni /run/netns /run/containerd
    ip netns add "$space"
    ip link add "${bridge}n$n" type veth peer name eth0 netns "$space"
    ip link set "${bridge}n$n" master "$bridge" up
    nsenter --net="/run/netns/$space" sh -c "
        ip link set lo up; ip addr add $(node_address "$n")/24 dev eth0; ip link set eth0 up
        ip route add default via $(host); echo 1 >/proc/sys/net/ipv4/ip_forward"
    ip route add "$(pods_of "$n")" via "$(node_address "$n")"
    # Pods of other nodes: not through the machine, which need not forward.
    for other in 1 2 3 4 5 6 7 8; do
        [ "$other" = "$n" ] || ip -n "$space" route add "$(pods_of "$other")" via "$(node_address "$other")"
    done
    for group in /sys/fs/cgroup/*/cgroup.procs; do mkdir -p "${group%/*}/$space"; done
    for group in cpus mems; do
        cat "/sys/fs/cgroup/cpuset/cpuset.$group" >"/sys/fs/cgroup/cpuset/$space/cpuset.$group" 2>/dev/null || true
    done
    kubeconfig "$dir/kubeconfig" "$(cat "$run/pki/token")-n$n"
    write_node_files "$n" "$dir" "$space"
    start "n$n" nsenter --net="/run/netns/$space" \
        unshare -m -p -f --kill-child=KILL --mount-proc --propagation private bash "$root/scripts/cluster.sh" node-main "$n" "$dir"
}

write_node_files() {
    local n=$1 dir=$2 space=$3
    cat >"$dir/cni/10-pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
 "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "$dir/ipam", "ranges": [[{"subnet": "$(pods_of "$n")"}]],
 "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
    # Machines without CAP_SYS_RESOURCE may not lower an OOM score.
    cat >"$dir/containerd.toml" <<END
version = 2
root = "$cache/nodes/n$n"
state = "/run/containerd/n$n"
[grpc]
  address = "/run/containerd/n$n.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "k8s.local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$unpacked/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gvisor]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gvisor.options]
      BinaryName = "$bin/runsc-in-pods"
END
    cat >"$dir/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_address "$n")
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$space
enforceNodeAllocatable: [pods]
failSwapOn: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
volumePluginDir: $dir/flex
END
    write_runsc
}

# Debian has no containerd shim of gVisor's, so runc's drives it, with four matters mended. That shim
# learns that a container has ended by the end of a process, which the containers of one gVisor share:
# each has a gVisor of its own here, and what holds the network of a pod is runc's. Newer kernels show
# net.core.rmem_default in every network namespace, which runsc takes for the sign of the machine's
# own: `start` gets a /proc/sys/net without it. The gofer that `start` leaves behind keeps its output
# open, on which the shim waits. And the shim knows a container that has ended by runc's words for it;
# otherwise it and its sandbox are never removed.
write_runsc() {
    cat >"$bin/runsc-in-pods" <<'END'
#!/bin/bash
given=("$@") root=/run/runc verb=
while [ $# -gt 0 ]; do
    case $1 in
    --root) root=$2 ;;
    create | start | kill) verb=$1 ;;
    --bundle) config=$2/config.json ;;
    *) [ ! -e "$root/$1/state.json" ] || exec runc "${given[@]}" ;;
    esac
    shift
done
kind='"io.kubernetes.cri.container-type"'
if [ "$verb" = create ]; then
    ! grep -q "$kind: *\"sandbox\"" "$config" || exec runc "${given[@]}"
    sed -i "s/$kind/\"was-container-type\"/" "$config"
fi
platform=systrap
runsc --version | grep -q 0.0~2022 && platform=ptrace
set -- runsc --platform=$platform "${given[@]}"
case $verb in
start)
    out=$(mktemp)
    unshare -m --propagation slave sh -c 'mount -t tmpfs tmpfs /proc/sys/net && exec "$@"' sh "$@" >"$out" 2>&1 </dev/null
    code=$?
    cat "$out"
    rm -f "$out"
    exit $code
    ;;
kill)
    out=$("$@" 2>&1)
    code=$?
    [[ $out == *"is not running"* ]] && out="container not running"
    [ $code = 0 ] || echo "$out" >&2
    exit $code
    ;;
esac
exec "$@"
END
    chmod +x "$bin/runsc-in-pods"
}

# PID 1 of a node. Its containerd keeps its images between runs.
node_main() {
    local n=$1 dir=$2 folder value socket=/run/containerd/n$1.sock
    mount --make-rshared /
    for folder in /run/containerd /run/netns /var/log /var/lib/cni; do mount -t tmpfs tmpfs "$folder"; done
    mount --bind "$dir/kubelet" /var/lib/kubelet
    mount --make-rshared /var/lib/kubelet
    # The kubelet writes kernel settings unless it finds them so: the machine's own stay as they are.
    for value in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        folder=$dir/sysctl/${value//\//-}
        echo "${value#*=}" >"$folder"
        mount --bind "$folder" "/proc/sys/${value%%=*}"
    done
    containerd --config "$dir/containerd.toml" >"$run/log/n$n.containerd.log" 2>&1 &
    until_true 20 containerd ctr -a "$socket" version
    import_image "$socket" "$cache/nodes/n$n/.images" "$cache/images.tar"
    [ ! -s "$cache/box.tar" ] || import_image "$socket" "$cache/nodes/n$n/.box" "$cache/box.tar"
    run_kubelet "$n" "$dir" &
    while :; do
        wait -n || true
        sleep 0.2
    done
}

# run_kubelet N DIR: in the namespaces of a node.
run_kubelet() {
    exec kubelet --config "$2/kubelet.yaml" --kubeconfig "$2/kubeconfig" --hostname-override "n$1" \
        --node-ip "$(node_address "$1")" --container-runtime remote --container-runtime-endpoint "unix:///run/containerd/n$1.sock" \
        --cert-dir "$2/pki" --node-labels "pool=p$1" >>"$run/log/n$1.kubelet.log" 2>&1
}

# import_image SOCKET STAMP TAR: unless this very file is there already.
import_image() {
    [ "$2" -nt "$3" ] && return
    ctr -a "$1" -n k8s.io images import "$3" && : >"$2"
}

# init_of NODE: the pid of its PID 1.
init_of() { pgrep -P "$(cat "$run/$1.pid")" || die "node $1 does not run"; }

# load IMAGE…: onto every node that runs, unless it has them.
load() {
    local node pid stamp ids
    ids=$(docker image inspect -f '{{.Id}}' "$@" | sort) || die "no such image in the engine: $*"
    for node in "$run"/n[0-9]; do
        node=${node##*/}
        stamp=$cache/nodes/$node/.loaded-$(printf %s "$*" | cksum | cut -d' ' -f1)
        [ "$(cat "$stamp" 2>/dev/null)" != "$ids" ] || continue
        pid=$(init_of "$node")
        docker save "$@" | nsenter -m -t "$pid" ctr -a "/run/containerd/$node.sock" -n k8s.io images import - >&2
        echo "$ids" >"$stamp"
    done
}

# --- stopping ---------------------------------------------------------------------------------

# stop NAME [SIGNAL]
stop() {
    local pid _
    pid=$(cat "$run/$1.pid" 2>/dev/null) || return 0
    rm -f "$run/$1.pid"
    is_ours "$pid" || return 0
    kill "-${2:-TERM}" "$pid" 2>/dev/null || true
    for _ in $(seq 50); do
        is_ours "$pid" || return 0
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
}

stop_node() {
    local n=$1 space group
    space=$(namespace_of "$n")
    stop "n$n" KILL
    ip route del "$(pods_of "$n")" 2>/dev/null || true
    ip link del "${bridge}n$n" 2>/dev/null || true
    ip netns del "$space" 2>/dev/null || true
    for group in /sys/fs/cgroup/*/"$space"; do
        [ ! -d "$group" ] || until_true 10 "end of $space" remove_group "$group" || true
    done
}

remove_group() {
    find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
    ! [ -d "$1" ]
}

stop_all() {
    [ -d "$run" ] || return 0
    local dir name
    for dir in "$run"/n[0-9]; do
        [ ! -d "$dir" ] || stop_node "${dir##*/n}"
    done
    for name in scheduler controllers apiserver etcd; do stop "$name"; done
    ip link del "$bridge" 2>/dev/null || true
    rm -rf "$run"
    rmdir /var/lib/kubelet /var/lib/cni 2>/dev/null || true
}

# --- faults -----------------------------------------------------------------------------------

power_cut() {
    ip link set "${bridge}n$1" down # First, or the node's kernel would still say goodbye for its processes.
    stop "n$1" KILL
}

stop_part() {
    case $1 in
        apiserver) stop apiserver KILL ;;
        kubelet-[0-9]) kill -KILL "$(pgrep -f "^kubelet --config $run/n${1#kubelet-}/kubelet.yaml")" ;;
        *) die "cannot stop $1" ;;
    esac
}

start_part() {
    local n=${1##*-}
    case $1 in
        apiserver) start_apiserver ;;
        kubelet-[0-9])
            start "kubelet-$n" nsenter --target "$(init_of "n$n")" --net --pid --mount \
                bash "$root/scripts/cluster.sh" kubelet-main "$n" "$run/n$n"
            until_true 60 "kubelet of n$n" bash -c ": >/dev/tcp/$(node_address "$n")/10250"
            ;;
        node-[0-9])
            stop_node "$n"
            start_node "$n"
            until_true 60 "kubelet of n$n" bash -c ": >/dev/tcp/$(node_address "$n")/10250"
            ;;
        *) die "cannot start $1" ;;
    esac
}

# --- commands ---------------------------------------------------------------------------------

ready_nodes() { kube get nodes --no-headers 2>/dev/null | grep -cw Ready; }
all_ready() { [ "$(ready_nodes)" = "$1" ]; }

start_all() {
    local nodes=$1 n
    mkdir -p "$run/log"
    choose_network
    make_keys
    kubeconfig "$run/kubeconfig" "$(cat "$run/pki/token")"
    ip link add "$bridge" type bridge
    ip addr add "$(host)/24" dev "$bridge"
    ip link set "$bridge" up
    start_control_plane || return
    for n in $(seq "$nodes"); do start_node "$n"; done
    until_true 180 "ready nodes" all_ready "$nodes" || return
    until_true 30 "service account" kube get serviceaccount default || return
    echo '{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "gvisor"}' |
        kube apply -f - >/dev/null
}

all_built() {
    [ "$(id -u)" = 0 ] && have apt-get || die "it takes root on Debian"
    build || die "cannot be built here"
    make_images
    save_box_image
}

# In a process of its own, so that it can die without its caller.
up() (
    local nodes=${1:-2} began
    if [ -s "$run/kubeconfig" ] && all_ready "$nodes"; then
        say "is up already"
        return
    fi
    all_built
    stop_all
    began=$SECONDS
    if ! start_all "$nodes"; then
        stop_all
        die "did not start"
    fi
    say "up with $nodes nodes after $((SECONDS - began)) s; eval \"\$(scripts/cluster.sh env)\""
)

print_env() {
    local missing=${SANDBOX_TEST_MISSING:-}
    if [ -s "$run/kubeconfig" ] && [ "$(ready_nodes)" -gt 0 ]; then
        echo "export SANDBOX_TEST_CLUSTER=$run/kubeconfig"
        echo "export PATH=$unpacked/usr/bin:\$PATH"
        return
    fi
    echo "unset SANDBOX_TEST_CLUSTER"
    echo "export SANDBOX_TEST_MISSING=$(printf %q "${missing:+$missing; }kubernetes: no cluster ($(why_not))")"
    say "is not up: $(why_not)"
}

why_not() {
    if [ "$(id -u)" = 0 ] && have apt-get; then
        echo "scripts/cluster.sh up starts one and says what fails"
    else
        echo "starting one takes root on Debian"
    fi
}

# pod NAME [MORE OF ITS SPEC]
pod() {
    kube apply -f - >/dev/null <<END
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1", "labels": {"app": "smoke"}}, "spec": {${2:-}
 "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "k8s.local/busybox:1"}]}}
END
    kube wait --for=condition=Ready --timeout=60s "pod/$1" >/dev/null
}

smoke() {
    trap 'kube delete pod -l app=smoke --wait=false >/dev/null' EXIT
    pod one '"nodeSelector": {"pool": "p1"},'
    [ "$(kube exec one -- echo hi)" = hi ] || die "exec failed"
    [ "$(ready_nodes)" -lt 2 ] || pod two '"nodeSelector": {"pool": "p2"},'
    if have runsc; then
        pod guarded '"runtimeClassName": "gvisor",'
        kube exec guarded -- dmesg | grep -q gVisor || die "not gVisor's kernel"
    fi
    say "pods run, on $(ready_nodes) nodes"
}

main() {
    mkdir -p "$cache"
    exec 8>"$cache/lock"
    case ${1:-} in
        up)
            shift
            up_to_keep "$@"
            ;;
        down) down ;;
        build)
            lock -x 8
            all_built
            ;;
        load)
            lock -x 8
            "$@"
            ;;
        env) print_env ;;
        run)
            shift
            [ -s "${SANDBOX_TEST_CLUSTER:-}" ] && exec "$@" 8>&- # The caller has one.
            run_with "$@"
            ;;
        smoke) smoke ;;
        power-cut) power_cut "${2:?a number}" ;;
        stop) stop_part "${2:?a part}" ;;
        start) start_part "${2:?a part}" ;;
        node-main) node_main "$2" "$3" ;;
        kubelet-main) run_kubelet "$2" "$3" ;;
        *)
            echo "usage: $0 up [NODES] | down | build | env | run COMMAND… | smoke | power-cut N | stop PART | start PART | load IMAGE…" >&2
            return 2
            ;;
    esac
}

main "$@"
