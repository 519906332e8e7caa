#!/bin/sh
# SPDX-License-Identifier: MIT
#
# info_test.sh SLUICE: `sluice info` as one rank of a launcher's world: the first rank alone prints the paths between all.
set -eu
sluice=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

export SLUICE_SIZE=3 SLUICE_RENDEZVOUS="unix:sluice-info-test-$$"
ranks=
for rank in 2 1 0; do
  SLUICE_RANK=$rank SLUICE_NODE=node$((rank / 2)) "$sluice" info >"$folder/$rank" &
  ranks="$ranks $!"
done
failed=0
for process in $ranks; do wait "$process" || failed=1; done
cat "$folder/0"
[ $failed = 0 ]
grep -q 'paths         3 ranks on 2 nodes' "$folder/0"
grep -q 'rank 0 X  *SHM  *NET  *0 ' "$folder/0"
grep -q 'rank 2 NET  *NET:0  *X  *1 ' "$folder/0"
[ ! -s "$folder/1" ]
[ ! -s "$folder/2" ]

unset SLUICE_SIZE SLUICE_RENDEZVOUS
"$sluice" info --ranks 4 --nodes 2 --json | grep -q '"rail_peer": 2'
if "$sluice" info --ranks 2 --nodes 3; then exit 1; fi
