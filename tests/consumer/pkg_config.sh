#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# pkg_config.sh COMPILER PREFIX WORK SOURCE VERSION: builds and runs a program with pkg-config only.
set -euo pipefail
compiler=$1 prefix=$2 work=$3 source=$4 version=$5
rm -rf "$work"
mkdir -p "$work"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name sluice.pc)")
export PKG_CONFIG_PATH
seen=$(pkg-config --modversion sluice)
if [ "$seen" != "$version" ]; then
  echo "pkg-config says version $seen, expected $version"
  exit 1
fi
# Flags are words by design.
# shellcheck disable=SC2046
"$compiler" -std=c++20 -O2 -o "$work/consumer" "$source" $(pkg-config --cflags --libs sluice) \
  -Wl,-rpath,"$(pkg-config --variable=libdir sluice)"
exec "$work/consumer"
