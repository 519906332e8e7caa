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
if pgrep -f 'orted.*10\.77\.' >/dev/null; then
  echo "a daemon of MPI still runs"
  exit 1
fi
