#!/bin/sh
# SPDX-License-Identifier: MIT
#
# launched_nodes_test.sh SLUICE MOE_LAYER [MPIRUN]: the benchmark, and the MoE layer, as four ranks that a launcher has
# started on two nodes, which share no memory. Every value is right, what lies between nodes is measured, and who
# cannot go on ends all others.
set -eu
sluice=$1
moe_layer=$2
mpirun=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SLUICE_NETWORK_ADDRESS=127.0.0.1
# Where other tests want the processors, too.
export SLUICE_NETWORK_PATIENCE_MS=60000
bench="$sluice bench --tokens 8 --hidden 256 --experts 12 --iterations 3 --warmup 1 --sets 2"

any_port() { port=$(($(od -An -N2 -tu2 /dev/urandom) % 12000 + 20000)); }
# Rank and size of a launcher, nodes by name. RANK NODE ARGUMENTS...
rank() {
  number=$1 node=$2
  shift 2
  # shellcheck disable=SC2086  # Several words.
  env $variables SLUICE_RANK="$number" SLUICE_SIZE=4 SLUICE_RENDEZVOUS="tcp:127.0.0.1:$port" SLUICE_NODE="$node" \
    $program "$@" >"$folder/out.$number" 2>"$folder/errors.$number"
}
# The statuses of four ranks on the nodes of $1, in order; more arguments are those of $program. The last rank gets $last
# besides, and the variables $last_variables, the others $others.
last='' others='' last_variables=''
run() {
  nodes=$1
  shift
  any_port
  processes='' number=0
  for node in $nodes; do
    more=$others variables=
    if [ "$number" = 3 ]; then more=$last variables=$last_variables; fi
    # shellcheck disable=SC2086  # Several words, or none.
    rank "$number" "$node" "$@" $more &
    processes="$processes $!"
    number=$((number + 1))
  done
  statuses=
  for process in $processes; do
    status=0
    wait "$process" || status=$?
    statuses="$statuses$status "
  done
  cat "$folder"/out.* "$folder"/errors.*
}

program=$bench
run 'a a b b' --check --json "$folder/result.json"
[ "$statuses" = '0 0 0 0 ' ]
grep -q '# 4 ranks on 2 nodes' "$folder/out.0"
grep -q '# OK: every value is right' "$folder/out.0"
grep -q 'network' "$folder/result.json"
[ ! -s "$folder/out.1" ] && [ ! -s "$folder/out.2" ] && [ ! -s "$folder/out.3" ]

run 'a b a b'
[ "$statuses" = '2 2 2 2 ' ]
grep -q 'expected nodes 0,0,1,1, seen 0,1,0,1' "$folder/errors.0"

run 'a a b b' --nodes 3
[ "$statuses" = '2 2 2 2 ' ]
grep -q -e "--nodes is 3, but the launcher's ranks are on 2" "$folder/errors.3"

# One cannot write its profile: the others, of both nodes, do not wait for it.
last="--profile $folder/out.0/nowhere" others="--profile $folder/profiles"
run 'a a b b'
last='' others=''
[ "$statuses" = '2 2 2 2 ' ]
grep -q 'cannot create' "$folder/errors.3"
grep -q 'rank 3 gave up: cannot create' "$folder/errors.2"
grep -q 'node 1 gave up' "$folder/errors.0"

# One puts other messages than the others do, has more of them under way, or is more patient.
last_variables=SLUICE_NETWORK_MESSAGE_ROWS=8
run 'a a b b'
grep -q 'rank 0 puts 64 rows a message and 524288 bytes a chunk, with a patience of 60000 ms, rank 3 puts 8 rows' \
  "$folder/errors.0"
[ "$statuses" = '2 2 2 2 ' ]
# Its memory would be used again before it stops taking what comes.
last_variables=SLUICE_NETWORK_PATIENCE_MS=5000
run 'a a b b'
grep -q 'with a patience of 60000 ms, rank 3 puts .* with a patience of 5000 ms' "$folder/errors.0"
[ "$statuses" = '2 2 2 2 ' ]
last_variables=SLUICE_NETWORK_CREDITS=8
run 'a a b b'
grep -q 'window 256.*window 8' "$folder/errors.0"
[ "$statuses" = '2 2 2 2 ' ]
last_variables='SLUICE_NETWORK=tcp;ofi_rxm'
run 'a a b b'
grep -q 'uses provider net,.*uses provider tcp;ofi_rxm,' "$folder/errors.0"
[ "$statuses" = '2 2 2 2 ' ]
last_variables=

program=$moe_layer
run 'a a b b' --layers 1
[ "$statuses" = '0 0 0 0 ' ]
grep -q 'PASS: every run agrees' "$folder/out.0"

if [ -z "$mpirun" ]; then
  echo "without mpirun: it was not found"
  exit 0
fi
any_port
# shellcheck disable=SC2016,SC2086  # The rank's own variable; several words.
"$mpirun" -n 4 --oversubscribe --allow-run-as-root --bind-to none -x SLUICE_RENDEZVOUS="tcp:127.0.0.1:$port" \
  sh -c 'SLUICE_NODE=$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"' sh \
  $bench --check >"$folder/table" 2>&1 || {
  cat "$folder/table"
  exit 1
}
cat "$folder/table"
grep -q '# 4 ranks on 2 nodes' "$folder/table"
grep -q '# OK: every value is right' "$folder/table"
