#!/bin/sh
# Writes .env from .env.example, with new keys. An .env that is there already is left alone.
set -eu
cd "$(dirname "$0")"

if [ -e .env ]; then
    echo "new-env: .env is there already; remove it for new keys" >&2
    exit 1
fi

key() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

socket=${DOCKER_SOCK:-/var/run/docker.sock}
[ -S "$socket" ] || { echo "new-env: no engine at $socket; name its socket: DOCKER_SOCK=… $0" >&2; exit 1; }

umask 077
sed -e "s|^SANDBOX_API_KEYS=.*|SANDBOX_API_KEYS=default:$(key)|" \
    -e "s|^SANDBOX_FLEET_KEY=.*|SANDBOX_FLEET_KEY=$(key)|" \
    -e "s|^REDIS_PASSWORD=.*|REDIS_PASSWORD=$(key)|" \
    -e "s|^DOCKER_GID=.*|DOCKER_GID=$(stat -c %g "$socket")|" \
    -e "s|^DOCKER_SOCK=.*|DOCKER_SOCK=$socket|" \
    .env.example >.env
echo "new-env: wrote .env; callers' key is what follows default: in SANDBOX_API_KEYS" >&2
