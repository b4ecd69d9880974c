#!/usr/bin/env bash
# share/slurm on a real Slurm: submit, signal, requeue, finish; the bytes are those of a run that nobody disturbed.
source "$(dirname "$0")/../cli/training_common.sh"
. "$source/test/grid/mpi.sh"
. "$source/test/slurm/slurm.sh"
make_data
slurm_up "$work/slurm"
export PATH=$bin:$PATH
sed -i '/^threads/d' tiny.conf
options=(--config "$work/tiny.conf" --data-path "$work/data.h5" --train-iters 400 --lr-decay-iters 400 --save-interval 150
  --eval-interval 200 --threads 1)
sed -i '/^data-path/d; /^train-iters/d; /^eval-interval/d' tiny.conf
timeout 120 mpirun -n 2 "$bin/mt-train" "${options[@]}" --save whole 2>whole.err || fail "undisturbed: $(tail -3 whole.err)"
last=iter_0000400

# submit SCRIPT RUN SBATCH-OPTION...: sets job and log.
submit() {
  local script=$1 run=$2
  shift 2
  log=$work/$run.log
  job=$(sbatch --parsable --output="$log" "$@" "$source/share/slurm/$script" "$work/$run" "${options[@]}" --metrics "$work/$run.jsonl") ||
    { fail "sbatch $script"; finish; }
}
stepping() { [ -s "$work/$1.jsonl" ] && [ "$(wc -l <"$work/$1.jsonl")" -ge 20 ]; }
is() { [ "$(job_state "$job")" = "$1" ]; }

# Stopped by SIGUSR1, as shortly before the end of the time: saved, queued again, finished.
submit one-node.sbatch again --ntasks=2 --time=5
await 60 stepping again || fail "the job makes no steps: $(tail -3 "$log")"
scancel -s USR1 "$job"
await 60 grep -q 'back into the queue' "$log" || fail "no requeue: $(tail -3 "$log")"
[ "$(grep -c 'stopped by signal 10 at iteration' "$log")" = 1 ] || fail "not stopped by the signal, or not told once: $(cat "$log")"
[ ! -e "again/$last" ] || fail "the run had ended before the signal came"
await 90 is COMPLETED || fail "the queued job does not finish: $(job_state "$job"): $(tail -3 "$log")"
scontrol show job "$job" | grep -q 'Restarts=1' || fail "restarts: $(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')"
grep -q 'going on from' "$log" || fail "did not go on from the checkpoint: $(cat "$log")"
same_folder "whole/$last" "again/$last" "requeued"
[ "$(grep -c '"loss"' again.jsonl)" -eq 400 ] || fail "metrics do not hold each step once"

# Cancelled: saved, not queued again.
submit many-nodes.sbatch cancelled --nodes=1 --ntasks-per-node=2 --time=5
await 60 stepping cancelled || fail "the job makes no steps: $(tail -3 "$log")"
scancel "$job"
await 60 is CANCELLED || fail "cancelled, but $(job_state "$job"): $(tail -3 "$log")"
grep -q 'back into the queue' "$log" && fail "a cancelled job was queued again"
ls cancelled | grep -q '^iter_' || fail "a cancelled job has saved nothing: $(tail -3 "$log")"

# Without PMIx nothing is trained, least of all by every rank alone.
checks=$((checks + 1))
timeout 60 srun --mpi=none -n 2 --quiet "$bin/mt-train" "${options[@]}" --save alone 2>alone.err && fail "trained without PMIx"
[ ! -d alone ] || ! ls alone | grep -q '^iter_' || fail "saved without PMIx"
finish
