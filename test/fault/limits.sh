#!/bin/bash
# The five programs where the system gives too little from the start: closed streams, a stdout that takes nothing, limits
# on files, descriptors and memory. Status 4 and one line, no signal, and files as after any other failure.
# Arguments: source folder, program folder, scratch folder.
source=$1 bin=$2
. "$source/test/fault/loops.sh"
. "$source/test/fault/programs.sh"
rm -rf "$3" && mkdir -p "$3" && cd "$3" && scratch=$3 || exit 1
make_inputs
cases=0

# limited NAME WHAT SETUP: the scenario under a setup that a shell runs before it; sets status.
limited() {
  local name=$1 what=$2 setup=$3
  rm -rf w && mkdir w && cd w || exit 1
  "prepare_$name" && "command_$name"
  { timeout -k 1 60 bash -c "$setup"'; exec "$@"' limited "${command[@]}" > stdout 2> stderr; } 2> /dev/null
  status=$?
  cases=$((cases + 1))
  cd ..
}

# refused NAME WHAT SETUP REASON: it ends with status 4 and the reason, and leaves nothing.
refused() {
  limited "$@"
  cd w || exit 1
  [ $status -eq 4 ] || fail "$1, $2: status $status: $(tail -n 2 stderr)"
  judge "$1" "$1, $2" $status ''
  grep ': error: ' stderr | grep -qE "$4" || fail "$1, $2: no reason: $(cat stderr)"
  [ -z "$("left_$1")" ] || fail "$1, $2: left $("left_$1")"
  cd ..
}

# works NAME WHAT SETUP: it does its work all the same; its stdout may not be there.
works() {
  limited "$@"
  cd w || exit 1
  [ $status -eq 0 ] || fail "$1, $2: status $status: $(tail -n 2 stderr)"
  has "$("state_$1")" "$(of after "$1") new-but-short begun" || fail "$1, $2: $("state_$1")"
  cd ..
}

for name in preprocess train_load reshard_copy eval generate; do
  works "$name" "stdin closed" 'exec <&-'
  works "$name" "stderr closed" 'exec 2>&-'
  works "$name" "stderr full" 'exec 2> /dev/full'
  # Those that write no data to stdout do not miss it.
  case $name in
    train_load | reshard_copy)
      works "$name" "stdout closed" 'exec >&-'
      works "$name" "stdout full" 'exec > /dev/full'
      works "$name" "all closed" 'exec <&- >&- 2>&-' ;;
    *)
      refused "$name" "stdout closed" 'exec >&-' 'cannot write standard output: Bad file descriptor'
      refused "$name" "stdout full" 'exec > /dev/full' 'cannot write standard output: No space left on device'
      limited "$name" "all closed" 'exec <&- >&- 2>&-'
      [ $status -eq 4 ] || fail "$name, all closed: status $status"
      # A reader that went away ends it without a word.
      rm -rf w && mkdir w && cd w || exit 1
      "prepare_$name" && "command_$name"
      mkfifo pipe
      : < pipe &
      { "${command[@]}" > pipe 2> stderr; } 2> /dev/null
      status=$?
      wait $!
      cases=$((cases + 1))
      # (It may have read nothing of a short output: the pipe holds that.)
      [ $status -eq 141 ] || [ $status -eq 0 ] || fail "$name, reader gone: status $status: $(cat stderr)"
      cd .. ;;
  esac
  refused "$name" "few descriptors" 'ulimit -n 5' 'Too many open files|cannot load|cannot start|HDF5'
  # As little memory as the loader can do with, then more until it works.
  # A small model needs little more than the loader.
  short=0 step=2000
  [ "$name" != generate ] || step=200
  for ((kib = 24000; kib < 400000; kib += step)); do
    # What libraries do before main is not ours: there --version fails in another way than with status 4.
    "command_$name"
    { (ulimit -v $kib && exec "${command[0]}" --version) > /dev/null 2>&1; } 2> /dev/null
    case $? in 0 | 4) ;; *) continue ;; esac
    limited "$name" "$kib KiB of memory" "ulimit -v $kib"
    cd w || exit 1
    judge "$name" "$name, $kib KiB of memory" $status ENOMEM
    [ -z "$("left_$name")" ] || check_next "$name" "$name, after $kib KiB of memory"
    cd ..
    [ $status -eq 4 ] || break
    short=$((short + 1))
  done
  [ $short -gt 0 ] || fail "$name: no limit of memory was too little"
  [ "$name" = generate ] || refused "$name" "short files" 'ulimit -f 1' 'File too large'
done
# stdout of a limited size is a file as well.
limited generate "a short stdout" 'printf "%1024s" "" ; ulimit -f 1'
[ $status -eq 4 ] || fail "a short stdout: status $status"
grep -q 'cannot write standard output: File too large' w/stderr || fail "a short stdout: $(cat w/stderr)"
echo "$cases cases"
finish
