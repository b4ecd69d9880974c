#!/usr/bin/env bash
# Every source is formatted as .clang-format says; scripts parse.
set -u
cd "$1" || exit 1
command -v clang-format-14 >/dev/null || { echo "clang-format-14 is missing"; exit 1; }
failed=0
git ls-files -co --exclude-standard | grep -E '^(lib|kernels|cmd|test)/.*\.(cc|h)$' |
  xargs clang-format-14 --dry-run -Werror 2>&1 | grep -E 'error' | cut -d: -f1 | sort | uniq -c | sort -rn > "/tmp/format.$$"
if [ -s "/tmp/format.$$" ]; then
  echo "not formatted (places, file):"; cat "/tmp/format.$$"; failed=1
fi
rm -f "/tmp/format.$$"
for script in $(git ls-files -co --exclude-standard | grep -E '\.sh$'); do
  bash -n "$script" || failed=1
done
exit $failed
