#!/usr/bin/env bash
# Includes go strictly to a lower level, third-party headers stand in the one file named for them, and what lib/ must not
# contain is not there. Each rule first proves on a planted line that it can fail.
set -u
cd "$1" || exit 1
failed=0
report() { echo "$*"; failed=1; }

declare -A level=([base]=0 [kernels]=1 [text]=1 [tensor]=2 [io]=3 [comm]=3 [nn]=4 [optim]=4 [data]=4 [ckpt]=4 [model]=5
  [train]=6 [infer]=6 [convert]=6 [eval]=7 [cmd]=8)
# What a folder may include beside itself; a level alone would allow too much (lib/README.md).
declare -A may=([base]="" [kernels]="base" [text]="base" [tensor]="base kernels" [io]="base tensor" [comm]="base tensor"
  [nn]="base tensor comm" [optim]="base tensor comm" [data]="base tensor io text" [ckpt]="base tensor io comm"
  [model]="base tensor comm nn" [train]="base tensor comm io text nn optim data ckpt model"
  [infer]="base tensor comm nn model text" [convert]="base tensor comm io text ckpt nn optim model"
  [eval]="base tensor comm io text nn model data infer"
  [cmd]="base tensor io comm nn optim data ckpt model train infer convert eval text cmd")

sources() { git ls-files -co --exclude-standard -- 'lib/*' 'kernels/*' 'cmd/*' | grep -E '\.(cc|h|cu|cuh)$'; }

# check_include FILE INCLUDED: prints what is wrong with it.
check_include() {
  local file=$1 target=${2%%/*} folder
  case $file in
    lib/*) folder=${file#lib/}; folder=${folder%%/*} ;;
    kernels/*) folder=kernels ;;
    cmd/*) folder=cmd ;;
  esac
  [ -n "${level[$folder]+x}" ] || { echo "$file: folder $folder has no level"; return; }
  [ "$target" = "$folder" ] && return
  [ -n "${level[$target]+x}" ] || { echo "$file: includes \"$2\" of no known folder"; return; }
  [ "${level[$target]}" -lt "${level[$folder]}" ] || { echo "$file: includes \"$2\" upward or sideways"; return; }
  case " ${may[$folder]} " in *" $target "*) ;; *) echo "$file: includes \"$2\", which $folder may not" ;; esac
}

[ -n "$(check_include lib/io/planted.cc nn/linear.h)" ] || report "the rule on levels cannot fail"
[ -n "$(check_include cmd/planted.cc kernels/kernels.h)" ] || report "the rule on cmd and kernels cannot fail"
count=0
while read -r file; do
  while read -r included; do
    count=$((count + 1))
    problem=$(check_include "$file" "$included")
    [ -z "$problem" ] || report "$problem"
  done < <(sed -nE 's/^#include "([^"]+)".*/\1/p' "$file")
done < <(sources)
echo "$count includes checked"
[ "$count" -gt 100 ] || report "too few includes found"

# third_party PATTERN ALLOWED-FILES (extended regular expressions)
third_party() {
  local found
  found=$(sources | grep -vE "^($2)$" | xargs -r grep -lE "^#include <($1)" /dev/null)
  [ -z "$found" ] || report "header <$1...> outside $2: $found"
}
third_party 'nlohmann' 'lib/base/json\.(h|cc)'
third_party 'boost' 'lib/base/options\.cc'
third_party 'xxhash|xxh3' 'lib/base/hash\.(h|cc)'
third_party 'utf8proc' 'lib/text/unicode\.cc'
third_party 'hdf5|H5' 'lib/io/hdf5(_[a-z]+)?\.cc|lib/io/hdf5_handle\.h'
third_party 'zstd|zlib' 'lib/io/line_reader\.cc'
third_party 'simdjson' 'lib/io/json_lines\.cc'
third_party 'mpi' 'lib/comm/mpi_(communicator|session)\.cc|lib/comm/mpi_calls\.h'
third_party 'cuda|cublas|nccl' 'kernels/cuda/.*'
third_party 'cblas|openblas' 'nowhere'

# forbid WHAT PATTERN WHERE [EXCEPT]: a line of code (comments cut) that matches.
forbid() {
  local what=$1 pattern=$2 where=$3 except=${4:-nowhere} found
  found=$(sources | grep -E "$where" | grep -vE "^($except)$" | while read -r file; do
    sed -E 's://.*$::; s:"([^"\\]|\\.)*":"":g' "$file" | grep -nE "$pattern" | sed "s:^:$file\::"
  done)
  [ -z "$found" ] || report "$what:
$found"
}
forbid "a conditional in lib/ or cmd/" '^ *# *if' '^(lib|cmd)/' 'lib/base/philox\.h'
forbid "exit or print in lib/ or kernels/" '\b(exit|_exit|abort|printf|fprintf|puts)\(|std::c(out|err)\b' '^(lib|kernels)/' \
  'lib/base/log\.cc'
forbid "environment read" '\bgetenv\b' '.' 'lib/comm/launch\.cc|cmd/run_main\.cc'
forbid "manual ownership" '\b(malloc|calloc|realloc|free)\(|\bnew [A-Za-z:]+[({\[;]|\bdelete [a-z]' '^(lib|kernels|cmd)/' \
  'kernels/cpu/runtime\.cc'

for folder in $(sources | xargs -n1 dirname | sort -u); do
  case ${folder##*/} in utils|common|core|misc|helpers) report "a folder called ${folder##*/}" ;; esac
done
for entry in $(git ls-files | cut -d/ -f1 | sort -u); do
  case $entry in CMakeLists.txt|README.md|cmd|kernels|lib|man|share|test|.*) ;; *) report "top level: $entry" ;; esac
done
exit $failed
