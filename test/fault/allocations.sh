#!/bin/bash
# Memory refused: an allocation of a small run of each program fails, or it and all later ones do. Status 4 and one line, no
# signal, no hang, and files as after any other failure.
# Arguments: source folder, program folder, scratch folder, and the library that refuses (failing_new.cc).
source=$1 bin=$2
. "$source/test/fault/loops.sh"
. "$source/test/fault/programs.sh"
begin "$3"
library=$(realpath "$4") || exit 1
make_inputs
for name in ${MT_LOOP_SCENARIOS:-preprocess train_load reshard_import reshard_copy eval generate}; do
  run_starved "$name" "$library" "${MT_ALLOCATION_POINTS:-60}"
done
finish
