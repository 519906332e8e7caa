#!/bin/sh
# must_be_killed.sh VICTIM MUTANT [ARGUMENTS]: succeeds if the victim fails with the mutant, which is one of
# src/base/mutants.hpp or of src/engine/cuda/kernel_mutants.hpp; a victim knows one kind.
victim=$1
mutant=$2
shift 2
SLUICE_MUTANT=$mutant SLUICE_KERNEL_MUTANT=$mutant timeout --kill-after=5 240 "$victim" "$@"
status=$?
case $status in
  0) echo "$mutant survived"; exit 1 ;;
  1) echo "$mutant killed: a scenario was wrong (exit status 1)" ;;
  66) echo "$mutant killed: by the thread sanitizer (exit status 66)" ;;
  134) echo "$mutant killed: it aborted, by an assertion or by the watchdog of ranks that hung" ;;
  136 | 138 | 139) echo "$mutant killed: it crashed (exit status $status)" ;;
  124 | 137) echo "$mutant hung: no deadline of the library ended it (timeout)"; exit 1 ;;
  *) echo "$mutant: exit status $status, expected 1, 66 or a signal"; exit 1 ;;
esac
