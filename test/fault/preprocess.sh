#!/bin/bash
# mt-preprocess on a shard of many writes when the system fails: calls on the shard or its spool, kills before them and at
# random times, every fill level of a disk, no more threads. No part of a shard ever has the final name, a former shard
# stays whole until the new one is, and nothing blocks a rerun. (failing_calls.sh and killed.sh try all of a small one.)
# Arguments: source folder, program folder, scratch folder.
source=$1 bin=$2
. "$source/test/fault/loops.sh"
loops_most=${MT_LOOP_MOST:-10}
begin "$3"
vocabulary=$source/share/shakespeare
run=("$bin/mt-preprocess" --vocab-file "$vocabulary/vocab.json" --merge-file "$vocabulary/merges.txt" --append-eod --force
  --quiet)
for i in $(seq 3000); do echo "{\"text\": \"document $i $RANDOM of some words that are not much longer than this\"}"; done > in.jsonl
echo '{"text": "what stood there before"}' > old.jsonl
"${run[@]}" --input old.jsonl --output-prefix old && "${run[@]}" --input in.jsonl --output-prefix new || exit 1

prepare_many() { mkdir -p d; }
command_many() { command=("${run[@]}" --input ../in.jsonl --output-prefix d/out --workers "${workers:-1}"); }
state_many() {
  if [ ! -e d/out.h5 ]; then echo none
  elif cmp -s d/out.h5 ../old.h5; then echo old
  elif cmp -s d/out.h5 ../new.h5; then echo new
  else echo partial; fi
}
left_many() { ls -A d | grep -vxE 'out\.h5'; }
before_many="none" after_many="new" names_many='d/\.?out| d:|in\.jsonl|vocab\.json|merges\.txt'

prepare_many_over() { mkdir -p d && cp ../old.h5 d/out.h5; }
command_many_over() { command_many; }
state_many_over() { state_many; }
left_many_over() { left_many; }
before_many_over="old" after_many_over="new" names_many_over=$names_many

# Megatron-LM's two files: never an index of other tokens. A run that ends in between leaves tokens without one.
"${run[@]}" --input old.jsonl --output-prefix old --output-format megatron &&
  "${run[@]}" --input in.jsonl --output-prefix new --output-format megatron || exit 1
prepare_pair() { mkdir -p d; }
command_pair() { command=("${run[@]}" --input ../in.jsonl --output-prefix d/out --output-format megatron --workers 1); }
state_pair() {
  local which
  for which in old new; do
    cmp -s d/out_text_document.bin "../${which}_text_document.bin" || continue
    if [ ! -e d/out_text_document.idx ]; then echo "tokens-$which"; return; fi
    if cmp -s d/out_text_document.idx "../${which}_text_document.idx"; then echo "$which"; return; fi
  done
  if [ -e d/out_text_document.bin ] || [ -e d/out_text_document.idx ]; then echo partial; else echo none; fi
}
left_pair() { ls -A d | grep -vxE 'out_text_document\.(bin|idx)'; }
before_pair="none tokens-new" after_pair="new" names_pair=$names_many
prepare_pair_over() { mkdir -p d && cp ../old_text_document.bin d/out_text_document.bin && cp ../old_text_document.idx d/out_text_document.idx; }
command_pair_over() { command_pair; }
state_pair_over() { state_pair; }
left_pair_over() { left_pair; }
before_pair_over="old tokens-old tokens-new" after_pair_over="new" names_pair_over=$names_many

for name in many many_over pair pair_over; do
  run_failing $name EIO write pwrite64 pread64 ftruncate fsync rename renameat2
  run_killed $name openat write pwrite64 pread64 ftruncate fsync rename renameat2 unlinkat
  run_full $name "${MT_FILL_STEP:-64}"
done

# The system gives no more threads: those that run are joined, and nothing is left.
if strace -f -o /dev/null true 2> message; then
  mkdir w9 && cd w9 || exit 1
  for n in 1 3; do
    rm -rf d
    workers=4
    prepare_many && command_many
    strace -f -qq -o trace -e trace=clone,clone3 -e inject=clone,clone3:error=EAGAIN:when=$n+ "${command[@]}" 2> stderr
    status=$?
    grep -q INJECTED trace || fail "thread $n was not refused"
    [ $status -eq 4 ] && [ -z "$(left_many)" ] && [ "$(state_many)" = none ] ||
      fail "thread $n refused: status $status, $(state_many), left $(left_many)"
    grep -q "^mt-preprocess: error: .*cannot start 4 threads (--workers): $((n - 1)) started" stderr ||
      fail "thread $n: $(cat stderr)"
  done
  cd ..
  echo "threads refused: 2 cases"
else
  echo "skipped: threads refused: $(cat message)"
fi

# Killed at random times.
mkdir w10 && cd w10 || exit 1
prepare_many_over && command_many_over
for round in $(seq 20); do
  { timeout -s KILL "0.0$((RANDOM % 90 + 10))" "${command[@]}"; } 2> /dev/null
  case $(state_many) in old | new) ;; *) fail "killed in round $round: the shard is $(state_many)" ;; esac
done
"${command[@]}" && [ "$(state_many)" = new ] && [ -z "$(left_many)" ] || fail "after 20 kills: $(state_many), $(left_many)"
echo "killed at 20 random times"
finish
