#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the protocol's model: searches every scenario of scenarios.txt exhaustively with spin and
# compares the verdict with the expected one. Anything else, a tool's failure included, is a failure.
set -u -o pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
table=$here/scenarios.txt
work=$here/../build/model
depth_steps_max=20000
memory_mib_max=1900
search_seconds_max=180
status_skipped=77

usage() {
  cat <<TEXT
usage: model/check.sh [--list] [--work DIR] [--trace] [NAME...]
  NAME        scenarios to check (default: all of scenarios.txt)
  --list      print the names and what they show
  --work DIR  where searches are built (default: build/model); one folder per scenario is left there
  --trace     print the run that was found where one breaks a property
Exit status: 0 all as expected, 1 something was not, 2 wrong usage,
             $status_skipped spin or a C compiler is missing.
TEXT
}

trim() {
  local text=$1
  text=${text#"${text%%[![:space:]]*}"}
  printf "%s" "${text%"${text##*[![:space:]]}"}"
}

names=()
declare -A expected options shows
read_table() {
  local line name verdict what
  while IFS= read -r line; do
    [[ -z $line || $line == \#* ]] && continue
    IFS='|' read -r name verdict opts what <<<"$line"
    name=$(trim "$name") verdict=$(trim "$verdict")
    if [[ -n ${expected[$name]:-} ]]; then
      echo "scenarios.txt: $name is named twice" >&2; exit 2
    fi
    case $verdict in holds | payload | deadlock | blocks | suspicion | stays) ;; *)
      echo "scenarios.txt: $name: expected one of the six verdicts, seen '$verdict'" >&2; exit 2 ;;
    esac
    names+=("$name")
    expected[$name]=$verdict
    options[$name]=$(trim "$opts")
    shows[$name]=$(trim "$what")
  done <"$table"
}

# The options of a scenario as compiler definitions, those of its base first; one that names a file is its model.
defines=()
resolve() {
  local word
  for word in ${options[$1]}; do
    if [[ $word == +* ]]; then
      if [[ -z ${expected[${word#+}]:-} ]]; then
        echo "scenarios.txt: $1: no scenario ${word#+}" >&2; exit 2
      fi
      resolve "${word#+}"
    elif [[ $word == *.pml ]]; then
      model=$word
    else
      defines+=("-D$word")
    fi
  done
}

# Sets `verdict` (holds, a broken property, or a sentence that says what went wrong) and the figures.
search() {
  local name=$1 flags=() status
  local folder=$work/$name
  verdict='' states=- seconds=- memory=-
  defines=() model=protocol.pml
  resolve "$name"
  if ! { rm -rf "$folder" && mkdir -p "$folder"; }; then verdict="no folder $folder"; return; fi
  if ! (cd "$folder" && spin -a "${defines[@]}" "$here/$model") >"$folder/spin.log" 2>&1 ||
    [[ ! -s $folder/pan.c ]]; then
    verdict="spin failed: $(tail -n 1 "$folder/spin.log")"; return
  fi
  # Where something is found it is found soon: to optimise the search takes longer than that.
  local level=-O0
  if [[ ${expected[$name]} == holds ]]; then level=-O1; fi
  # -w: the generated source is spin's, its warnings are not ours to mend.
  if ! (cd "$folder" && "$compiler" $level -w -DSAFETY -DCOLLAPSE -DMEMLIM=$memory_mib_max -o pan pan.c) \
    >"$folder/cc.log" 2>&1; then
    verdict="$compiler failed: $(tail -n 1 "$folder/cc.log")"; return
  fi
  case ${expected[$name]} in
    holds) ;;
    deadlock) flags=(-A) ;;             # only runs that do not end count
    *) flags=(-E) ;;                    # only assertions count
  esac
  (cd "$folder" && timeout "$search_seconds_max" ./pan -n -m$depth_steps_max "${flags[@]}") \
    >"$folder/pan.log" 2>&1
  status=$?
  local log=$folder/pan.log
  states=$(awk '/states, stored/ { print $1; exit }' "$log")
  memory=$(awk '/total actual memory usage/ { print $1; exit }' "$log")
  seconds=$(awk '/pan: elapsed time/ { print $4; exit }' "$log")
  if ((status != 0)); then
    verdict="the search ended with status $status: $(tail -n 1 "$log")"; return
  fi
  if grep -q -e 'max search depth too small' -e 'out of memory' -e 'MEMLIM bound' "$log"; then
    verdict="the search was cut short: $(grep -m 1 -e 'too small' -e memory -e MEMLIM "$log")"; return
  fi
  if [[ -z $states || -z $seconds ]]; then verdict="the search printed no figures"; return; fi
  if grep -qE '^State-vector [0-9]+ byte, depth reached [0-9]+, errors: 0$' "$log"; then
    if grep -q 'Search not completed' "$log"; then
      verdict='the search was not completed'
    elif [[ ${expected[$name]} == holds ]] && ! { grep -qE '^\s+assertion violations\s+\+' "$log" &&
      grep -qE '^\s+invalid end states\s+\+' "$log"; }; then
      verdict='the search did not check assertions and end states'
    else
      verdict=holds
    fi
    return
  fi
  local error
  error=$(grep -m 1 '^pan:[0-9]*: ' "$log")
  case $error in
    *'invalid end state'*) verdict=deadlock ;;
    *'assertion violated'*'dead['*) verdict=suspicion ;;
    *'assertion violated'*'payload['* | *'assertion violated'*'seen==epoch'*) verdict=payload ;;
    *'assertion violated'*'told['*) verdict=blocks ;;
    *'assertion violated'*settled*) verdict=stays ;;
    *) verdict="neither a clean search nor a known error: ${error:-$(tail -n 1 "$log")}" ;;
  esac
}

trace=false wanted=()
read_table
while (($#)); do
  case $1 in
    --list) for name in "${names[@]}"; do printf '%-26s %-10s %s\n' "$name" "${expected[$name]}" "${shows[$name]}"; done; exit 0 ;;
    --work) [[ $# -gt 1 ]] || { usage >&2; exit 2; }; work=$2; shift ;;
    --trace) trace=true ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) [[ -n ${expected[$1]:-} ]] || { echo "no scenario '$1' (see --list)" >&2; exit 2; }; wanted+=("$1") ;;
  esac
  shift
done
((${#wanted[@]})) || wanted=("${names[@]}")

compiler=''
for candidate in ${CC:-} cc gcc clang; do
  if command -v "$candidate" >/dev/null; then compiler=$candidate; break; fi
done
if ! command -v spin >/dev/null || [[ -z $compiler ]]; then
  echo "model: SKIPPED: spin and a C compiler are needed (Debian: apt-get install spin gcc)"
  exit $status_skipped
fi
mkdir -p "$work" || exit 1
work=$(cd "$work" && pwd)

echo "# $(spin -V | head -n 1), $compiler; exhaustive search, states kept exactly (collapse compression)"
printf '# %-7s %-26s %-10s %-10s %10s %8s %8s\n' '' scenario expected seen states seconds MiB
wrong=() total_states=0 began=$SECONDS number=0
for name in "${wanted[@]}"; do
  number=$((number + 1))
  printf '[%2d/%2d]  %-26s %-10s ' "$number" "${#wanted[@]}" "$name" "${expected[$name]}"
  search "$name"
  if [[ $verdict == "${expected[$name]}" ]]; then mark=ok; else mark='WRONG'; wrong+=("$name"); fi
  printf '%-10s %10s %8s %8s  %s\n' "$verdict" "${states:--}" "${seconds:--}" "${memory:--}" "$mark"
  if [[ ${states:-} =~ ^[0-9]+$ ]]; then total_states=$((total_states + states)); fi
  if $trace && compgen -G "$work/$name/*.trail" >/dev/null; then
    (cd "$work/$name" && spin -t -p -g -k ./*.trail "${defines[@]}" "$here/$model")
  fi
done

if ((${#wrong[@]})); then
  echo "MODEL FAILED: ${#wrong[@]} of ${#wanted[@]} scenarios are not as expected: ${wrong[*]} (logs: build folder of each)"
  exit 1
fi
echo "MODEL OK: ${#wanted[@]} scenarios as expected, $total_states states, $((SECONDS - began)) s"
