#!/bin/bash
# Saving a checkpoint while the system fails it, in the foreground and in the background: killed before each system call,
# each call failing in turn, the disk full at every level. After each the old or the new checkpoint is whole.
# Arguments: source folder, program folder, scratch folder.
source=$1 bin=$2
. "$source/test/fault/loops.sh"
tool=$(realpath "$bin/../test/save_tool") || exit 1
loops_most=${MT_LOOP_MOST:-15}
begin "$3"
mkdir old && "$tool" save old/run 1 2 || { echo "cannot save at all"; exit 1; }
[ "$("$tool" check old/run)" = 1 ] || { echo "cannot read at all"; exit 1; }

# A save that also removes the oldest checkpoint.
prepare_save() { mkdir -p d && cp -r ../old/run d/run; }
command_save() { command=("$tool" save d/run 2 1); }
again_save() { command=("$tool" save d/run 3 2) wanted=3; }
state_save() { "$tool" check d/run 2>&1; }
left_save() { ls -A d/run | grep -vxE '\.lock|latest|iter_000000[123]'; }
before_save="1" after_save="2" names_save='d/run'

prepare_async() { prepare_save; }
command_async() { command=("$tool" async d/run 2 1); }
again_async() { again_save; }
state_async() { state_save; }
left_async() { left_save; }
before_async="1" after_async="2" names_async=$names_save

for name in save async; do
  run_killed $name pwrite64 write fsync ftruncate openat close mkdir rename renameat2 link symlink unlink unlinkat rmdir
  for error in ENOSPC EIO; do
    run_failing $name $error pwrite64 write fsync ftruncate mkdir rename renameat2 link symlink openat
  done
  run_failing $name EIO close unlink unlinkat rmdir read pread64 getdents64 newfstatat
  check_points $name
  run_full $name "${MT_FILL_STEP:-8}"
done
# What a failed close was about had been synchronised, or was only read.
expect_harmless <(cat <<'END'
close \./d/run(/iter_N(/.*)?|/\.lock|/\.iter_N\.tmp(/.*)?)?
newfstatat d/run.*
unlink d/run/\.latest\.tmp
END
)
finish
