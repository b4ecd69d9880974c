#!/usr/bin/env bash
# mt-eval and mt-generate as ranks of mpirun: the output of one process, stdin, a closed pipe, a wrong number of ranks.
set -u
source=$1 bin=$2 scratch=$3
. "$source/test/grid/mpi.sh"
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
cd "$scratch" || exit 1
hf=$source/test/data/hf
"$bin/mt-reshard" --quiet "$hf/gpt-shakespeare" ckpt || exit 1

# on TENSOR PIPELINE PROGRAM [OPTION]...: as that grid.
on() {
  local tensor=$1 pipeline=$2 program=$3
  shift 3
  timeout 120 mpirun -n $((tensor * pipeline)) "$bin/$program" --threads 1 --load ckpt \
    --tensor-model-parallel-size "$tensor" --pipeline-model-parallel-size "$pipeline" "$@"
}

# Texts: prompts from stdin, more than there are slots, drawn with a seed.
printf 'What, ho!\n\nROMEO:\nA\nKING\n' > prompts
generate=(mt-generate --json --seed 7 --num-tokens-to-generate 20 --micro-batch-size 3 --prompts-file -)
on 1 1 "${generate[@]}" < prompts > one.json || fail "one rank"
[ "$(wc -l < one.json)" -eq 5 ] || fail "one rank gives $(wc -l < one.json) texts"
on 1 2 "${generate[@]}" < prompts > cut.json || fail "two stages"
cmp one.json cut.json || fail "two stages: other bytes"
on 2 2 "${generate[@]}" < prompts > cut.json || fail "2 x 2 ranks"
cmp <(jq -c '[.index, .text, .tokens]' one.json) <(jq -c '[.index, .text, .tokens]' cut.json) || fail "2 x 2 ranks: other texts"
for grid in "1 1" "2 2"; do
  # shellcheck disable=SC2086
  on $grid "${generate[@]}" --reduction tree --virtual-shards 4 < prompts > "tree${grid// /x}.json" || fail "tree on $grid"
done
cmp tree1x1.json tree2x2.json || fail "--reduction tree: other bytes on 2 x 2 ranks"
cmp -s one.json tree1x1.json && fail "--reduction tree sums as fast does"

# Scores and perplexities, with weights of half the size.
head -c 3000 "$hf/gpt-shakespeare/vocab.json" > text
printf '{"context": "What, ", "continuations": ["ho!", "no"], "answer": 0}\n{"context": "", "continuation": "KING"}\n' > lines
for options in "--valid-data text --overlapping-eval 50 --token-nll -" "--scores lines" "--scores lines --precision bf16"; do
  # shellcheck disable=SC2086
  on 1 1 mt-eval --json --quiet $options > one.json || fail "mt-eval on one rank: $options"
  # shellcheck disable=SC2086
  on 1 2 mt-eval --json --quiet $options > cut.json || fail "mt-eval on two stages: $options"
  cmp one.json cut.json || fail "two stages: other bytes: $options"
  # shellcheck disable=SC2086
  on 2 1 mt-eval --json --quiet $options > cut.json || fail "mt-eval on two tensor ranks: $options"
  jq -s --slurpfile one one.json -e '
    def all_numbers: [.. | numbers]; def near($a; $b): (($a - $b) | fabs) <= 1e-5 * ([1, ($b | fabs)] | max);
    [., $one] | map(all_numbers) | (.[0] | length) == (.[1] | length) and ([transpose[] | near(.[0]; .[1])] | all)' \
    cut.json > near || fail "two tensor ranks: other numbers: $options"
done

# A reader that has enough ends the job, in silence.
start=$SECONDS
yes ROMEO: | on 2 1 mt-generate --seed 7 --num-tokens-to-generate 10 --prompts-file - 2> err | head -n 1 > first
[ $((SECONDS - start)) -lt 60 ] || fail "a closed pipe ends nothing"
grep -q '^ROMEO:' first || fail "nothing before the pipe was closed: $(cat first err)"

# What does not go is said once, with the arithmetic, before anything is computed.
wrong() {
  local ranks=$1 text=$2 status
  shift 2
  timeout 60 mpirun -n "$ranks" "$bin/$1" --load ckpt "${@:2}" > out 2> err
  status=$?
  [ "$status" -eq 2 ] || fail "status $status, expected 2: $*"
  [ "$(grep -c 'error: ' err)" -eq 1 ] || fail "not one line of errors: $(cat err)"
  grep -qF -- "$text" err || fail "\"$text\" is not in: $(cat err)"
  [ ! -s out ] || fail "stdout is not empty: $(cat out)"
}
wrong 3 "started as 3 ranks: --tensor-model-parallel-size 2 x --pipeline-model-parallel-size 1 makes 2" \
  mt-generate --tensor-model-parallel-size 2
wrong 2 "started as 2 ranks" mt-eval --scores lines
wrong 3 "does not divide the model's 4 attention heads: 4 = 1 * 3 + 1" mt-generate --tensor-model-parallel-size 3
# Found by rank 0 while the others wait for what it asks.
wrong 2 "--num-tokens-to-generate 129" mt-generate --tensor-model-parallel-size 2 --num-tokens-to-generate 129
finish
