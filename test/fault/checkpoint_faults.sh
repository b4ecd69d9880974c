#!/bin/bash
# Saving a checkpoint while the system fails it: killed before each system call, each call failing
# in turn, the disk full at every level. After each the old or the new checkpoint is whole.
# Arguments: source folder, program folder, scratch folder.
set -u
scratch=$3
tool=${MT_SAVE_TOOL:-$scratch/../../save_tool}
run=$scratch/run
log=$scratch/log

rm -rf "$scratch"
mkdir -p "$scratch"
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

"$tool" save "$run" 1 2 || { echo "cannot save at all"; exit 1; }
[ "$("$tool" check "$run")" = 1 ] || { echo "cannot read at all"; exit 1; }

if ! strace -f -o /dev/null true 2>/dev/null; then
  echo "skipped: strace cannot trace here"
  exit 77
fi

# calls_of CLASS: "FIRST LAST": the calls of that class from the first that concerns the run, in a
# save that also removes the oldest checkpoint. strace counts the calls of each thread for itself:
# those of the thread that renames are meant, which writes the checkpoint.
calls_of() {
  awk -v call="$1" -v run="$run" '
    { line = $0; sub(/^[0-9]+ +/, "", line); name = line; sub(/\(.*/, "", name) }
    name != "execve" && index(line, run) { seen[$1] = 1 }
    name ~ /^rename/ { writer = $1 }
    name == call { n[$1]++; if (seen[$1] && !first[$1]) first[$1] = n[$1] }
    END { print first[writer] + 0, n[writer] + 0 }' "$scratch/trace"
}

reset_run() {
  rm -rf "$run"/iter_0000002 "$run"/.iter*
}

# ---- killed before every call, of a save in the foreground and of one in the background
for how in save async; do
  rm -rf "$run"
  "$tool" save "$run" 1 1 || fail "starting anew"
  strace -f -o "$scratch/trace" "$tool" $how "$run" 2 1 2>"$log" || fail "a traced $how: $(cat "$log")"
  [ "$("$tool" check "$run")" = 2 ] || fail "a traced $how is not read"
  [ -e "$run/iter_0000001" ] && fail "$how: --keep 1 kept two"
  points=0
  for call in pwrite64 write fsync ftruncate openat close mkdir rename renameat2 link symlink unlink \
              unlinkat rmdir; do
    read -r first last < <(calls_of "$call")
    [ "$first" -gt 0 ] || continue
    for ((n = first; n <= last; n++)); do
      rm -rf "$run"
      "$tool" save "$run" 1 1 2>"$log" || fail "$how: $call $n: starting anew: $(cat "$log")"
      # The braces keep bash's own "Killed" away.
      { strace -f -o /dev/null -e "inject=$call:signal=KILL:when=$n" "$tool" $how "$run" 2 1; } \
        >/dev/null 2>&1
      [ $? -eq 137 ] || [ "$n" -eq "$last" ] || fail "$how: $call $n: was not killed"
      found=$("$tool" check "$run" 2>"$log")
      case $found in
        1 | 2) points=$((points + 1)) ;;
        *) fail "killed before $call $n: found '$found': $(cat "$log")" ;;
      esac
    done
    # The next save clears away what the dead one left.
    "$tool" save "$run" 3 2 2>"$log" || fail "$how: $call: the next save: $(cat "$log")"
    left=$(ls -A "$run" | grep -vxE '\.lock|latest|iter_[0-9]+')
    [ -z "$left" ] || fail "$how: $call: left over: $left"
  done
  [ $points -gt 40 ] || fail "$how: only $points points"
  echo "kill -9 before every call of a save ($how): $points points, old or new checkpoint whole at each"
done
strace -f -o "$scratch/trace" "$tool" save "$run" 9 1 2>"$log" || fail "a traced save: $(cat "$log")"

# ---- every call failing
reasons() {
  case $1 in
    ENOSPC) echo "No space left on device" ;;
    EIO) echo "Input/output error" ;;
  esac
}
points=0
harmless=0
rm -rf "$run"
"$tool" save "$run" 1 2
for error in ENOSPC EIO; do
  for call in pwrite64 fsync ftruncate mkdir rename renameat2 link symlink openat close; do
    read -r first last < <(calls_of "$call")
    [ "$first" -gt 0 ] || continue
    for ((n = first; n <= last; n++)); do
      reset_run
      strace -f -o "$scratch/injected" -e "trace=$call" -e "inject=$call:error=$error:when=$n" \
        "$tool" save "$run" 2 2 >/dev/null 2>"$log"
      status=$?
      grep -q INJECTED "$scratch/injected" || continue # this save made fewer such calls
      points=$((points + 1))
      found=$("$tool" check "$run" 2>"$scratch/check")
      left=$(ls -A "$run" | grep -vxE '\.lock|latest|iter_000000[12]')
      if [ $status -eq 4 ]; then
        grep -qF "$(reasons $error)" "$log" || fail "$call $n $error: no reason: $(cat "$log")"
        grep -qF "$run" "$log" || fail "$call $n $error: no file: $(cat "$log")"
        [ "$(wc -l <"$log")" -eq 1 ] || fail "$call $n $error: more than a line: $(cat "$log")"
        [ "$found" = 1 ] || [ "$found" = 2 ] || fail "$call $n $error: found '$found'"
        [ -z "$left" ] || fail "$call $n $error: left over: $left"
      elif [ $status -eq 0 ] && [ "$call" = close ]; then
        # A descriptor that was only read.
        [ "$found" = 2 ] || fail "$call $n $error: exit 0 but found '$found'"
        harmless=$((harmless + 1))
      else
        fail "$call $n $error: exit $status: $(cat "$log")"
      fi
    done
  done
done
echo "every call of a save failing: $points points, $((points - harmless)) end with status 4," \
  "reason and file, $harmless closed what was only read"

# ---- a full disk
disk=$scratch/disk
mkdir -p "$disk"
if ! mount -t tmpfs -o size=1m tmpfs "$disk" 2>"$log"; then
  echo "skipped: full disks: $(cat "$log")"
else
  trap 'umount "$disk"' EXIT
  levels=0
  for ((free = 0; free < 1024; free += ${MT_FILL_STEP:-8})); do
    rm -rf "${disk:?}"/*
    "$tool" save "$disk/run" 1 2 || fail "saving on an empty disk"
    room=$(df --output=avail -k "$disk" | tail -1)
    [ "$room" -gt "$free" ] || break
    head -c $(((room - free) * 1024)) /dev/zero >"$disk/filler"
    "$tool" save "$disk/run" 2 2 2>"$log"
    status=$?
    levels=$((levels + 1))
    found=$("$tool" check "$disk/run" 2>&1)
    left=$(ls -A "$disk/run" | grep -vxE '\.lock|latest|iter_000000[12]')
    [ -z "$left" ] || fail "$free KiB free: left over: $left"
    if [ $status -eq 0 ]; then
      [ "$found" = 2 ] || fail "$free KiB free: found $found"
      break
    fi
    [ $status -eq 4 ] || fail "$free KiB free: exit $status: $(cat "$log")"
    grep -qF "No space left on device" "$log" || fail "$free KiB free: $(cat "$log")"
    [ "$found" = 1 ] || fail "$free KiB free: found $found"
  done
  [ $status -eq 0 ] || fail "no level of the disk let the save through"
  echo "full disks: $levels levels, $((levels - 1)) of them with status 4, the old one whole"
fi

echo "$failures failures"
[ $failures -eq 0 ]
