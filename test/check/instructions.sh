#!/usr/bin/env bash
# usage: instructions.sh SOURCE BIN SCRATCH COMPILER NAME FUNCTIONS COMMAND...
# Instructions that COMMAND takes, counted by callgrind, are within 2 % of the figure stored for NAME and COMPILER in
# instructions.txt, and its output has the digest stored there. FUNCTIONS: patterns with commas between them; only what
# runs inside them counts; empty: all counts. A change that is meant to cost or save replaces the figure.
source=$1 scratch=$3 compiler=$4 name=$5 functions=$6
shift 6
rm -rf "$scratch"; mkdir -p "$scratch"
stored=$source/test/check/instructions.txt

read -r figure digest < <(awk -v n="$name" -v c="$compiler" '$1 == n && $2 == c { print $3, $4 }' "$stored")
if [ -z "$figure" ]; then
  echo "skipped: instructions.txt has no figure of $name for $compiler"
  exit 77
fi
command -v valgrind > "$scratch/which" || { echo "FAILED: valgrind is not here (share/install-packages.sh test)"; exit 1; }

toggles=()
IFS=, read -ra patterns <<<"$functions"
for pattern in "${patterns[@]}"; do toggles+=("--toggle-collect=$pattern"); done
valgrind --tool=callgrind --callgrind-out-file="$scratch/profile" "${toggles[@]}" "$@" > "$scratch/stdout" 2> "$scratch/stderr" ||
  { echo "FAILED: $*: $(tail -n 3 "$scratch/stderr")"; exit 1; }
counted=$(sed -nE 's/^==[0-9]+== Collected : ([0-9]+).*/\1/p' "$scratch/stderr")
found=$(sha256sum < "$scratch/stdout" | cut -c1-16)
status=0
if [ -z "$counted" ] || [ $((counted * 100)) -gt $((figure * 102)) ] || [ $((counted * 100)) -lt $((figure * 98)) ]; then
  echo "FAILED: $name: ${counted:-no} instructions, expected $figure within 2 %"
  status=1
fi
if [ "$found" != "$digest" ]; then
  echo "FAILED: $name: the output has the digest $found, expected $digest: $(head -c 200 "$scratch/stdout")"
  status=1
fi
echo "$name $compiler $counted $found"
exit $status
