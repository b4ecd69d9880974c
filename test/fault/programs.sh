# Sourced after loops.sh: the five programs as scenarios, on inputs as small as they can be. Needs $source and $bin.
# shellcheck shell=bash disable=SC2034
vocabulary=(--vocab-file "$source/share/shakespeare/vocab.json" --merge-file "$source/share/shakespeare/merges.txt")

conversions="reshard_grid reshard_half reshard_model reshard_safetensors reshard_gguf reshard_llmc" # reshard_to, below
scenarios="preprocess preprocess_over preprocess_several train train_load train_async train_blend reshard_import reshard_copy
  reshard_over $conversions eval eval_over eval_several eval_scores generate generate_batch"

# make_inputs: in $scratch/made, and there what each scenario must leave.
make_inputs() {
  mkdir made && cd made || exit 1
  local i
  for i in $(seq 40); do
    echo "{\"text\": \"document $i of some words that are not much longer than this one\"}"
  done > in.jsonl
  for i in $(seq 20); do echo "{\"text\": \"$i: another part of a blend, or of a shard\"}"; done > more.jsonl
  echo '{"text": "what stood there before"}' > old.jsonl
  cat > tiny.conf <<'END'
num-layers = 1
hidden-size = 16
num-attention-heads = 2
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 2
global-batch-size = 2
train-iters = 2
lr = 1e-2
split = 80,20,0
eval-iters = 1
eval-interval = 2
save-interval = 1
save-failures = 1
threads = 2
END
  ln -s "$source/test/data/hf/gpt-shakespeare" hf
  head -c 200 "$source/share/shakespeare/input.txt" > text
  tail -c 150 "$source/share/shakespeare/input.txt" > text2
  for i in 1 2 3 4 5; do
    echo "{\"context\": \"who $i\", \"continuations\": [\" is it\", \" was that, then\"], \"answer\": 1}"
  done > pairs.jsonl
  for i in 1 2 3 4 5; do
    echo "{\"prompt\": \"so $i\", \"num_tokens_to_generate\": $i, \"seed\": $i, \"num_samples\": 2, \"stop\": \"zz\"}"
  done > requests.jsonl
  gzip -k more.jsonl requests.jsonl
  {
    "$bin/mt-preprocess" --input in.jsonl --output-prefix in "${vocabulary[@]}" --append-eod --json &&
    "$bin/mt-preprocess" --input more.jsonl --output-prefix more "${vocabulary[@]}" --append-eod &&
    "$bin/mt-preprocess" --input more.jsonl in.jsonl --output-prefix several "${vocabulary[@]}" --append-eod &&
    "$bin/mt-preprocess" --input old.jsonl --output-prefix old "${vocabulary[@]}" --append-eod &&
    "$bin/mt-train" --config tiny.conf --data-path ../made/in.h5 --save whole --keep 2 --metrics metrics &&
    "$bin/mt-train" --config tiny.conf --data-path 0.7 ../made/in.h5 0.3 ../made/more.h5 --save whole_blend --keep 2
  } > log 2>&1 || { cat log; echo "cannot make the inputs"; exit 1; }
  # As a run that was stopped after its first step left it.
  mkdir run && cp -r whole/iter_0000001 run && ln -s iter_0000001 run/latest
  cd ..
  for i in $scenarios; do
    rm -rf w && mkdir w && cd w || exit 1
    "prepare_$i" && "command_$i"
    "${command[@]}" > stdout 2> stderr || { cat stderr; echo "cannot run $i"; exit 1; }
    mv d "../made/$i.d" && mv stdout "../made/$i.stdout" && cd .. || exit 1
  done
  sources > made.sums
}

# What is only read has the bytes that it had, whatever befell those who read it; called in $scratch at the end.
sources() { find made/run/ made/hf/ made/whole/ made/*.h5 made/*.jsonl made/*.gz -type f -exec sha256sum {} + | sort; }
check_sources() {
  sources | cmp -s - made.sums || fail "sources changed: $(sources | diff made.sums - | head -n 5)"
  echo "sources: $(wc -l < made.sums) files untouched"
}

# same_output NAME: stdout is what it should be.
same_output() { cmp -s stdout "../made/$1.stdout"; }
whole_file() { # FILE NAME WANTED OLD: none, old, new, partial
  if [ ! -e "$1" ]; then echo none
  elif [ -n "$4" ] && cmp -s "$1" "$4"; then echo old
  elif cmp -s "$1" "$3"; then same_output "$2" && echo new || echo new-but-short
  else echo partial; fi
}

prepare_preprocess() { mkdir -p d; }
command_preprocess() { # [INPUT...]
  local inputs=("$@")
  [ $# -gt 0 ] || inputs=(../made/in.jsonl)
  command=("$bin/mt-preprocess" --input "${inputs[@]}" --output-prefix d/out "${vocabulary[@]}" --append-eod --workers 2
    --json --force)
}
state_preprocess() { whole_file d/out.h5 preprocess ../made/in.h5 ../made/old.h5; }
left_preprocess() { ls -A d | grep -vxE 'out\.h5'; }
before_preprocess="none new-but-short" after_preprocess="new" names_preprocess='d/\.?out| d:|made/in\.jsonl|vocab\.json|merges\.txt|standard'

# The same where a shard stands already.
prepare_preprocess_over() { mkdir -p d && cp ../made/old.h5 d/out.h5; }
command_preprocess_over() { command_preprocess; }
state_preprocess_over() { state_preprocess; }
left_preprocess_over() { left_preprocess; }
before_preprocess_over="old new-but-short" after_preprocess_over="new" names_preprocess_over=$names_preprocess

# Several inputs, one of them compressed.
prepare_preprocess_several() { mkdir -p d; }
command_preprocess_several() {
  command_preprocess ../made/more.jsonl.gz ../made/in.jsonl
}
state_preprocess_several() { whole_file d/out.h5 preprocess_several ../made/several.h5 ../made/old.h5; }
left_preprocess_several() { left_preprocess; }
before_preprocess_several="none new-but-short" after_preprocess_several="new"
names_preprocess_several="$names_preprocess|made/more\\.jsonl\\.gz"

prepare_train() { mkdir -p d; }
command_train() {
  local data=("$@")
  [ $# -gt 0 ] || data=(../made/in.h5)
  command=("$bin/mt-train" --config ../made/tiny.conf --data-path "${data[@]}" --save d/run --load d/run --keep 1
    --metrics d/metrics)
}
# trained WHOLE: what is there of the checkpoints of a run that was whole:
# none or iterN: the newest one, if all that are there are whole; partial if one is not.
trained() {
  local iteration newest=none
  for iteration in d/run/iter_*; do
    [ -e "$iteration" ] || continue
    diff -r "$iteration" "../made/$1/$(basename "$iteration")" > /dev/null 2>&1 || newest=partial
    [ "$newest" = partial ] || newest=iter${iteration: -1}
  done
  if [ "$newest" = iter2 ]; then
    [ "$(grep -c '"loss":' d/metrics)" -eq 2 ] || newest="iter2-but-$(grep -c '"loss":' d/metrics)-metrics"
  fi
  echo "$newest"
}
state_train() { trained whole; }
# (A run that starts anew sets the metrics of another one aside.)
left_train() { ls -A d d/run 2> /dev/null | grep -vxE '|d:|d/run:|run|metrics(\.1)?|\.lock|latest|iter_000000[12]'; }
before_train="none iter1" after_train="iter2" names_train='d/\.?run|d/\.?metrics| d:|made/in\.h5|tiny\.conf|standard'

prepare_train_load() {
  mkdir -p d && cp -r ../made/run d/run && grep -m 1 '"loss":' ../made/metrics > d/metrics
}
command_train_load() { command_train; }
state_train_load() { state_train; }
left_train_load() { left_train; }
before_train_load="iter1" after_train_load="iter2" names_train_load=$names_train

# A checkpoint is written while the next step is made.
prepare_train_async() { mkdir -p d; }
command_train_async() {
  command_train
  command+=(--async-save)
}
state_train_async() { state_train; }
left_train_async() { left_train; }
before_train_async="none iter1" after_train_async="iter2" names_train_async=$names_train

prepare_train_blend() { mkdir -p d; }
command_train_blend() {
  command_train 0.7 ../made/in.h5 0.3 ../made/more.h5
}
state_train_blend() { trained whole_blend; }
left_train_blend() { left_train; }
before_train_blend="none iter1" after_train_blend="iter2" names_train_blend="$names_train|made/more\\.h5"

folder_state() { # FOLDER NAME OLD: none, old, new, partial
  if [ ! -e "$1" ]; then echo none
  elif [ -n "$3" ] && diff -r "$1" "$3" > /dev/null 2>&1; then echo old
  elif diff -r "$1" "../made/$2.d/$(basename "$1")" > /dev/null 2>&1; then echo new
  else echo partial; fi
}
prepare_reshard_import() { mkdir -p d; }
command_reshard_import() { command=("$bin/mt-reshard" ../made/hf d/to); }
state_reshard_import() { folder_state d/to reshard_import ''; }
left_reshard_import() { ls -A d | grep -vx to; }
before_reshard_import="none" after_reshard_import="new" names_reshard_import='d/\.?to| d:|d/manifest|made/hf|standard'

prepare_reshard_copy() { mkdir -p d; }
command_reshard_copy() { command=("$bin/mt-reshard" ../made/run d/to); }
state_reshard_copy() { folder_state d/to reshard_copy ''; }
left_reshard_copy() { ls -A d | grep -vx to; }
before_reshard_copy="none" after_reshard_copy="new" names_reshard_copy='d/\.?to| d:|d/manifest|made/run|standard'

prepare_reshard_over() { mkdir -p d && cp -r ../made/whole/iter_0000002 d/to; }
command_reshard_over() { command=("$bin/mt-reshard" --force ../made/run d/to); }
state_reshard_over() { folder_state d/to reshard_over ../made/whole/iter_0000002; }
left_reshard_over() { ls -A d | grep -vx to; }
before_reshard_over="old" after_reshard_over="new" names_reshard_over=$names_reshard_copy

# For a grid, whose files are several; and for others, a folder and a file.
reshard_to() { # NAME OPTIONS...
  local name=$1
  shift
  eval "prepare_$name() { mkdir -p d; }
    command_$name() { command=(\"$bin/mt-reshard\" ../made/run d/to $*); }
    state_$name() { folder_state d/to $name ''; }
    left_$name() { ls -A d | grep -vx to; }"
  declare -g "before_$name=none" "after_$name=new" "names_$name=$names_reshard_copy"
}
reshard_to reshard_grid --tensor-model-parallel-size 2 --use-distributed-optimizer --data-parallel-size 2
reshard_to reshard_safetensors --to safetensors --max-shard-size 20000
reshard_to reshard_gguf --to gguf --dtype fp16
reshard_to reshard_llmc --to llmc
reshard_to reshard_half --dtype bf16
reshard_to reshard_model --model-only --tensor-model-parallel-size 2

prepare_eval() { mkdir -p d; }
command_eval() {
  command=("$bin/mt-eval" --load ../made/run --valid-data ../made/text --token-nll d/nll --json --force --threads 2)
}
state_eval() { whole_file d/nll eval ../made/eval.d/nll ../made/old.jsonl; }
left_eval() { ls -A d | grep -vx nll; }
before_eval="none new-but-short" after_eval="new" names_eval='d/\.?nll| d:|made/run|made/text|standard'

prepare_eval_over() { mkdir -p d && cp ../made/old.jsonl d/nll; }
command_eval_over() { command_eval; }
state_eval_over() { state_eval; }
left_eval_over() { left_eval; }
before_eval_over="old new-but-short" after_eval_over="new" names_eval_over=$names_eval

# Those that write to stdout alone: the text so far, or all of it.
begun_output() { # NAME
  if same_output "$1"; then echo new
  elif [ "$(head -c "$(stat -c %s stdout)" "../made/$1.stdout" | od)" = "$(od < stdout)" ]; then echo begun
  else echo partial; fi
}

prepare_eval_several() { mkdir -p d; }
command_eval_several() {
  command=("$bin/mt-eval" --load ../made/run ../made/whole --valid-data ../made/text ../made/text2 --json --threads 2)
}
state_eval_several() { begun_output eval_several; }
left_eval_several() { ls -A d; }
before_eval_several="begun" after_eval_several="new" names_eval_several='made/run|made/whole|made/text|standard'

prepare_eval_scores() { mkdir -p d; }
command_eval_scores() {
  command=("$bin/mt-eval" --load ../made/run ../made/whole --scores ../made/pairs.jsonl --json --micro-batch-size 2
    --threads 2)
}
state_eval_scores() { begun_output eval_scores; }
left_eval_scores() { ls -A d; }
before_eval_scores="begun" after_eval_scores="new" names_eval_scores='made/run|made/whole|made/pairs\.jsonl|standard'

prepare_generate() { mkdir -p d; }
command_generate() {
  command=("$bin/mt-generate" --load ../made/run --greedy --prompt hi --num-tokens-to-generate 6 --threads 2)
}
state_generate() { begun_output generate; }
left_generate() { ls -A d; }
before_generate="begun" after_generate="new" names_generate='made/run|standard'

# Requests of a compressed file, several at once, sampled, JSON out.
prepare_generate_batch() { mkdir -p d; }
command_generate_batch() {
  command=("$bin/mt-generate" --load ../made/run --requests-file ../made/requests.jsonl.gz --json --micro-batch-size 3
    --top-p 0.9 --threads 2)
}
state_generate_batch() { begun_output generate_batch; }
left_generate_batch() { ls -A d; }
before_generate_batch="begun" after_generate_batch="new" names_generate_batch='made/run|made/requests\.jsonl\.gz|standard'
