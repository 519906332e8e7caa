#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# model/check.sh must not pass what it did not prove: each case spoils one thing and expects a failure.
# usage: check_script_test.sh MODEL_DIR WORK_DIR
set -u
model=$1 work=$2
rm -rf "$work" && mkdir -p "$work" || exit 1
failures=0

# expect NAME STATUS TEXT: runs the spoilt copy and compares its exit status and what it says.
expect() {
  local name=$1 status=$2 text=$3 output seen
  output=$("$work/model/check.sh" --work "$work/searches" narrow_banks 2>&1)
  seen=$?
  if [[ $status == 1 && $seen == 77 ]]; then echo "$output"; exit 77; fi
  if [[ $seen == "$status" && $output == *"$text"* ]]; then
    echo "ok    $name"
  else
    echo "WRONG $name: expected status $status and '$text', seen status $seen and:"
    echo "$output"
    failures=$((failures + 1))
  fi
}
# A copy of the files themselves, never of a link to them: the original must stay as it is.
fresh() { rm -rf "$work/model" && mkdir "$work/model" && cp "$model"/* "$work/model/"; }
spoil() { sed -i "$2" "$work/model/$1"; }

fresh; spoil scenarios.txt '/^narrow_banks /s/OPS=7/OPS=5 MUTANT_NO_GUARD/'
expect 'a broken protocol' 1 'MODEL FAILED'
fresh; spoil scenarios.txt '/^narrow_banks /{s/holds/payload/;s/OPS=7/OPS=3/}'
expect 'a mutant that survives' 1 'MODEL FAILED'
fresh; spoil scenarios.txt '/^narrow_banks /{s/holds/deadlock/;s/OPS=7/OPS=5 MUTANT_NO_GUARD MUTANT_NEWER_EPOCH/}'
expect 'a mutant that fails otherwise than expected' 1 'MODEL FAILED'
fresh; spoil halves.pml 's/^inline send_half/inline send half/'
expect 'a model that spin refuses' 1 'spin failed'
fresh; spoil check.sh 's/^depth_steps_max=.*/depth_steps_max=40/'
expect 'a search that is not deep enough' 1 'cut short'
fresh
# shellcheck disable=SC2016
spoil check.sh 's/-n -m\$depth/-n -A -m$depth/'
expect 'a search that ignores assertions' 1 'did not check'
fresh; spoil check.sh 's/^memory_mib_max=.*/memory_mib_max=130/'
expect 'a search out of memory' 1 'MODEL FAILED'
fresh; spoil check.sh 's/command -v spin/command -v no-such-spin/'
expect 'no spin' 77 'SKIPPED'

exit $((failures > 0))
