#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# exported_symbols.sh NM LIBRARY: the library exports sluice:: and nothing else.
set -euo pipefail
symbols=$("$1" --dynamic --defined-only --demangle "$2" | cut -d' ' -f3-)
if ! grep -q '^sluice::version()$' <<<"$symbols"; then
  echo "expected sluice::version() among the exported symbols, seen:"
  echo "$symbols"
  exit 1
fi
if foreign=$(grep -Ev '^(typeinfo (name )?for )?sluice::' <<<"$symbols"); then
  echo "expected only sluice:: symbols, seen also:"
  echo "$foreign"
  exit 1
fi
# The rooms inside the library are its own business.
rooms='api|base|numeric|trace|routing|codec|window|protocol|store|bootstrap|memory|engine|cpu|cuda'
if inner=$(grep -E "^(typeinfo (name )?for )?sluice::($rooms)::" <<<"$symbols"); then
  echo "expected no internal symbols, seen:"
  echo "$inner"
  exit 1
fi
echo "$(wc -l <<<"$symbols") symbols, all of the public API"
