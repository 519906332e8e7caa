#!/bin/sh
# same_list.sh VICTIM NAME...: the mutants for which tests are registered are those of the header.
victim=$1
shift
expected=$("$victim" --list) || exit 1
seen=$(printf '%s\n' "$@")
[ "$expected" = "$seen" ] && exit 0
echo "expected (src/base/mutants.hpp):"
echo "$expected"
echo "seen (registered when CMake ran):"
echo "$seen"
exit 1
