#!/usr/bin/env bash
# The script that writes the README's table: rows, escapes, repeated measurements, replacement between its marks, refusals.
set -u
source=$1 work=$3
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
tool=$source/test/bench/readme_table.sh
failed=0
fail() { echo "FAILED: $*"; failed=1; }
export TABLE_DATE=2026-01-02 TABLE_PROCESSOR='A & B \1 | CPU' TABLE_CORES=2 TABLE_OPENBLAS=0.3.21

cat > lines <<'END_LINES'
noise {"bench":"no","what":"no","value":1}
{"bench":"step","what":"old","value":1,"unit":"x","command":"c"}
{"bench": "decode", "what": "a \"quoted\" | bar", "value": 0.81239, "unit": "x", "goal": ">= 0.75", "set": "avx2", "pairs": 5, "least": 0.7, "most": 12.345, "command": "d e"}
{"bench":"decode","shape":"no value here"}
{"bench":"step","what":"old","value":123456.7,"unit":"tokens/s","torch":"2.15","command":"c"}
{"bench":"step","what":"whole","value":512,"goal":"<= 600","rounds":3,"command":"c"}
END_LINES
cat > wanted <<'END_WANTED'
2026-01-02, A & B \1 | CPU, 2 cores, OpenBLAS 0.3.21, torch 2.15, kernels avx2.

| what | figure (goal) | command |
|---|---|---|
| step: old | 123457 tokens/s | `c` |
| decode, avx2: a "quoted" \| bar | 0.812 x, 0.700 to 12.35 in 5 pairs (>= 0.75) | `d e` |
| step: whole | 512 in 3 rounds (<= 600) | `c` |
END_WANTED
sh "$tool" lines > found || fail "status $?"
diff wanted found || fail "another table"

# Between its marks, again and again.
printf 'before\n<!-- measured: begin -->\nold\n| row |\n<!-- measured: end -->\nafter &\n' > page
{ printf 'before\n<!-- measured: begin -->\n'; cat wanted; printf '<!-- measured: end -->\nafter &\n'; } > page.wanted
for round in 1 2; do
  sh "$tool" --write page lines > out || fail "status $? in round $round"
  diff page.wanted page || fail "another page in round $round"
done
[ ! -s out ] || fail "--write prints: $(cat out)"

# Nothing is touched where something is missing.
refuses() { # STATUS TEXT ARGUMENT...
  local wanted=$1 text=$2 status
  shift 2
  sh "$tool" "$@" > out 2> err
  status=$?
  [ "$status" -eq "$wanted" ] || fail "status $status, expected $wanted: $*"
  grep -qF -- "$text" err || fail "no \"$text\" in: $(cat err)"
}
printf '<!-- measured: end -->\n<!-- measured: begin -->\nkept\n' > turned
cp turned turned.wanted
echo nothing > empty
refuses 2 usage
refuses 4 'absent: cannot be read' absent
refuses 3 'no line that begins' empty
refuses 3 'stands before' --write turned lines
refuses 3 'expected one line' --write empty lines
cmp -s turned turned.wanted || fail "a page without its marks was changed"
[ "$(cat empty)" = nothing ] || fail "a page without marks was changed"
ls | grep -q '\.new$' && fail "left: $(ls)"
exit $failed
