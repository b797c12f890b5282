# Sourced by cluster.sh: what it is made of. Builds in $cache, from Debian's packages alone.

# --- building ---------------------------------------------------------------------------------

# An apt of its own, with the sources of the machine's suites: nothing of the machine's is changed.
apt_aside() {
    local dir=$cache/apt
    mkdir -p "$dir"/{lists/partial,cache/archives/partial,parts}
    if ! [ -e "$dir/ready" ]; then
        sed -E 's/^Types: deb$/Types: deb deb-src/; s/^(Suites: bookworm bookworm-updates)$/\1 bookworm-backports/' \
            /etc/apt/sources.list.d/*.sources >"$dir/parts/all.sources" 2>/dev/null || true
        [ ! -f /etc/apt/sources.list ] ||
            sed -nE 's/^deb (.*)/deb \1\ndeb-src \1/p' /etc/apt/sources.list >"$dir/parts/all.list"
        cat >"$dir/conf" <<END
Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "$dir/parts";
Dir::State::lists "$dir/lists"; Dir::Cache "$dir/cache"; APT::Sandbox::User "root";
END
        APT_CONFIG=$dir/conf apt-get -qq update && : >"$dir/ready"
    fi
    APT_CONFIG=$dir/conf "$@"
}

unpack_packages() {
    local debs=$cache/debs deb
    mkdir -p "$debs" "$unpacked"
    cd "$debs"
    apt_aside apt-get -qq download golang-1.19-go golang-1.19-src etcd-server kubernetes-client \
        containernetworking-plugins busybox-static golang-github-modern-go-reflect2-dev || return
    apt_aside apt-get -qq -t bookworm-backports download runsc ||
        apt_aside apt-get -qq download runsc || true
    for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$unpacked" || return; done
    rm -rf "$debs"
}

# need COMMAND=PACKAGE…: install the packages whose command is missing.
need() {
    local pair packages=()
    for pair; do have "${pair%%=*}" || packages+=("${pair#*=}"); done
    [ ${#packages[@]} = 0 ] || step apt.log "installing ${packages[*]} …" install_packages "${packages[@]}"
}

install_packages() {
    DEBIAN_FRONTEND=noninteractive flock /run/agent-sandbox-apt.lock sh -c \
        'apt-get -q update; exec apt-get -q install -y --no-install-recommends "$@"' sh "$@" </dev/null
}

fetch_source() {
    local gopath=$1 source=$1/src/k8s.io/kubernetes version patch
    rm -rf "$gopath"
    mkdir -p "$gopath/src/k8s.io" "$cache/source"
    cd "$cache/source"
    version=$(apt_aside apt-cache showsrc kubernetes | sed -n 's/^Version: \(1\.20\..*\)/\1/p' | head -n 1)
    apt_aside apt-get -qq source --download-only "kubernetes=$version" || return
    tar xzf kubernetes_*.orig.tar.gz && mv kubernetes-1.20.* "$source" &&
        tar xJf kubernetes_*.debian.tar.xz -C "$source" || return
    cd "$source"
    while read -r patch; do patch -p1 -s <"debian/patches/$patch" || return; done <debian/patches/series
    # The vendored reflect2 1.0.1 fails under Go 1.18 and newer; Debian's 1.0.2 does not.
    rm -rf vendor/github.com/modern-go/reflect2
    cp -r "$unpacked/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
    rm -rf "$cache/source"
}

# The one file that Debian's tarball leaves out, as build/root/Makefile.generated_files makes it.
generate_openapi() {
    local gopath=$1 dirs
    go build -o "$bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen || return
    dirs=$(find -L cmd pkg plugin vendor/k8s.io -name '*.go' -not -name '*_test.go' -print0 2>/dev/null |
        xargs -0 grep -l '+k8s:openapi-gen=' |
        grep -vE '^vendor/k8s.io/(code-generator|sample-apiserver|sample-controller|gengo|kube-openapi)/|/testdata/' |
        xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
    "$bin/openapi-gen" -i "$dirs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
        -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$cache/violations.report" -o "$gopath/src"
    rm -f "$bin/openapi-gen" "$cache/violations.report"
}

one_program() {
    cat <<'END'
package main

import (
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	rand.Seed(time.Now().UnixNano())
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 kubelet.NewKubeletCommand,
	}
	command := commands[filepath.Base(os.Args[0])]
	logs.InitLogs()
	defer logs.FlushLogs()
	if command == nil || command().Execute() != nil {
		os.Exit(1)
	}
}
END
}

compile() {
    local gopath=$cache/gopath package flags=
    fetch_source "$gopath" || return
    cd "$gopath/src/k8s.io/kubernetes"
    export GOROOT=$unpacked/usr/lib/go-1.19 GOPATH=$gopath GOCACHE=$cache/gocache GO111MODULE=off CGO_ENABLED=0 GOFLAGS=-p=2
    export PATH=$GOROOT/bin:$PATH
    mkdir -p "$bin" cmd/hyper
    [ -s pkg/generated/openapi/zz_generated.openapi.go ] || generate_openapi "$gopath" || return
    one_program >cmd/hyper/main.go
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        for package in "$package" "k8s.io/kubernetes/vendor/$package"; do
            flags+=" -X $package.gitVersion=v1.20.2 -X $package.gitMajor=1 -X $package.gitMinor=20"
        done
    done
    echo "compiling …"
    nice -n 10 go build -tags providerless,dockerless,netgo,osusergo -ldflags "-s -w$flags" \
        -o "$bin/hyper" ./cmd/hyper || return
    for package in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
        ln -sf hyper "$bin/$package"
    done
    cd "$cache" && rm -rf "$gopath" "$GOCACHE"
}

build() {
    [ -x "$unpacked/usr/bin/etcd" ] || step packages.log "unpacking etcd, Go and others (once) …" unpack_packages
    need containerd=containerd runc=runc iptables=iptables ip=iproute2 openssl=openssl patch=patch xz=xz-utils || return
    [ -x "$bin/kubelet" ] || step build.log "building Kubernetes from Debian's sources (once, 5 minutes) …" compile
}

# --- images -----------------------------------------------------------------------------------

# Two images of Debian's static busybox, as `docker save` would write them.
make_images() {
    [ -s "$cache/images.tar" ] || python3 - "$unpacked/bin/busybox" "$cache/images.tar" <<'END'
import hashlib, io, json, platform, sys, tarfile

TOOLS = "sh ls cat echo true false sleep wget httpd dmesg id ps env hostname uname touch rm tail head"


def add(archive, name, data=b"", mode=0o644, **about):
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    for key, value in about.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(data))


buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w") as archive:
    for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
        add(archive, name, mode=0o1777 if name == "tmp" else 0o755, type=tarfile.DIRTYPE)
    add(archive, "bin/busybox", open(sys.argv[1], "rb").read(), 0o755)
    for name in TOOLS.split():
        add(archive, f"bin/{name}", type=tarfile.SYMTYPE, linkname="busybox")
    add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
layer = buffer.getvalue()
digest = hashlib.sha256(layer).hexdigest()
arch = {"aarch64": "arm64", "x86_64": "amd64"}[platform.machine()]
with tarfile.open(sys.argv[2], "w") as out:
    add(out, f"{digest}/layer.tar", layer)
    manifest = []
    for tag, command in (
        ("k8s.local/pause:1", ["/bin/sleep", "2000000000"]),
        ("k8s.local/busybox:1", ["/bin/sleep", "3600"]),
    ):
        config = json.dumps(
            {
                "architecture": arch,
                "os": "linux",
                "config": {"Cmd": command, "Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{}],
            }
        ).encode()
        name = hashlib.sha256(config).hexdigest() + ".json"
        add(out, name, config)
        manifest.append({"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]})
    add(out, "manifest.json", json.dumps(manifest).encode())
END
}

# The image of boxes, out of the engine that scripts/engine.sh finds.
save_box_image() {
    local wanted
    eval "$("$root/scripts/engine.sh" env | grep '^export DOCKER_HOST=')"
    if ! wanted=$(docker image inspect -f '{{.Id}}' "$box_image" 2>/dev/null); then
        [ -s "$cache/box.tar" ] || say "no $box_image in a Docker engine: run scripts/engine.sh up first, then this again"
        return
    fi
    [ "$(cat "$cache/box.id" 2>/dev/null)" = "$wanted" ] && [ -s "$cache/box.tar" ] && return
    step save.log "taking $box_image from the engine …" docker save -o "$cache/box.tar" "$box_image"
    echo "$wanted" >"$cache/box.id"
}
