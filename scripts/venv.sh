#!/usr/bin/env bash
# Makes .venv and installs the project into it, at the pinned versions.
#
#   venv.sh server    what a server needs
#   venv.sh dev       that, and the tools of contributors
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
extra=${1:-dev}
. scripts/progress.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
    echo "setup: $*" >&2
    exit 1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "$python is missing or older than 3.11; name a newer one: make PYTHON=python3.12 …"

if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    # Debian ships venv apart from python.
    fix="apt-get install python3-venv"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "$python cannot make a venv; as root: $fix"
    echo "setup: installing python3-venv …"
    export DEBIAN_FRONTEND=noninteractive
    # One apt-get at a time: engine.sh may be at it too.
    with_progress "$log" flock /run/agent-sandbox-apt.lock \
        sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv' \
        </dev/null || { tail -n 20 "$log" >&2; fail "$fix did not work"; }
fi

# A venv that was cut short has no working pip: begin again.
.venv/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf .venv && "$python" -m venv .venv; }

echo "setup: installing into .venv, which takes a minute the first time …"
with_progress "$log" .venv/bin/python -m pip install --progress-bar off --disable-pip-version-check \
    -c constraints.txt -e ".[$extra]" || { tail -n 20 "$log" >&2; fail "pip install did not work"; }
echo "setup: done"
