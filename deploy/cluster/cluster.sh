#!/bin/sh
# Three nodes of a Mooncake Store cluster on this machine, on loopback, under one supervisord. Ends when it is told to (TERM, INT).
#
#   CLUSTER_DIR          sockets, logs, the configuration file (default $XDG_RUNTIME_DIR or /tmp, then mooncake-cluster)
#   CLUSTER_MOONCAKE     programs of Mooncake's wheel, and supervisord (default: where supervisord is in PATH)
#   CLUSTER_SIDECAR      mooncake-lookupd and mooncake-worker (default: as above)
#   CLUSTER_SEGMENT      memory that each storage node lends (default 1GB)
#   CLUSTER_STORE_BYTES  shared memory of each node's own store (default 256MiB)
#   CLUSTER_MASTER_PORT, CLUSTER_METRICS_PORT  the master's (default 50051, 9003)
#   CLUSTER_EVENTS_PORT  where the master publishes its KV events, for a master that is built with them (default: it does not)
#   CLUSTER_STORE_PORTS  storage nodes' ports without their last digit (default 5006)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
found=$(command -v supervisord || true)
CLUSTER_DIR=${CLUSTER_DIR:-${XDG_RUNTIME_DIR:-/tmp}/mooncake-cluster}
CLUSTER_MOONCAKE=${CLUSTER_MOONCAKE:-$(dirname "$found")}
CLUSTER_SIDECAR=${CLUSTER_SIDECAR:-$CLUSTER_MOONCAKE}
CLUSTER_SEGMENT=${CLUSTER_SEGMENT:-1GB}
CLUSTER_STORE_BYTES=${CLUSTER_STORE_BYTES:-256MiB}
CLUSTER_MASTER_PORT=${CLUSTER_MASTER_PORT:-50051}
CLUSTER_METRICS_PORT=${CLUSTER_METRICS_PORT:-9003}
CLUSTER_STORE_PORTS=${CLUSTER_STORE_PORTS:-5006}
CLUSTER_EVENTS=
if [ -n "${CLUSTER_EVENTS_PORT:-}" ]; then
	export MOONCAKE_SIDECAR_MOONCAKE_EVENTS="tcp://127.0.0.1:$CLUSTER_EVENTS_PORT"
	CLUSTER_EVENTS="--enable_kv_events=true --kv_events_backend_id=cluster --kv_events_bind_endpoint=$MOONCAKE_SIDECAR_MOONCAKE_EVENTS"
fi
export CLUSTER_DIR CLUSTER_MOONCAKE CLUSTER_SIDECAR CLUSTER_SEGMENT CLUSTER_MASTER_PORT CLUSTER_METRICS_PORT CLUSTER_STORE_PORTS CLUSTER_EVENTS

for program in "$CLUSTER_MOONCAKE/supervisord" "$CLUSTER_MOONCAKE/mooncake_master" "$CLUSTER_MOONCAKE/mooncake_client" \
	"$CLUSTER_SIDECAR/mooncake-lookupd" "$CLUSTER_SIDECAR/mooncake-worker"; do
	[ -x "$program" ] || { echo "cluster.sh: no $program (CLUSTER_MOONCAKE, CLUSTER_SIDECAR)" >&2; exit 1; }
done

# The daemons refuse a directory that others may enter.
umask 077
mkdir -p "$CLUSTER_DIR/node-1" "$CLUSTER_DIR/node-2" "$CLUSTER_DIR/node-3"
sed "s/127.0.0.1:50051/127.0.0.1:$CLUSTER_MASTER_PORT/" "$here/mooncake.json" >"$CLUSTER_DIR/mooncake.json"

# What lookupd and Mooncake's client in its side process read.
export MOONCAKE_CONFIG_PATH="$CLUSTER_DIR/mooncake.json" MOONCAKE_REQUESTER_LOCAL_HOSTNAME=127.0.0.1 MC_TCP_BIND_ADDRESS=127.0.0.1
export MOONCAKE_SIDECAR_STORE=mooncake MOONCAKE_SIDECAR_STORE_PYTHON="$CLUSTER_MOONCAKE/python" MOONCAKE_SIDECAR_STORE_BYTES="$CLUSTER_STORE_BYTES"
exec "$CLUSTER_MOONCAKE/supervisord" -c "$here/supervisord.conf"
