#!/bin/sh
# The README's table of measurements from the JSON lines that the scripts of this folder print.
#
#   test/bench/readme_table.sh [--write README.md] FILE...
#
# Takes of each FILE the lines that begin with {"bench" and have a value; a measurement that comes again (same bench, what and
# kernel set) replaces the earlier one. Prints a line with date, processor, cores, libraries and kernel sets, then the table;
# with --write both replace what stands between the lines <!-- measured: begin --> and <!-- measured: end --> of that file.
set -eu
readme=
if [ "${1:-}" = --write ]; then
  readme=${2:?usage: readme_table.sh [--write README.md] FILE...}
  shift 2
fi
[ $# -gt 0 ] || { echo "usage: readme_table.sh [--write README.md] FILE..." >&2; exit 2; }
for file in "$@"; do
  [ -r "$file" ] || { echo "readme_table.sh: $file: cannot be read" >&2; exit 4; }
done

# Of what is measured on: the environment wins, for tables of another machine and for tests.
date=${TABLE_DATE:-$(date -u +%Y-%m-%d)}
processor=${TABLE_PROCESSOR:-$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)}
cores=${TABLE_CORES:-$(nproc)}
openblas=${TABLE_OPENBLAS:-$(pkg-config --modversion openblas 2>/dev/null ||
  dpkg-query -W -f '${Version}' libopenblas0-pthread 2>/dev/null | sed 's/[+-].*//' || true)}

table() {
  grep -h '^{"bench"' "$@" | DATE=$date PROCESSOR=$processor CORES=$cores OPENBLAS=$openblas awk '
    # The value of a member of a line: the text of a string without its escapes, or a number; empty if there is none.
    function member(line, key,    at, c, text) {
      at = match(line, "\"" key "\"[ ]*:[ ]*")
      if (!at) return ""
      line = substr(line, at + RLENGTH)
      if (substr(line, 1, 1) != "\"") {
        match(line, /^[^,}]*/)
        return substr(line, 1, RLENGTH)
      }
      for (at = 2; at <= length(line); ++at) {
        c = substr(line, at, 1)
        if (c == "\"") return text
        if (c == "\\") c = substr(line, ++at, 1)
        text = text c
      }
      return text
    }
    function cell(text) {
      gsub(/[|]/, "\\|", text)
      return text
    }
    # Four figures, in plain digits.
    function figure(x,    size, digits) {
      if (x !~ /^-?[0-9]/) return x
      size = x < 0 ? -x : x + 0
      if (size >= 1000 || x ~ /^-?[0-9]+$/) return sprintf("%.0f", x)
      digits = size >= 100 ? 1 : size >= 10 ? 2 : 3
      if (size > 0 && size < 0.1) return sprintf("%.3g", x)
      return sprintf("%." digits "f", x)
    }
    function note(list, word) {
      return word == "" || index(", " list ", ", ", " word ", ") ? list : list (list == "" ? "" : ", ") word
    }
    {
      value = member($0, "value")
      what = member($0, "what")
      if (value == "" || what == "") next
      set = member($0, "set")
      if (set == "") set = member($0, "kernels")
      sets = note(sets, set)
      torch = note(torch, member($0, "torch"))
      bench = member($0, "bench")
      key = bench "\t" what "\t" set
      if (!(key in row)) order[++rows] = key
      unit = member($0, "unit")
      goal = member($0, "goal")
      least = member($0, "least")
      most = member($0, "most")
      count = member($0, "pairs")
      if (count == "") count = member($0, "rounds")
      text = figure(value) (unit == "" ? "" : " " unit)
      if (count == 1) {
        text = text " in one round"
      } else {
        if (least != "" && most != "") text = text ", " figure(least) " to " figure(most)
        if (count != "") text = text " in " count (member($0, "pairs") != "" ? " pairs" : " rounds")
      }
      if (goal != "") text = text " (" goal ")"
      row[key] = "| " cell(bench (set == "" ? "" : ", " set) ": " what) " | " cell(text) " | `" member($0, "command") "` |"
    }
    END {
      if (rows == 0) exit 3
      line = ENVIRON["DATE"] ", " ENVIRON["PROCESSOR"] ", " ENVIRON["CORES"] " cores"
      if (ENVIRON["OPENBLAS"] != "") line = line ", OpenBLAS " ENVIRON["OPENBLAS"]
      if (torch != "") line = line ", torch " torch
      if (sets != "") line = line ", kernels " sets
      print line ".\n\n| what | figure (goal) | command |\n|---|---|---|"
      for (i = 1; i <= rows; ++i) print row[order[i]]
    }'
}

made=$(mktemp)
trap 'rm -f "$made"' EXIT
table "$@" >"$made" || { echo "readme_table.sh: $*: no line that begins with {\"bench\" and has a value" >&2; exit 3; }
if [ -z "$readme" ]; then
  cat "$made"
  exit 0
fi
begin='<!-- measured: begin -->' end='<!-- measured: end -->'
[ "$(grep -cxF -e "$begin" "$readme")" = 1 ] && [ "$(grep -cxF -e "$end" "$readme")" = 1 ] ||
  { echo "readme_table.sh: $readme: expected one line $begin and one line $end" >&2; exit 3; }
awk -v begin="$begin" -v end="$end" -v made="$made" '
  $0 == end { inside = 0; closed = opened }
  !inside { print }
  $0 == begin { inside = 1; opened = 1; while ((getline line < made) > 0) print line }
  END { exit !closed }' "$readme" >"$readme.new" || {
  rm -f "$readme.new"
  echo "readme_table.sh: $readme: $end stands before $begin" >&2
  exit 3
}
mv "$readme.new" "$readme"
