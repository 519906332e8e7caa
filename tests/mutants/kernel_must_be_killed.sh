#!/bin/sh
# kernel_must_be_killed.sh MUTANT TEST [ARGUMENTS]: succeeds if the test fails with the kernel mutant.
mutant=$1
shift
SLUICE_KERNEL_MUTANT=$mutant timeout --kill-after=5 200 "$@"
status=$?
case $status in
  0) echo "$mutant survived"; exit 1 ;;
  1) echo "$mutant killed: a test failed" ;;
  134 | 136 | 138 | 139) echo "$mutant killed: it aborted or crashed (exit status $status)" ;;
  124 | 137) echo "$mutant hung: no deadline of the library ended it (timeout)"; exit 1 ;;
  *) echo "$mutant: exit status $status, expected 1 or a signal"; exit 1 ;;
esac
