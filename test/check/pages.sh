#!/usr/bin/env bash
# Each program's options are the stored list (test/check/options/PROGRAM.txt), stand in its man page, and no others do;
# pages are clean for mandoc; --help and --version answer with status 0.
set -u
source=$1 bin=$2
command -v mandoc >/dev/null || { echo "mandoc is missing"; exit 1; }
failed=0
report() { echo "$*"; failed=1; }
declare -A most=([mt-preprocess]=50 [mt-train]=100 [mt-reshard]=30 [mt-eval]=30 [mt-generate]=35)

for program in mt-preprocess mt-train mt-reshard mt-eval mt-generate; do
  [ -x "$bin/$program" ] || { report "$program was not built"; continue; }
  help=$("$bin/$program" --help) || report "$program --help: status $?"
  version=$("$bin/$program" --version) || report "$program --version: status $?"
  for part in compiler MPI HDF5 kernels; do
    grep -qi "$part" <<<"$version" || report "$program --version does not tell: $part"
  done
  options=$(grep -oE '^ *--[a-z][a-z0-9_-]*' <<<"$help" | tr -d ' ' | sort -u)
  count=$(wc -l <<<"$options")
  [ "$count" -gt 5 ] || report "$program: only $count options found in --help"
  [ "$count" -le "${most[$program]}" ] || report "$program: $count options, at most ${most[$program]} wanted"
  echo "$program: $count options"
  diff <(sort -u "$source/test/check/options/$program.txt") <(echo "$options") > /tmp/pages.$$ ||
    report "$program: options differ from the stored list (< stored, > found):
$(cat /tmp/pages.$$)"
  page=$source/man/$program.1
  [ -f "$page" ] || { report "no page $page"; continue; }
  # In a page an option's description starts at a tagged paragraph: .TP or .It, then the option in bold.
  in_page=$(mandoc -T ascii "$page" | col -b | grep -oE '^ +--[a-z][a-z0-9_-]*' | tr -d ' ' | sort -u)
  diff <(echo "$options") <(echo "$in_page") > /tmp/pages.$$ ||
    report "$program: options of --help (<) and of the page (>) differ:
$(cat /tmp/pages.$$)"
done
for page in "$source"/man/*; do
  lint=$(mandoc -T lint -W style "$page" 2>&1 | grep -vE 'referenced manual not found|outdated mandoc.db|STYLE: lower case character in document title')
  [ -z "$lint" ] || report "mandoc: $lint"
done
for page in mt-preprocess.1 mt-train.1 mt-reshard.1 mt-eval.1 mt-generate.1 mt-shards.5 mt-checkpoint.5; do
  [ -f "$source/man/$page" ] || report "no page man/$page"
done
rm -f /tmp/pages.$$
exit $failed
