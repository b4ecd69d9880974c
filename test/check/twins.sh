#!/usr/bin/env bash
# No run of six equal lines of code stands in two files of lib/, kernels/ or cmd/. Blank lines, comments, includes and
# lines of punctuation do not count.
set -u
cd "$1" || exit 1
git ls-files -co --exclude-standard -- lib kernels cmd | grep -E '\.(cc|h)$' | xargs awk '
  FNR == 1 { n = 0 }
  { line = $0; sub(/\/\/.*/, "", line); gsub(/[ \t]+/, " ", line); gsub(/^ | $/, "", line) }
  line == "" || line ~ /^#/ || line ~ /^[][(){};, ]*$/ || line ~ /^(namespace|using|public:|private:)/ { next }
  { for (i = 1; i < 6; ++i) last[i] = last[i + 1]
    last[6] = line; start[++n] = FNR
    if (n < 6) next
    key = ""; for (i = 1; i <= 6; ++i) key = key "\n" last[i]
    if (key in seen && seen_file[key] != FILENAME) { print seen[key] " ~ " FILENAME ":" start[n - 5]; ++found }
    else if (!(key in seen)) { seen[key] = FILENAME ":" start[n - 5]; seen_file[key] = FILENAME } }
  END { exit found > 0 }'
