#!/bin/sh
# Makes the Secret of the chart with new keys: new-secret.sh NAMESPACE [NAME]. One that is there
# already is left alone. No key is written to the terminal, to a file or into arguments.
set -eu
namespace=${1:?usage: new-secret.sh NAMESPACE [NAME]}
name=${2:-agent-sandbox-keys}

key() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

kubectl --namespace "$namespace" create -f - <<END
apiVersion: v1
kind: Secret
metadata:
  name: $name
stringData:
  api-keys: "default:$(key)"
  fleet-key: "$(key)"
  redis-password: "$(key)"
END
echo "new-secret: callers' key is what follows default: in api-keys of the Secret $name" >&2
