# Sourced by the scripts of a program: runs a command and holds status, stdout and stderr against what is expected.
# shellcheck shell=bash
failures=0

# expect STATUS COMMAND...: runs it; $out and $err are its stdout and stderr (newlines at the end cut).
expect() {
  local wanted=$1 status
  shift
  "$@" > "$scratch/stdout" 2> "$scratch/stderr"
  status=$?
  out=$(tr -d '\0' < "$scratch/stdout") err=$(tr -d '\0' < "$scratch/stderr")
  [ "$status" -eq "$wanted" ] || fail "status $status, expected $wanted: $* | $err"
}

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# says TEXT...: each stands in $err.
says() {
  local text
  for text in "$@"; do
    case $err in *"$text"*) ;; *) fail "\"$text\" is not in: $err" ;; esac
  done
}

# refuses STATUS "TEXT" COMMAND...: ends with it, says the text in one line of the program's, writes nothing to stdout.
refuses() {
  local wanted=$1 text=$2
  shift 2
  expect "$wanted" "$@"
  says "$text" "$(basename "$1"): error: "
  [ "$(grep -c 'error: ' <<<"$err")" -eq 1 ] || fail "more than one line of errors: $err"
  [ -z "$out" ] || fail "stdout is not empty: $out"
}

finish() {
  [ "$failures" -eq 0 ] || echo "$failures failures"
  exit $((failures > 0))
}
