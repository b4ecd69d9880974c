#!/bin/bash
# SIGKILL before every call by which a program writes: afterwards the target is absent, the former one or whole, the same
# command works, and nothing of the dead one is left. And a disk that is full, at every level.
# Arguments: source folder, program folder, scratch folder.
source=$1 bin=$2
. "$source/test/fault/loops.sh"
. "$source/test/fault/programs.sh"
begin "$3"
make_inputs
writing=(write pwrite64 fsync fdatasync ftruncate renameat2 rename mkdir link symlink unlink unlinkat)
[ -n "${MT_LOOP_ALL:-}" ] && writing+=(openat close rmdir flock pread64)
for name in ${MT_LOOP_SCENARIOS:-preprocess_over train_load train_async reshard_import reshard_over $conversions eval_over}; do
  run_killed "$name" "${writing[@]}"
done
declare -A step=([reshard_import]=256 [train_load]=32 [train_async]=32 [reshard_copy]=32 [reshard_grid]=32 [reshard_half]=32
  [reshard_model]=32 [reshard_safetensors]=16 [reshard_gguf]=16 [reshard_llmc]=16) # KiB; of small outputs each page
for name in ${MT_LOOP_SCENARIOS:-preprocess preprocess_over train_load train_async reshard_import reshard_copy $conversions eval
    eval_scores generate generate_batch}; do
  run_full "$name" "${MT_FILL_STEP:-${step[$name]:-4}}"
done
check_sources
finish
