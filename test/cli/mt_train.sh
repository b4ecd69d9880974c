#!/usr/bin/env bash
# mt-train as a user meets it: exit statuses, messages, stdout, resuming, the same bytes again and again.
source "$(dirname "$0")/training_common.sh"
make_data

# Options. Nothing may be written by a command that is refused.
expect 0 '' "$bin/mt-train" --help
grep -q -- '--micro-batch-size' out || fail "--help does not list the options"
expect 2 'see mt-train --help|--data-path' "$bin/mt-train"
expect 2 'micro-batch-size' "${train[@]}" --micro-batch-sise 4
expect 2 '10 = 2 \* 4 \+ 2' "${train[@]}" --global-batch-size 10 --save refused
expect 2 'seq-length 33.*max-position-embeddings 32' "${train[@]}" --seq-length 33 --save refused
expect 2 'GiB' "${train[@]}" --hidden-size 100000 --num-layers 1000 --save refused
expect 2 'validation' "${train[@]}" --split 1,0,0 --save refused
expect 2 'precision' "${train[@]}" --bf16 --save refused
expect 2 'data-path.*3 words' "${train[@]}" --data-path 0.5 data.h5 0.5 --save refused
expect 2 'same documents' "${train[@]}" --data-path 0.5 data.h5 0.5 data.h5 --save refused
expect 4 'none.h5' "${train[@]}" --data-path none.h5 --save refused
expect 4 'none' "${train[@]}" --load none --save refused
expect 3 'docs.jsonl' "${train[@]}" --data-path docs.jsonl --save refused
[ ! -e refused ] || fail "a refused command wrote --save"
echo 'num-layer = 2' > bad.conf
expect 2 'bad.conf.*num-layers' "$bin/mt-train" --config bad.conf
expect 2 'twice' "${train[@]}" --seed 1 --seed 2
# A variable of the shell that is not set must not mean a run that saves nothing, or starts anew.
expect 2 '--save: expected DIR, found ""' "${train[@]}" --save ''
expect 2 '--load: expected DIR, found ""' "${train[@]}" --save refused --load ''
expect 2 '--metrics: expected FILE, found ""' "${train[@]}" --metrics=
expect 2 'seq-length 9223372036854775807: must be below' "${train[@]}" --seq-length 9223372036854775807 --save refused
expect 2 'adam-eps: expected a positive number in a float' "${train[@]}" --adam-eps 1e-50 --save refused
[ ! -e refused ] || fail "a refused command wrote --save"

# A run; again; with one thread; with every kernel set.
expect 0 'saved whole/iter_0000012|iteration 12' "${train[@]}" --save whole --metrics whole.jsonl
[ "$(grep -c '"loss"' whole.jsonl)" -eq 12 ] || fail "12 steps, found $(grep -c '"loss"' whole.jsonl) lines"
[ "$(grep -c '"validation_loss"' whole.jsonl)" -eq 2 ] || fail "validations in whole.jsonl"
[ ! -s out ] || fail "stdout is not empty"
expect 0 '' "${train[@]}" --save again
same_folder whole/iter_0000012 again/iter_0000012 "the same command again"
expect 0 '' "${train[@]}" --save one --threads 1
same_folder whole/iter_0000012 one/iter_0000012 "one thread"
expect 0 '' "${train[@]}" --save micro --micro-batch-size 2
same_folder whole/iter_0000012 micro/iter_0000012 "another micro-batch size"
for set in baseline avx2 avx512; do
  if [ "$set" = baseline ] || grep -qw "${set/avx512/avx512f}" /proc/cpuinfo; then
    expect 0 '' env MT_CPU=$set "${train[@]}" --save "$set"
    same_folder whole/iter_0000012 "$set/iter_0000012" "MT_CPU=$set"
  else
    echo "no $set on this processor"
  fi
done

# Saving in the background gives the same bytes, and removes as many; saves that fail are warnings until enough have.
expect 0 '' "${train[@]}" --save plain --save-interval 3 --keep 3
expect 0 'saved background/iter_0000012' "${train[@]}" --save background --save-interval 3 --keep 3 --async-save
rm plain/.lock background/.lock
same_folder plain background "--async-save"
expect 75 'iteration 6 is left' "${train[@]}" --save gone --load gone --async-save --save-interval 1 --exit-interval 6
expect 0 '' "${train[@]}" --save gone --load gone --async-save --save-interval 1
same_folder whole/iter_0000012 gone/iter_0000012 "6 + 6 steps with --async-save"
expect 2 'whole/iter_0000012: is a checkpoint' "${train[@]}" --save whole/iter_0000012
expect 2 'async-save: needs --save' "${train[@]}" --async-save
expect 2 'save-failures 0: must be at least 1' "${train[@]}" --save refused --save-failures 0
for how in '' --async-save; do
  expect 4 'File too large.*no checkpoint' bash -c 'ulimit -f 100; exec "$@"' bash "${train[@]}" --save limits --save-interval 3 --save-failures 2 $how
  [ "$(grep -c 'warning: .*File too large.*(1 so far)' err)" -eq 1 ] || fail "two failures $how: $(cat err)"
  expect 4 'File too large' bash -c 'ulimit -f 100; exec "$@"' bash "${train[@]}" --save limits --save-interval 3 --save-failures 9 $how
  [ "$(grep -c 'warning: .*File too large' err)" -eq 3 ] || fail "four failures $how: $(cat err)"
  [ -z "$(ls -A limits | grep -v '^.lock$')" ] || fail "left by saves that failed: $(ls -A limits)"
done

# The products of a micro-batch of 4 x 32 tokens: 5 layers with 3 each and 5 of attention, and two totals of exact counts.
expect 0 '' "${train[@]}" --bench-gemm --save unborn --load unborn
[ ! -e unborn ] || fail "--bench-gemm made the folder of --save"
[ "$(grep -c '"product"' out)" -eq 20 ] || fail "$(grep -c '"product"' out) products: $(cat out)"
[ "$(grep -c '"total":"\(forward\|step\)".*"threads":2.*"seconds":.*"gflops":' out)" -eq 2 ] || fail "totals: $(cat out)"
grep -q '"product":"query_key_value","pass":"forward","kind":"NT","m":128,"n":96,"k":32,"batch":1,"count":2,' out ||
  fail "the first product: $(head -1 out)"

# What exists.
expect 2 'whole.*iteration 12' "${train[@]}" --save whole
expect 2 'whole.jsonl' "${train[@]}" --save fresh --metrics whole.jsonl
expect 0 'is done' "${train[@]}" --save whole --load whole --metrics whole.jsonl
[ "$(wc -l < whole.jsonl)" -eq 14 ] || fail "a finished run changed its metrics"
cp whole.jsonl older.jsonl
expect 0 '' "${train[@]}" --save other --load other --metrics older.jsonl
cmp -s older.jsonl.1 whole.jsonl || fail "the metrics of another run were lost"
[ "$(wc -l < older.jsonl)" -eq 14 ] || fail "a run that starts anew has $(wc -l < older.jsonl) lines"

# Resuming: 7 and 5 steps, then by lives of three; contradictions.
expect 75 'iteration 7' "${train[@]}" --save cut --load cut --exit-interval 7 --metrics cut.jsonl
expect 2 '--lr 0.02.*0.01' "${train[@]}" --save cut --load cut --lr 0.02
expect 2 'hidden-size 64' "${train[@]}" --save cut --load cut --hidden-size 64
expect 2 'seed 5' "${train[@]}" --save cut --load cut --seed 5
expect 0 '' "${train[@]}" --save cut --load cut --metrics cut.jsonl
same_folder whole/iter_0000012 cut/iter_0000012 "7 + 5 steps"
diff <(grep -o '"step":[0-9]*\|"loss":[^,]*\|"grad_norm":[^,]*\|"validation_loss":[^,]*' whole.jsonl) \
  <(grep -o '"step":[0-9]*\|"loss":[^,]*\|"grad_norm":[^,]*\|"validation_loss":[^,]*' cut.jsonl) >/dev/null ||
  fail "metrics of 7 + 5 steps differ from those of 12"
expect 75 'iteration 3' "${train[@]}" --save lives --load lives --exit-interval 3
expect 75 'iteration 6' "$bin/mt-train" --load lives --save lives --data-path data.h5 --split 90,10,0 --eval-iters 2 \
  --eval-interval 6 --micro-batch-size 4 --exit-interval 3
expect 75 'iteration 9' "${train[@]}" --save lives --load lives --exit-interval 3
expect 0 '' "${train[@]}" --save lives --load lives --exit-interval 3
same_folder whole/iter_0000012 lives/iter_0000012 "four lives"
expect 0 '' "${train[@]}" --load lives/iter_0000006 --save branch
same_folder whole/iter_0000012 branch/iter_0000012 "from one checkpoint into another folder"

# Damage: the newest checkpoint is passed over, a damaged tensor is named, and the run ends up the same.
cp -r lives damaged && rm damaged/iter_0000012/manifest.json
expect 0 '' "${train[@]}" --save damaged --load damaged
grep -q 'iter_0000012' err || fail "no warning about the damaged checkpoint: $(cat err)"
same_folder whole/iter_0000012 damaged/iter_0000012 "after damage"
cp -r lives flipped && file=$(ls flipped/iter_0000006/model*.h5)
printf '\xff\xfe' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") / 2)) conv=notrunc status=none
expect 3 'iter_0000006' "${train[@]}" --load flipped/iter_0000006 --save never
[ ! -e never/iter_0000012 ] || fail "trained on a damaged checkpoint"

# A damaged block of tokens is found at first touch: status 3, and nothing is saved.
cp data.h5 broken.h5
printf '\xff\xfe\xfd' | dd of=broken.h5 bs=1 seek=$(($(stat -c %s broken.h5) / 2)) conv=notrunc status=none
expect 3 'broken.h5' "${train[@]}" --data-path broken.h5 --save never
[ ! -e never/iter_0000012 ] || fail "trained on a damaged shard"
head -c 20000 data.h5 > cut.h5
expect 3 'cut.h5' "${train[@]}" --data-path cut.h5 --save never

# Output that fails.
expect 4 'No space left' "${train[@]}" --metrics /dev/full
"${train[@]}" --metrics - 2>err >/dev/full; [ $? -eq 4 ] || fail "full stdout: status is not 4"
"${train[@]}" --metrics - 2>err >&-; [ $? -eq 4 ] || fail "closed stdout: status is not 4 ($(tail -1 err))"
"${train[@]}" 2>err >&-; [ $? -eq 0 ] || fail "closed stdout that is not used: $(tail -1 err)"
"${train[@]}" --metrics - 2>err | head -n 1 >/dev/null
[ "${PIPESTATUS[0]}" -eq 141 ] || fail "broken pipe: status ${PIPESTATUS[0]}"
"${train[@]}" --metrics - 2>/dev/null | awk 'NR == 12 { exit } { print }' | grep -q '"grad_norm"' || fail "--metrics -"
expect 4 'error' "${train[@]}" --save /proc/none
mkfifo pipe
expect 4 'pipe: nobody reads this FIFO' "${train[@]}" --metrics pipe
(sleep 0.5; timeout 30 cat pipe > piped) &
expect 0 '' "${train[@]}" --metrics pipe
wait
[ "$(grep -c '"loss"' piped)" -eq 12 ] || fail "12 steps, found $(grep -c '"loss"' piped) lines in a FIFO"
expect 4 'File too large' bash -c 'ulimit -f 100; exec "$@"' bash "${train[@]}" --save limited
[ -z "$(ls -A limited | grep -v '^.lock$')" ] || fail "left under a limit on file sizes: $(ls -A limited)"
touch file && expect 4 'file' "${train[@]}" --save file

# From weights alone.
expect 0 '' "$bin/mt-train" --load whole --finetune --data-path data.h5 --split 1,0,0 --eval-iters 0 --seq-length 16 \
  --micro-batch-size 2 --train-iters 2 --lr 1e-4 --save tuned
[ -f tuned/iter_0000002/manifest.json ] || fail "no tuned checkpoint"
# Those of 16 bits begin a run, and go on with none.
expect 0 '' "$bin/mt-reshard" --dtype bf16 whole half
expect 3 'half: holds weights and no state of training; --finetune' "${train[@]}" --load half --save refused
[ ! -e refused ] || fail "a refused command wrote --save"
expect 0 '' "${train[@]}" --load half --finetune --save tuned-half
grep -q '"dtype":"bf16"' tuned-half/iter_0000012/manifest.json && fail "a run from bf16 saves bf16"

# Megatron-LM's data: the same run, byte for byte, under each name, and from one to the other.
vocabulary=(--vocab-file "$source/share/shakespeare/vocab.json" --merge-file "$source/share/shakespeare/merges.txt")
expect 0 '' "$bin/mt-preprocess" --input docs.jsonl --output-prefix mega --append-eod --output-format megatron "${vocabulary[@]}"
expect 0 '' "${train[@]}" --save from-shard
for name in mega mega_text_document.bin; do
  expect 0 '' "${train[@]}" --data-path $name "${vocabulary[@]}" --save from-megatron
  same_folder from-shard/iter_0000012 from-megatron/iter_0000012 "trained on $name"
  rm -r from-megatron
done
expect 2 'mega_text_document.idx: that format carries no tokenizer' "${train[@]}" --data-path mega --save refused
cp mega_text_document.idx short.idx && head -c -2 mega_text_document.bin > short.bin
expect 3 'short.idx: .*short.bin has only' "${train[@]}" --data-path short "${vocabulary[@]}" --save refused
expect 4 'absent' "${train[@]}" --data-path absent "${vocabulary[@]}" --save refused
(cat short.bin; printf '\377\377') > mega_text_document.bin  # its last token
expect 3 'mega_text_document.bin: block 0 .* token id 65535 is outside' "${train[@]}" --data-path mega "${vocabulary[@]}" --save refused
[ ! -e refused ] || fail "refused data wrote --save"

# The recipes that are shipped are read, and have the sizes they name.
for recipe in "$source"/share/config/*.conf; do
  expect 0 '' "$bin/mt-train" --config "$recipe" --print-config
  grep -q '^hidden-size = ' out || fail "--print-config of $recipe"
  expect 2 'data' "$bin/mt-train" --config "$recipe" --save refused
done
finish
