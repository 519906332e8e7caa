#!/bin/sh
# SPDX-License-Identifier: MIT
#
# sluice-bench-mpi-agent ADDRESS COMMAND...: as ssh, for Open MPI (plm_rsh_agent), to a node of
# `sluice bench --netns`, which is a set of namespaces of this machine. SLUICE_BENCH_NODES has a word for
# each: ADDRESS=NETWORK,HOST_NAME,MOUNTS, paths of them.
set -eu
address=$1
shift
paths=
for node in $SLUICE_BENCH_NODES; do
  [ "${node%%=*}" != "$address" ] || paths=${node#*=}
done
if [ -z "$paths" ]; then
  echo "sluice-bench-mpi-agent: no node $address in '$SLUICE_BENCH_NODES'" >&2
  exit 1
fi
network=${paths%%,*}
mounts=${paths##*,}
host_name=${paths#*,}
host_name=${host_name%,*}
export SLUICE_NETWORK_ADDRESS="$address"
# The command is for a shell, as ssh's is.
exec nsenter --net="$network" --uts="$host_name" --mount="$mounts" /bin/sh -c "$*"
