#!/usr/bin/env bash
# Renders the Helm chart of deploy/kubernetes.
#
#   chart.sh template RELEASE NAMESPACE [VALUES…]    as YAML; API_VERSIONS: what the cluster has
#
# With Helm where it is installed. Elsewhere, as root or not on Debian, with a program of ours that
# is built once from Debian's Go and sprig, the functions of Helm's templates.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/agent-sandbox}/chart
unpacked=$cache/root
chart=$root/deploy/kubernetes/chart
export PATH=$PATH:/usr/lib/go/bin:$unpacked/usr/lib/go-1.19/bin:${cache%/*}/cluster/root/usr/lib/go-1.19/bin
. "$root/scripts/progress.sh"
. "$root/scripts/cluster_build.sh"

say() { echo "chart: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

unpack_go() {
    local deb packages=(masterminds-{sprig,semver,goutils} huandu-xstrings google-uuid imdario-mergo
        shopspring-decimal mitchellh-{copystructure,reflectwalk} spf13-cast)
    packages=("${packages[@]/#/golang-github-}")
    packages=("${packages[@]/%/-dev}" golang-golang-x-crypto-dev golang-k8s-sigs-yaml-dev golang-gopkg-yaml.v2-dev)
    have go || packages+=(golang-1.19-go golang-1.19-src)
    mkdir -p "$cache/debs" "$unpacked"
    cd "$cache/debs"
    apt_aside apt-get -qq download "${packages[@]}" || return
    for deb in *.deb; do dpkg-deb -x "$deb" "$unpacked" || return; done
    cd "$cache" && rm -rf debs apt
}

compile_renderer() {
    [ -d "$unpacked/usr/share/gocode/src/github.com/Masterminds/sprig" ] || unpack_go || return
    export GOROOT=$(readlink -f "$(dirname "$(readlink -f "$(command -v go)")")/..")
    export GOPATH=$unpacked/usr/share/gocode GOCACHE=$cache/gocache GO111MODULE=off CGO_ENABLED=0
    # Beside the libraries and with a go.mod, or the /v3 in import paths is taken for a folder.
    mkdir -p "$GOPATH/src/chart"
    cp "$root/scripts/chart/main.go" "$GOPATH/src/chart/"
    echo "module chart" >"$GOPATH/src/chart/go.mod"
    cd "$GOPATH/src/chart"
    go build -o "$cache/renderer.new" . && rm -rf "$GOCACHE" && mv "$cache/renderer.new" "$cache/renderer"
}

build_renderer() {
    [ "$cache/renderer" -nt "$root/scripts/chart/main.go" ] && return
    have apt-get || have go || { say "needs helm, or Debian"; return 3; }
    mkdir -p "$cache"
    say "building what renders charts (once) …"
    with_progress "$cache/build.log" compile_renderer || { tail -n 20 "$cache/build.log" >&2; return 3; }
}

template() {
    local release=${1:?a name} namespace=${2:?a namespace} versions=${API_VERSIONS:-policy/v1 autoscaling/v2} files=() file
    shift 2
    if have helm; then
        for file; do files+=(-f "$file"); done
        for file in $versions; do files+=(--api-versions "$file"); done
        exec helm template "$release" "$chart" --namespace "$namespace" "${files[@]}"
    fi
    mkdir -p "${cache%/*}"
    exec 8>"$cache.lock"
    flock -x 8
    build_renderer
    flock -u 8
    exec "$cache/renderer" "$release" "$namespace" "$chart" "$versions" "$@"
}

case ${1:-} in
    template) "$@" ;;
    *)
        echo "usage: $0 template RELEASE NAMESPACE [VALUES…]" >&2
        exit 2
        ;;
esac
