#!/bin/sh
# bench_test.sh SLUICE CUBLAS: the benchmark's GPU part on the simulated GPU: graphs, plain launches, single
# pairs, samples, profile, late ranks, and operations by halves with a GEMM of nothing between them. Its figures mean nothing there; what it leaves is checked.
set -eu
sluice=$1
cublas=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

count() { grep -c "$1" "$2" || true; }

# Enough tokens and multiprocessors for a grid with all roles. A row for every rank, way and operation of the two
# iterations, and for every single pair; every phase was there.
for mode in latency throughput; do
  tokens=72
  processors=8
  [ $mode = latency ] || { tokens=40; processors=4; }
  SLUICE_SIMULATOR_PROCESSORS=$processors "$sluice" bench --engine cuda --ranks 2 --tokens $tokens \
    --hidden 256 --experts 16 --iterations 2 --warmup 0 --sets 2 --chain 2 --mode $mode --check --deadline 100 --singles 3 --combines --late 50 --samples "$folder/samples.csv" \
    --profile "$folder/profile" >"$folder/table"
  cat "$folder/table"
  grep -q '# OK: every value is right' "$folder/table"
  grep -q '# having waited 50 us for one rank: dispatch [+-][0-9.]*, combine [+-][0-9.]*, pair [+-][0-9.]* us,' \
    "$folder/table"

  [ "$(count 'sluice, graph",pair,' "$folder/samples.csv")" = 4 ]
  [ "$(count 'stream",dispatch,' "$folder/samples.csv")" = 4 ]
  [ "$(count 'graph",one pair,' "$folder/samples.csv")" = 6 ]
  [ "$(count 'graph",combine alone,' "$folder/samples.csv")" = 4 ]
  grep -q '# sluice, graph: combines alone: min [0-9.]*, p50 [0-9.]*,' "$folder/table"
  [ "$(count 'all late, graph",pair,' "$folder/samples.csv")" = 4 ]
  [ "$(count 'one late, graph",pair,' "$folder/samples.csv")" = 4 ]

  roles="herald keeper worker"
  [ $mode = latency ] || roles=worker
  for rank in 0 1; do
    file=$folder/profile/rank$rank.json
    for role in $roles; do grep -q "\"role\":\"$role\"" "$file"; done
    for phase in quantise put count wait place sum; do
      grep -q "\"name\":\"$phase\"" "$file" || { echo "$mode, rank $rank: no phase $phase"; exit 1; }
    done
    grep -q '"sm":' "$file"
    tail -n 1 "$file" | grep -q '^]}$'
  done
done

# x as rows of fp8 with their scales.
"$sluice" bench --engine cuda --ranks 2 --tokens 8 --hidden 256 --experts 16 --iterations 1 --warmup 0 --sets 1 \
  --chain 2 --mode throughput --encoded --check --deadline 100 >"$folder/table"
grep -q 'x (encoded)' "$folder/table"
grep -q '# OK: every value is right' "$folder/table"

"$sluice" bench --engine cuda --ranks 3 --tokens 8 --hidden 256 --experts 16 --iterations 2 --warmup 0 --sets 1 \
  --chain 2 --launch stream --check --deadline 100 --gemm 64,32,16 --cublas "$cublas" --json "$folder/gemm.json" \
  --samples "$folder/samples.csv" >"$folder/table"
cat "$folder/table"
grep -q '# OK: every value is right' "$folder/table"
grep -q 'halves of an operation: 64 x 32 x 16, bf16, cuBLAS 13.1.2,' "$folder/table"
for part in alone between late halves whole call beside with both; do
  [ "$(count "\"gemm\",dispatch $part," "$folder/samples.csv")" = 6 ]
  [ "$(count "\"gemm\",combine $part," "$folder/samples.csv")" = 6 ]
done
[ "$(count '"late_slowed_percent"' "$folder/gemm.json")" = 2 ]
[ "$(count '"with_slowed_percent"' "$folder/gemm.json")" = 2 ]
grep -q '# the same GEMM on a stream of its own' "$folder/table"

# On two nodes, which share no memory.
SLUICE_NETWORK_PATIENCE_MS=60000 "$sluice" bench --engine cuda --ranks 3 --nodes 2 --tokens 8 --hidden 256 \
  --experts 16 --iterations 2 --warmup 0 --sets 1 --chain 2 --check --deadline 100 --json "$folder/nodes.json" \
  >"$folder/table"
cat "$folder/table"
grep -q '# OK: every value is right' "$folder/table"
[ "$(count '^# [a-z]* staged: .* times the bare way$' "$folder/table")" = 3 ]
[ "$(count 'the bare way of a [a-z]*, in ' "$folder/table")" = 6 ]
[ "$(count '"times_staged_floor"' "$folder/nodes.json")" = 3 ]
[ "$(count '"times_bare_way"' "$folder/nodes.json")" = 3 ]
[ "$(count '"bare_way_us": 0' "$folder/nodes.json")" = 0 ]
