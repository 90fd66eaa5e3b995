#!/usr/bin/env bash
# Fuzz one parser with libFuzzer, under ASan and UBSan, for so many minutes:
#
#   bench/fuzz.sh                   the targets
#   bench/fuzz.sh TARGET MINUTES    e.g. bench/fuzz.sh pg 30
#
# What it learns is kept in .cache/fuzz/TARGET for the next run; an input that fails is written there
# too, as crash-…. Run it alone: bench/fuzz.sh TARGET FILE.
set -euo pipefail
cd "$(dirname "$0")/.."

folder_of() {
  for folder in native relay; do
    [[ ! -e "$folder/tests/fuzz_$1.c" ]] || printf '%s\n' "$folder"
  done
}

if (($# != 2)); then
  find native/tests relay/tests -name 'fuzz_*.c' | sed 's/.*fuzz_//; s/\.c$//' | sort
  exit
fi
folder="$(folder_of "$1")"
[[ -n "$folder" ]] || { printf 'error: no target %s\n' "$1" >&2 && exit 1; }
case "$folder" in
  native) built="$folder/build/fuzz" variables=(CC=clang) ;;
  *) built="$folder/build/clang/sanitized" variables=(CC=clang BUILD=build/clang) ;;
esac
export HEADGATE_PYTHON="${HEADGATE_PYTHON:-$PWD/.venv/bin/python}"
make -s -C "$folder" "${variables[@]}" fuzzers
if [[ -f "$2" ]]; then
  exec "$built/fuzz_$1" "$2"
fi
kept=".cache/fuzz/$1"
mkdir -p "$kept"
exec "$built/fuzz_$1" -max_total_time="$(($2 * 60))" -timeout=25 -max_len=65536 -rss_limit_mb=3000 \
  -artifact_prefix="$kept/" -print_final_stats=1 "$kept" "$folder/tests/corpus/$1"
