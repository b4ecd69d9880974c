#!/bin/bash
# Every system call that a program makes fails in turn: status 4, one line with path and reason, nothing half-written under
# a final name, no temporary left. What may fail without harm is listed in harmless.txt.
# Arguments: source folder, program folder, scratch folder. MT_LOOP_ERRORS and MT_LOOP_SCENARIOS widen or narrow the loops.
source=$1 bin=$2
. "$source/test/fault/loops.sh"
. "$source/test/fault/programs.sh"
begin "$3"
make_inputs

for name in ${MT_LOOP_SCENARIOS:-preprocess preprocess_several train_load train_async train_blend reshard_import
    reshard_copy $conversions eval eval_several eval_scores generate generate_batch}; do
  if [ -n "${MT_LOOP_ERRORS:-}" ]; then
    for error in $MT_LOOP_ERRORS; do
      run_failing "$name" "$error" write pwrite64 fsync fdatasync ftruncate renameat2 rename mkdir openat open close unlink \
        unlinkat rmdir symlink link
    done
  else
    run_failing "$name" ENOSPC write pwrite64 ftruncate mkdir
    run_failing "$name" EIO fsync fdatasync renameat2 rename openat open close symlink link
    run_failing "$name" EROFS unlink unlinkat rmdir
  fi
  run_failing "$name" EIO read pread64 getdents64 newfstatat
  run_failing "$name" ENOMEM mmap
  check_points "$name"
done
expect_harmless "$source/test/fault/harmless.txt"
check_sources
finish
