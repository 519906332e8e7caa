#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# readme_code.sh README SOURCE: the README's first C++ block is, word for word, what stands between
# the marks in a source file that is built and run.
# shellcheck disable=SC2016
set -euo pipefail
in_readme=$(sed -n '/^```cpp$/,/^```$/p' "$1" | sed '/^```/d')
in_source=$(sed -n '/\[readme begin\]/,/\[readme end\]/p' "$2" | sed '1d;$d')
if [ -z "$in_readme" ] || [ -z "$in_source" ]; then
  echo "expected a C++ block in $1 and marks in $2"
  exit 1
fi
diff <(echo "$in_readme") <(echo "$in_source")
