#!/usr/bin/env bash
# Checkpoints of mt-train where users of other programs lost them: disks that fill and are freed, iteration 0, weights alone,
# sizes, folders without one, output that fails. The ids are those of reported scenarios.
source "$(dirname "$0")/training_common.sh"
make_data
loss() { grep -o '"loss":[^,]*' "$1" | head -n 1 | cut -d: -f2; }

# C03: a folder with nothing in it is no checkpoint, and nothing is trained; C05: no number means "all are removed".
mkdir empty
expect 4 'empty.*no checkpoint' "${train[@]}" --load empty --save refused
expect 4 'empty.*no checkpoint' "${train[@]}" --load empty --finetune --save refused
expect 4 'empty.*no checkpoint' "$bin/mt-eval" --load empty --valid-data docs.jsonl
expect 4 'empty.*no checkpoint' "$bin/mt-generate" --load empty --prompt x
expect 2 'keep -1' "${train[@]}" --keep -1 --save refused
[ ! -e refused ] || fail "a refused command wrote --save"
expect 0 '' "${train[@]}" --save all --keep 0 --save-interval 3 --metrics all.jsonl
[ "$(ls -d all/iter_* | wc -l)" -eq 4 ] || fail "--keep 0 left $(ls all)"
expect 0 '' "${train[@]}" --save one --keep 1 --save-interval 3
[ "$(ls -d one/iter_*)" = one/iter_0000012 ] || fail "--keep 1 left $(ls one)"

# C11: a wider model, whose numbers outweigh the headers, takes at most 1.02 times the bytes of its weights and moments.
expect 0 '' "${train[@]}" --save wide --hidden-size 256 --num-layers 4 --train-iters 1 --lr-warmup-iters 0 --eval-iters 0
parameters=$(grep -o '[0-9]* parameters' err | cut -d' ' -f1)
stored=$(cat wide/iter_0000001/*.* | wc -c)
checks=$((checks + 1))
[ "$parameters" -gt 3000000 ] || fail "$parameters parameters"
[ $((stored * 100)) -le $((parameters * 12 * 102)) ] || fail "$stored bytes for $parameters parameters"

# C15: weights alone: the first loss of --finetune is the loss that mt-eval finds, on 257 times one token, where every window
# of 32 is the same.
printf ' the%.0s' $(seq 257) >text
printf '{"text": "%s"}\n' "$(cat text)" >text.jsonl
expect 0 ' 257 tokens' "$bin/mt-preprocess" --input text.jsonl --output-prefix tokens \
  --vocab-file "$source/share/shakespeare/vocab.json" --merge-file "$source/share/shakespeare/merges.txt"
expect 0 '' "$bin/mt-train" --load all --finetune --data-path tokens.h5 --split 1,0,0 --eval-iters 0 --seq-length 32 --metrics tuned.jsonl \
  --micro-batch-size 8 --train-iters 1 --lr 1e-4 --hidden-dropout 0 --attention-dropout 0 --save tuned
expect 0 '' "$bin/mt-eval" --load all --valid-data text --json
cp out evaluated
found=$(loss tuned.jsonl) wanted=$(grep -o '"nll_per_token":[^,}]*' evaluated | cut -d: -f2)
awk -v a="$found" -v b="$wanted" 'BEGIN { exit !(a > 1 && b > 1 && a - b < 1e-3 && b - a < 1e-3) }' ||
  fail "the first loss is $found, mt-eval says: $(cat evaluated)"

# A limit, or a disk, that stands in the way for a while: the run goes on, and a later save succeeds.
long=("${train[@]}" --train-iters 120 --lr-decay-iters 120 --eval-iters 0 --save-interval 1 --save-failures 1000 --keep 2)
freed() { # FOLDER HOW-TO-FREE...: waits for the run in $!, freeing when the first save has failed
  local folder=$1 status tries=0
  shift
  checks=$((checks + 1))
  until grep -q 'warning: .*(1 so far)' err || [ $((tries += 1)) -gt 3000 ]; do sleep 0.02; done
  "$@"
  wait $!
  status=$?
  [ $status -eq 0 ] || fail "$folder: status $status: $(tail -1 err)"
  grep -q 'warning: .*(1 so far)' err || fail "$folder: no save failed"
  tail -n 1 err | grep -q "saved $folder/iter_0000120" || fail "$folder: the last save: $(tail -1 err)"
  [ "$(ls "$folder")" = "$(printf 'iter_0000119\niter_0000120\nlatest')" ] || fail "$folder holds $(ls "$folder")"
  expect 0 'is done' "${long[@]}" --save "$folder" --load "$folder"
}
for how in '' --async-save; do
  rm -rf limits
  (ulimit -S -f 100; exec "${long[@]}" --save limits $how) >out 2>err &
  freed limits prlimit --pid $! --fsize=unlimited
done
mkdir disk
if mount -t tmpfs -o size=8m tmpfs disk 2>mount.log; then
  trap 'umount "$work/disk"' EXIT
  head -c 8200000 /dev/zero >disk/filler
  "${long[@]}" --save disk/run >out 2>err &
  freed disk/run rm disk/filler
else
  echo "skipped: a full disk: $(cat mount.log)"
fi

# What fails beside the checkpoints names what is left of them; C20: a stop before the first step saves iteration 0.
if strace -f -o /dev/null true 2>/dev/null; then
  for n in 1 3; do
    rm -f synced.jsonl
    what='no checkpoint of this run is left'
    [ $n -eq 1 ] || what="iteration $((3 * n - 3)) is left to resume from in synced$n/iter_000000$((3 * n - 3))"
    expect 4 "synced.jsonl: fsync: Input/output error; $what" \
      strace -f -o traced -P "$work/synced.jsonl" -e trace=fsync -e "inject=fsync:error=EIO:when=$n" \
      "${train[@]}" --save "synced$n" --save-interval 3 --metrics synced.jsonl
    [ "$(ls -d synced$n/iter_* 2>/dev/null | wc -l)" -eq $((n - 1)) ] || fail "fsync $n of the metrics: $(ls synced$n)"
  done
  expect 75 'iteration 0 is left' strace -f -o traced -P data.h5 -e trace=openat -e inject=openat:signal=TERM:when=1 \
    "${train[@]}" --save zero --load zero
  [ -e zero/iter_0000000/manifest.json ] || fail "iteration 0 was not saved: $(ls zero)"
  expect 0 '' "${train[@]}" --load zero/iter_0000000 --save from_zero
  expect 0 '' "${train[@]}" --save zero --load zero
  same_folder all/iter_0000012 zero/iter_0000012 "from iteration 0 of the same run"
  same_folder all/iter_0000012 from_zero/iter_0000012 "from a checkpoint of iteration 0"
else
  echo "skipped: strace cannot trace here"
fi
finish
