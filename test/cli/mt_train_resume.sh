#!/usr/bin/env bash
# A run of 20 steps with dropout, and the same run in two lives of 7 and 13: the same files, the same reports.
source "$(dirname "$0")/training_common.sh"
make_data
twenty=("${train[@]}" --train-iters 20 --hidden-dropout 0.2 --attention-dropout 0.2)
expect 0 'saved whole/iter_0000020' "${twenty[@]}" --save whole --metrics whole.jsonl
expect 75 'stopping at iteration 7' "${twenty[@]}" --save cut --load cut --exit-interval 7 --metrics cut.jsonl
[ -d cut/iter_0000007 ] && [ ! -e cut/iter_0000020 ] || fail "the first life did not end after 7 steps: $(ls cut)"
expect 0 'saved cut/iter_0000020' "${twenty[@]}" --save cut --load cut --metrics cut.jsonl
same_folder whole/iter_0000020 cut/iter_0000020 "7 + 13 steps"
bits='"step":[0-9]*\|"samples":[0-9]*\|"lr":[^,]*\|"[a-z_]*loss":[^,]*\|"grad_norm":[^,]*'
diff <(grep -o "$bits" whole.jsonl) <(grep -o "$bits" cut.jsonl) >/dev/null || fail "metrics of 7 + 13 steps"
# Dropout draws: without it the run is another one.
expect 0 '' "${train[@]}" --train-iters 20 --hidden-dropout 0 --attention-dropout 0 --save dry
checks=$((checks + 1))
cmp -s whole/iter_0000020/model-pp00-tp00.h5 dry/iter_0000020/model-pp00-tp00.h5 && fail "dropout changes nothing"
finish
