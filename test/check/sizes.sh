#!/usr/bin/env bash
# Files have at most 500 lines, functions 100 (kernel bodies 120); nothing in the tree is larger than 4 MiB.
set -u
cd "$1" || exit 1
command -v ctags >/dev/null || { echo "ctags is missing (package universal-ctags)"; exit 1; }
failed=0

sources=$(git ls-files -co --exclude-standard -- lib kernels cmd test | grep -E '\.(cc|h|cu|cuh|sh|cmake)$')
long=$(echo "$sources" | xargs wc -l | awk '$2 != "total" && $1 > 500 { print $2 ": " $1 " lines" }')
[ -z "$long" ] || { echo "over 500 lines:"; echo "$long"; failed=1; }

functions=$(echo "$sources" | grep -E '\.(cc|h)$' | xargs ctags --c++-kinds=f --fields=+ne -f - 2>/dev/null |
  awk -F'\t' '{ line = 0; end = 0
    for (i = 4; i <= NF; ++i) { if ($i ~ /^line:/) line = substr($i, 6); if ($i ~ /^end:/) end = substr($i, 5) }
    if (end) print end - line + 1 "\t" $2 "\t" $1 }')
[ "$(echo "$functions" | wc -l)" -gt 100 ] || { echo "ctags found too few functions"; failed=1; }
# A test body may list its cases.
big=$(echo "$functions" | awk -F'\t' '{ limit = $2 ~ /^kernels/ ? 120 : 100 } $1 > limit { print $2 ": " $3 ": " $1 " lines" }')
[ -z "$big" ] || { echo "functions that are too long:"; echo "$big"; failed=1; }
echo "longest functions:"; echo "$functions" | sort -rn | head -3
echo "longest files:"; echo "$sources" | xargs wc -l | sort -rn | sed 1d | head -3

heavy=$(git ls-files -co --exclude-standard | while read -r file; do
  [ -f "$file" ] && [ "$(stat -c %s "$file")" -gt 4194304 ] && echo "$file"; done)
[ -z "$heavy" ] || { echo "over 4 MiB: $heavy"; failed=1; }
exit $failed
