#!/bin/sh
# SPDX-License-Identifier: MIT
#
# without_libfabric_test.sh MOE_LAYER: of a build without libfabric. Ranks of one node do not miss it; those of several are told.
set -eu
moe_layer=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
layer="timeout 60 $moe_layer --hidden 64 --experts 10 --width 32 --top-k 3 --layers 2 --steps 2 --tokens 37"

# shellcheck disable=SC2086  # Several words.
$layer --ranks 3

port=$(($(od -An -N2 -tu2 /dev/urandom) % 12000 + 20000))
export SLUICE_SIZE=2 SLUICE_RENDEZVOUS="tcp:127.0.0.1:$port"
# shellcheck disable=SC2086
SLUICE_RANK=1 SLUICE_NODE=b $layer >"$folder/1" 2>&1 &
status=0
# shellcheck disable=SC2086
SLUICE_RANK=0 SLUICE_NODE=a $layer >"$folder/0" 2>&1 || status=$?
other=0
wait "$!" || other=$?
cat "$folder/0" "$folder/1"
[ "$status" = 1 ]
[ "$other" = 1 ]
grep -q 'ranks on several nodes need libfabric, and Sluice was built without it' "$folder/0"
grep -q 'ranks on several nodes need libfabric, and Sluice was built without it' "$folder/1"
