# Sourced by the scripts that let the system fail a program: every call of a class failing in turn, the process killed
# before each call, the disk full at every level, and whatever else ends a run early. shellcheck shell=bash
#
# A scenario is a name NAME and, in the sourcing script (all run in a folder of a worker's own, relative paths only):
#   prepare_NAME       makes the folder d, where outputs go, and all that the run needs
#   command_NAME       sets the array command; its stdout goes to the file `stdout`
#   state_NAME         prints what is there afterwards: a word of $before_NAME, of $after_NAME, or another, which is a fault
#   before_NAME        the states that an unfinished run may leave
#   after_NAME         the states that a finished run must leave (words, as above)
#   left_NAME          prints temporaries and other leftovers in d
#   again_NAME         (if the same command is not what comes next) sets command, and the states it leaves in $wanted
#   names_NAME         extended regular expression of what an error message must name, one of
# run_failing, run_killed, run_full return nothing: they print a line with their figures and count failures.
set -u
export LC_ALL=C
loops_workers=${MT_LOOP_WORKERS:-2}
loops_most=${MT_LOOP_MOST:-30} # tries of one call of one scenario
failures=0
declare -A tried=()
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# begin SCRATCH: a fresh scratch folder; leaves with 77 where calls cannot be made to fail. Needs $bin.
begin() {
  scratch=$1
  calls_library=$(realpath "$bin/../test/libfailing_call.so") || exit 1
  rm -rf "$scratch" && mkdir -p "$scratch" && cd "$scratch" || exit 1
  with_call write 1 28 echo > echoed 2> message
  [ $? -eq 99 ] && { echo "SKIP: $(cat message)"; exit 77; }
  [ -s injected ] && [ ! -s echoed ] || { echo "$calls_library fails no call: $(cat message)"; exit 1; }
}

# with_call CALL,... [WHEN [ERROR]] COMMAND...: the WHEN-th of these calls since main began fails with the error of that
# number, or the process is killed before it; `injected` then gets a line about it.
with_call() {
  local class=$1 when=0 error=()
  shift
  if [[ $1 = [0-9]* ]]; then
    when=$1
    shift
    [[ $1 = [0-9]* ]] && { error=(MT_CALL_ERROR="$1"); shift; }
  fi
  timeout -k 1 60 env MT_CALL="$class" MT_CALL_WHEN="$when" "${error[@]}" MT_CALL_LOG=injected \
    LD_PRELOAD="$calls_library" "$@"
}

number_of() {
  case $1 in
    EIO) echo 5 ;; EAGAIN) echo 11 ;; ENOMEM) echo 12 ;; EMFILE) echo 24 ;; ENOSPC) echo 28 ;; EROFS) echo 30 ;;
    EDQUOT) echo 122 ;;
    *) echo "no such error in number_of: $1" ;;
  esac
}

finish() {
  echo "$failures failures"
  exit $((failures > 0))
}

reason_of() {
  case $1 in
    ENOSPC) echo "No space left on device" ;;
    EIO) echo "Input/output error" ;;
    EDQUOT) echo "Disk quota exceeded" ;;
    EROFS) echo "Read-only file system" ;;
    EMFILE) echo "Too many open files" ;;
    ENOMEM) echo "out of memory|Cannot allocate memory|no memory|cannot start [0-9]+ threads" ;;
    EAGAIN) echo "Resource temporarily unavailable|cannot start" ;;
    *) echo "no such error in reason_of: $1" ;;
  esac
}

# has WORD LIST: true if the word is one of the list's.
has() { case " $2 " in *" $1 "*) return 0 ;; esac; return 1; }

# of PREFIX NAME: the value of the variable PREFIX_NAME.
of() { local variable=$1_$2; echo "${!variable}"; }

# in_workers FUNCTION ARGUMENTS...: FUNCTION K ARGUMENTS... in $loops_workers processes, K = 0, 1, ..., each in a folder of
# its own with files `fails`, `points`, `harmless` and `refused`, which are brought together in $scratch.
in_workers() {
  local k jobs=()
  for ((k = 0; k < loops_workers; k++)); do
    rm -rf "w$k" && mkdir "w$k"
    (
      cd "w$k" && : > fails && : > points && : > harmless && : > refused
      fail() { echo "FAILED: $*" >> fails; }
      "$1" "$k" "${@:2}"
    ) &
    jobs+=($!)
  done
  for k in "${jobs[@]}"; do wait "$k"; done
  cat w*/fails
  failures=$((failures + $(cat w*/fails | wc -l)))
  points=$(cat w*/points | wc -l)
  cat w*/harmless >> "$scratch/harmless"
  refused=$(cat w*/refused | wc -l)
}

known_calls=write,pwrite64,fsync,fdatasync,ftruncate,fallocate,close,read,pread64,getdents64,flock,newfstatat,openat
known_calls+=,unlinkat,renameat2,open,mkdir,rename,unlink,rmdir,symlink,link,mmap

# count_calls NAME: one run of the scenario without a failure; how many of each call it makes, into the file NAME.calls.
count_calls() {
  rm -rf w && mkdir w
  (
    cd w && "prepare_$1" && "command_$1" &&
      MT_CALL_COUNT=../$1.calls with_call $known_calls "${command[@]}" > stdout 2> stderr
    [ $? -eq 0 ] || { echo "cannot run $1 at all: $(cat stderr)"; exit 1; }
    has "$("state_$1")" "$(of after "$1")" || { echo "$1 leaves $("state_$1")"; exit 1; }
    left=$("left_$1")
    [ -z "$left" ] || { echo "$1 leaves behind $left"; exit 1; }
  ) || { failures=$((failures + 1)); return 1; }
  [ -s "$1.calls" ] || { fail "$1: its calls were not counted"; return 1; }
}

# sum_of NAME CALL...: how many of these calls a run makes.
sum_of() { awk -v calls=" ${*:2} " 'index(calls, " " $1 " ") { n += $2 } END { print n + 0 }' "$1.calls"; }

# What the injected call was about, for the list of harmless ones: a path without what changes from run to run.
subject_of() {
  sed -E "s# /proc.*# /proc#; s# /sys.*# /sys#; s# \\(deleted\\)\$##; s#$scratch/w[0-9]+#.#; \
    s/\\.tmp\\.[0-9]+-[0-9a-z]+/.tmp/g; s/[0-9]{5,}/N/g; s#(pipe|socket):\\[.*#\\1#; \
    s#^(close|read|pread64) (\\./)?/?(usr/.*|lib.*|etc/.*|dev/.*)#\\1 system file#" injected
}

# stride_of NAME CALL: of a class with many calls only so many are tried, unless MT_LOOP_ALL is set; spread over the run.
stride_of() {
  [ -n "${MT_LOOP_ALL:-}" ] && { echo 1; return; }
  local n
  n=$(sum_of "$1" "$2")
  echo $(((n + loops_most - 1) / loops_most + (n == 0)))
}

# judge NAME WHAT STATUS ERROR: the outcome of a run in which something failed.
judge() {
  local name=$1 what=$2 status=$3 error=$4 state left
  state=$("state_$name")
  if [ "$status" -eq 0 ]; then
    has "$state" "$(of after "$name")" || fail "$what: status 0 but $state"
  elif [ "$status" -eq 4 ]; then
    echo "$what" >> refused
    has "$state" "$(of before "$name") $(of after "$name")" || fail "$what: $state ($(grep -m 1 'error: ' stderr))"
    [ "$(grep -c ': error: ' stderr)" -eq 1 ] || fail "$what: not one line: $(cat stderr)"
    [ -z "$error" ] || grep ': error: ' stderr | grep -qE "$(reason_of "$error")" || fail "$what: no reason: $(cat stderr)"
    case $error in ENOMEM | '') ;; *)
      grep ': error: ' stderr | grep -qE "$(of names "$name")" || fail "$what: names nothing: $(cat stderr)" ;;
    esac
  else
    fail "$what: status $status: $state: $(tail -n 3 stderr | tr '\n' '|')"
  fi
}

# What a run left is gone after the next one, which works (or, where all was done before, says that the target exists).
check_next() {
  local name=$1 what=$2 status done=0 wanted
  has "$("state_$name")" "$(of after "$name") new-but-short" && done=1
  wanted=$(of after "$name")
  if declare -F "again_$name" > /dev/null; then "again_$name"; else "command_$name"; fi
  "${command[@]}" > stdout 2> stderr
  status=$?
  if [ $done -eq 0 ] || [ $status -ne 2 ]; then
    [ $status -eq 0 ] || fail "$what: the next run: status $status: $(tail -n 1 stderr)"
    has "$("state_$name")" "$wanted" || fail "$what: the next run leaves $("state_$name")"
  fi
  [ -z "$("left_$name")" ] || fail "$what: the next run leaves behind $("left_$name")"
}

failing_worker() { # K NAME ERROR CALL...
  local k=$1 name=$2 error=$3 call n status left stride
  shift 3
  for call in "$@"; do
    stride=$(stride_of "../$name" "$call")
    for ((n = 1 + k * stride;; n += loops_workers * stride)); do
      rm -rf d stdout
      "prepare_$name" && "command_$name"
      with_call "$call" "$n" "$(number_of "$error")" "${command[@]}" > stdout 2> stderr
      status=$?
      [ -s injected ] || break
      echo "$call $n" >> points
      judge "$name" "$name: $call $n $error $(subject_of)" "$status" "$error"
      [ "$status" -ne 0 ] || subject_of >> harmless
      left=$("left_$name")
      # What cannot be removed stays until the next run; all else is removed at once.
      [[ -z $left || $call = unlink* || $call = rmdir || $status -eq 0 || $left = *-removed ]] || fail "$name: $call $n $error $(subject_of): left $left"
      [ -z "$left" ] || check_next "$name" "$name: after $call $n $error"
    done
  done
}

# check_points NAME: the loops over it were no empty ones.
check_points() {
  [ "${tried[$1]:-0}" -ge 30 ] || fail "$1: only ${tried[$1]:-0} calls failed"
}

# run_failing NAME ERROR CALL...: the Nth call after main begins fails with that error, N = 1, 2, ... until none does.
run_failing() {
  [ -s "$1.calls" ] || count_calls "$1" || return
  in_workers failing_worker "$@"
  tried[$1]=$((${tried[$1]:-0} + points))
  echo "$1: $2 in each ${*:3}: $points of $(sum_of "$1" "${@:3}") points, $refused with status 4, the others harmless"
}

killed_worker() { # K NAME CALL...
  local k=$1 name=$2 call n status stride
  shift 2
  for call in "$@"; do
    stride=$(stride_of "../$name" "$call")
    for ((n = 1 + k * stride;; n += loops_workers * stride)); do
      rm -rf d stdout
      "prepare_$name" && "command_$name"
      # The braces keep bash's own "Killed" away.
      { with_call "$call" "$n" "${command[@]}" > stdout 2> stderr; } 2> /dev/null
      status=$?
      [ $status -ne 0 ] || break
      echo "$call $n" >> points
      [ $status -eq 137 ] || fail "$name: killed before $call $n: status $status"
      has "$("state_$name")" "$(of before "$name") $(of after "$name")" || fail "$name: killed before $call $n: $("state_$name")"
      check_next "$name" "$name: killed before $call $n"
    done
  done
}

# run_killed NAME CALL...: SIGKILL before the Nth such call, N = 1, 2, ... to the end.
run_killed() {
  [ -s "$1.calls" ] || count_calls "$1" || return
  in_workers killed_worker "$@"
  [ "$points" -ge 5 ] || fail "$1: killed at $points points only"
  echo "$1: killed before each ${*:2}: $points of $(sum_of "$1" "${@:2}") points, whole and run again at each"
}

# run_full NAME STEP: a disk on which K = 0, STEP, 2 STEP ... KiB are free until the run succeeds. Needs the right to mount;
# where there is none, it says so.
run_full() {
  local name=$1 step=$2 free room status levels=0
  rm -rf full && mkdir full && cd full || return
  mkdir -p d
  if ! mount -t tmpfs -o size=4m tmpfs d 2>message; then
    echo "skipped: full disks of $name: $(cat message)"
    cd ..
    return
  fi
  for ((free = 0; free < 4096; free += step)); do
    find d -mindepth 1 -delete
    "prepare_$name" && "command_$name"
    room=$(df --output=avail -k d | tail -1)
    [ "$room" -gt "$free" ] || break
    head -c $(((room - free) * 1024)) /dev/zero > d/filler
    "${command[@]}" > d/stdout 2> stderr
    status=$?
    cp d/stdout stdout && rm -f d/stdout d/filler
    levels=$((levels + 1))
    judge "$name" "$name: $free KiB free" $status ENOSPC
    [ -z "$("left_$name")" ] || fail "$name: $free KiB free: left $("left_$name")"
    [ $status -ne 0 ] || break
  done
  [ $status -eq 0 ] || fail "$name: no level of the disk let it through"
  umount d
  cd .. && rm -rf full
  echo "$name: full disks: $levels levels, all but the last with status 4"
}

# expect_harmless FILE: the calls whose failure left no trace are just these (lines "CALL PATH"; patterns of grep -E).
expect_harmless() {
  local unlisted
  sort -u harmless 2>/dev/null > harmless.found
  unlisted=$(grep -vxE -f <(grep -v '^#' "$1") harmless.found)
  [ -z "$unlisted" ] || fail "these failures went unnoticed and are not in $(basename "$1"): $unlisted"
  echo "$(wc -l < harmless.found) kinds of call may fail without harm, as listed"
}

starved_worker() { # K NAME MODE LIBRARY NUMBERS
  local k=$1 name=$2 mode=$3 library=$4 numbers=$5 n status left
  for n in $(awk -v k="$k" -v workers="$loops_workers" 'NR % workers == k' "$numbers"); do
    rm -rf d stdout
    "prepare_$name" && "command_$name"
    # The braces keep bash's own "Aborted" away.
    { env MT_FAIL_AT="$n" ${mode:+MT_FAIL_FROM=1} LD_PRELOAD="$library" timeout -k 1 60 "${command[@]}" > stdout 2> stderr; } \
      2> /dev/null
    status=$?
    echo "$n" >> points
    judge "$name" "$name: allocation $n${mode:+ and later}" $status ENOMEM
    left=$("left_$name")
    # What could not be unwound, or removed without memory, goes with the next run.
    [ -z "$left" ] && continue
    echo "$n" >> harmless
    check_next "$name" "$name: after allocation $n${mode:+ and later}"
  done
}

# run_starved NAME LIBRARY POINTS: an allocation fails, once and then for ever: of those that are the first of a chain of
# callers so many, spread over the run; with POINTS "chains" each of those, with "all" all there are.
run_starved() {
  local name=$1 library=$2 wanted=$3 all before mode
  rm -rf w && mkdir w
  (
    cd w && "prepare_$name" && "command_$name"
    MT_FAIL_SITES=../sites MT_FAIL_COUNT=../count LD_PRELOAD=$library "${command[@]}" > stdout 2> stderr
  ) || { fail "$name: cannot run under $library: $(cat w/stderr)"; return; }
  read -r all before < count
  [ "$before" -eq 0 ] || fail "$name: $before allocations before main, where nothing can catch their failure"
  [ "$(wc -l < sites)" -gt 50 ] || fail "$name: only $(wc -l < sites) places allocate"
  case $wanted in
    all) seq "$all" > numbers ;;
    chains) cp sites numbers ;;
    *) awk -v n=$(($(wc -l < sites) / wanted + 1)) 'NR % n == 1 % n' sites > numbers ;;
  esac
  for mode in '' from; do
    in_workers starved_worker "$name" "$mode" "$library" "$scratch/numbers"
    [ "$points" -ge 20 ] && [ "$refused" -ge 15 ] || fail "$name: only $refused of $points allocations refused"
    echo "$name: memory refused $([ -n "$mode" ] && echo "from one on" || echo once): $points points of $all" \
      "($(wc -l < sites) chains of callers), $refused of them status 4, the others whole; the next run removed what" \
      "$(wc -l < harmless) left"
    rm -f harmless
  done
}
