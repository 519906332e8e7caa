#!/bin/sh
# SPDX-License-Identifier: MIT
#
# mpi_on_nodes_test.sh SLUICE: the benchmark beside its MPI peer on two nodes of namespaces. Every value is
# right, MPI goes over the network between nodes and not within one, and nothing stays behind.
set -eu
sluice=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

status=0
"$sluice" bench --nodes 2 --ranks 3 --netns --peer mpi --tokens 8 --hidden 256 --experts 12 --iterations 2 --warmup 1 \
  --sets 1 --check --watchdog 100 --json "$folder/result.json" >"$folder/table" 2>"$folder/errors" || status=$?
cat "$folder/table" "$folder/errors"
if grep -q 'no namespaces' "$folder/errors"; then exit 77; fi
# 3: the comparison is void, as it may well be for so small a case.
[ "$status" = 0 ] || [ "$status" = 3 ]
grep -q '# OK: every value is right' "$folder/table"
grep -q '# peer: pairs of ranks that MPI takes over eth0 0-2 1-2; not over it 0-1$' "$folder/table"
# Named outside, written from inside.
grep -q '"network_us"' "$folder/result.json"
if grep -q 'outside' "$folder/result.json"; then exit 1; fi
left() { pgrep -f '(mpirun|orted|sluice-bench-mpi).*10\.77\.' || true; }
if [ -n "$(left)" ]; then
  echo "a process of MPI still runs"
  exit 1
fi

# Nothing stays behind either when the command is killed while MPI runs.
"$sluice" bench --nodes 2 --ranks 3 --netns --peer mpi --tokens 8 --hidden 256 --experts 12 --iterations 1000000 \
  --sets 1 --watchdog 100 >"$folder/table" 2>&1 &
command=$!
tries=0
until pgrep -f 'orted.*10\.77\.' >/dev/null && pgrep -x sluice-bench-mp >/dev/null; do
  tries=$((tries + 1))
  if [ $tries = 600 ]; then
    cat "$folder/table"
    echo "MPI's ranks have not begun within 60 s"
    exit 1
  fi
  sleep 0.1
done
kill -KILL $command
wait $command || true
tries=0
while [ -n "$(left)" ]; do
  tries=$((tries + 1))
  if [ $tries = 100 ]; then
    echo "the command was killed, but there still runs, 10 s later:"
    left | xargs ps -o pid,ppid,stat,args -p
    exit 1
  fi
  sleep 0.1
done
