#!/bin/bash
# Memory refused: an allocation of a small run of each program fails, or it and all later ones do. Status 4 and one line, no
# signal, no hang, and files as after any other failure.
# Arguments: source folder, program folder (beside which test/libfailing_new.so is), scratch folder.
source=$1 bin=$2
. "$source/test/fault/loops.sh"
. "$source/test/fault/programs.sh"
library=$(realpath "$2/../test/libfailing_new.so") || exit 1
begin "$3"
make_inputs
for name in ${MT_LOOP_SCENARIOS:-preprocess train_load train_async train_blend reshard_import reshard_copy reshard_grid reshard_safetensors reshard_gguf eval eval_several
    eval_scores generate generate_batch}; do
  run_starved "$name" "$library" "${MT_ALLOCATION_POINTS:-30}"
done
finish
