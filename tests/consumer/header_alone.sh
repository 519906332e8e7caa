#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# header_alone.sh COMPILER INCLUDE_DIR HEADER: the header compiles alone, and twice in one file.
set -euo pipefail
printf '#include "%s"\n#include "%s"\n' "$3" "$3" |
  "$1" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror \
    -fsyntax-only -I "$2" -x c++ -
