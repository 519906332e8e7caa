#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# install.sh CMAKE BUILD_DIR WORK: installs the build, checks what came, and moves the tree, because
# a package that only works where it was built is none.
set -euo pipefail
cmake=$1 build=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/installed" >/dev/null
for wanted in 'libsluice.so' 'sluice.hpp' 'sluice-config.cmake' 'sluice-config-version.cmake' \
  'sluice-targets.cmake' 'sluice.pc' 'LICENSE'; do
  if [ -z "$(find "$work/installed" -name "$wanted")" ]; then
    echo "expected $wanted in the install tree, seen:"
    find "$work/installed"
    exit 1
  fi
done
mv "$work/installed" "$work/moved"
if leaked=$(grep -rlF -e "$work" -e "$build" "$work/moved" --include='*.cmake' --include='*.pc'); then
  echo "expected no absolute path in the package files, seen some in:"
  echo "$leaked"
  exit 1
fi
