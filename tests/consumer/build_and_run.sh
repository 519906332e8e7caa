#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# build_and_run.sh BUILD_DIR PROGRAM CONFIGURE...: configures and builds a project from nothing, and
# runs a program of it.
set -euo pipefail
build=$1 program=$2
shift 2
rm -rf "$build"
"$@"
cmake --build "$build" -j2
# The program's arguments come in one word each: none has a space.
# shellcheck disable=SC2086
exec "$build"/$program
