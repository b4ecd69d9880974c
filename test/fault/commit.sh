#!/bin/bash
# Every system call of a commit fails in turn, or the process is killed before it: the old content or the new one is
# there whole, and after a failure no temporary file is left and the reason is told with status 4.
set -u
probe=$2/../test/commit_probe
scratch=$3
rm -rf "$scratch" && mkdir -p "$scratch" && cd "$scratch" || exit 1
if ! command -v strace >/dev/null || ! strace -o /dev/null true 2>/dev/null; then
  echo "SKIP: strace cannot trace here"
  exit 77
fi
probe=$(realpath "$probe") || exit 1
failures=0
cases=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

new=$(head -c 5000 /dev/zero | tr '\0' a; head -c 5000 /dev/zero | tr '\0' b)

# The state of the target: old, new, none, or what is wrong.
state() {
  case $1 in
    directory)
      if [ ! -e d/target ]; then echo none
      elif [ "$(cat d/target/old 2>/dev/null)" = old ] && [ "$(ls d/target)" = old ]; then echo old
      elif [ "$(cat d/target/one)" = "$new" ] && [ "$(cat d/target/two)" = "$new" ]; then echo new
      else echo partial; fi ;;
    *)
      if [ ! -e d/target ]; then echo none
      elif [ "$(cat d/target)" = old ]; then echo old
      elif [ "$(cat d/target)" = "$new" ]; then echo new
      else echo partial; fi ;;
  esac
}

prepare() {
  rm -rf d
  mkdir d
  case $1 in
    replace) printf old >d/target ;;
    directory) mkdir d/target && printf old >d/target/old ;;
  esac
}

for kind in file replace directory; do
  before=old
  [ $kind = file ] && before=none
  for call in openat mkdir write pwrite64 fsync close renameat2 rename; do
    prepare $kind
    strace -qq -o trace -e trace=$call "$probe" $kind d/target 2>/dev/null
    count=$(grep -c "^$call(" trace)
    for n in $(seq "$count"); do
      # What is opened or closed before the program begins is the loader's.
      prepare $kind
      strace -qq -o trace -e trace=$call -e inject=$call:error=EIO:when=$n "$probe" $kind d/target 2>message
      status=$?
      line=$(grep INJECTED trace)
      case $line in *d/*|"$call("[0-9]*) ;; *) continue ;; esac
      cases=$((cases + 1))
      after=$(state $kind)
      left=$(ls -A d | grep -v '^target$')
      if [ $status = 0 ]; then
        # A close that fails after everything is on disk, or the removal of the old directory, may be passed over.
        [ "$after" = new ] || fail "$kind: $call $n failed, status 0, target is $after ($line)"
      elif [ $status = 4 ]; then
        [ "$after" = "$before" ] || [ "$after" = new ] || fail "$kind: $call $n failed: target is $after ($line)"
        [ "$(wc -l <message)" = 1 ] || fail "$kind: $call $n: message: $(cat message)"
        grep -q "commit_probe: error: cannot .*d.*: Input/output error" message || fail "$kind: $call $n: $(cat message)"
        [ -z "$left" ] || fail "$kind: $call $n left $left ($line)"
      elif [ $status = 127 ] || [ $status = 1 ]; then
        cases=$((cases - 1))  # the loader failed
      else
        fail "$kind: $call $n failed: status $status: $(cat message)"
      fi

      prepare $kind
      (strace -qq -o trace -e trace=$call -e inject=$call:signal=KILL:when=$n "$probe" $kind d/target; :) 2>/dev/null
      after=$(state $kind)
      [ "$after" = "$before" ] || [ "$after" = new ] || fail "$kind: killed at $call $n: target is $after"
      cases=$((cases + 1))
    done
  done
done
# Short writes and interrupted ones are no errors.
for inject in write:error=EINTR:when=1 fsync:error=EINTR:when=1 write:retval=100:when=1 pwrite64:retval=1:when=1; do
  prepare file
  strace -qq -o trace -e trace=write,pwrite64,fsync -e inject=$inject "$probe" file d/target || fail "$inject"
  cases=$((cases + 1))
  # With retval nothing is written for real, so the content is known only for the others.
  case $inject in *EINTR*) [ "$(state file)" = new ] || fail "$inject: target is $(state file)" ;; esac
done
# Filesystems without renameat2 flags, and without links.
prepare file
strace -qq -o trace -e trace=renameat2 -e inject=renameat2:error=EINVAL "$probe" file d/target || fail "no renameat2"
[ "$(state file)" = new ] || fail "no renameat2: target is $(state file)"
prepare file
strace -qq -o trace -e trace=renameat2,link -e inject=renameat2:error=EINVAL -e inject=link:error=EPERM "$probe" file d/target ||
  fail "no link"
[ "$(state file)" = new ] || fail "no link: target is $(state file)"
prepare directory
strace -qq -o trace -e trace=renameat2 -e inject=renameat2:error=EINVAL "$probe" directory d/target || fail "no exchange"
[ "$(state directory)" = new ] || fail "no exchange: target is $(state directory)"
[ "$(ls -A d)" = target ] || fail "no exchange left $(ls -A d)"
prepare replace
strace -qq -o trace -e trace=renameat2 -e inject=renameat2:error=EINVAL "$probe" file d/target 2>message
[ $? = 2 ] || fail "an existing target without renameat2: status $?"
[ "$(state replace)" = old ] || fail "an existing target without renameat2: $(state replace)"
cases=$((cases + 4))
# What survives a loss of power is what was synchronised before the rename, and the directory after it.
for kind in file replace; do
  prepare $kind
  strace -qq -y -o trace -e trace=openat,write,pwrite64,fsync,renameat2,rename "$probe" $kind d/target
  order=$(sed -n 's/^openat(.*\.tmp\.[^,]*, [^)]*O_EXCL[^)]*O_NOFOLLOW.*/create/p; s/^p*write[64]*(.*\.tmp\..*/write/p
    s/^fsync(.*\.tmp\..*/sync-file/p; s/^fsync(.*/sync-directory/p; s/^rename.*/rename/p' trace | uniq | tr '\n' ' ')
  [ "$order" = "create write sync-file rename sync-directory " ] || fail "$kind: the order is $order"
  cases=$((cases + 1))
done
prepare directory
strace -qq -y -o trace -e trace=fsync,renameat2,unlinkat,unlink "$probe" directory d/target
order=$(sed -n 's/^fsync(.*\(one\|two\)\.tmp\..*/file/p; s/^fsync([0-9]*<.*\/\.target\.tmp\.[^/]*>).*/directory/p
  s/^fsync([0-9]*<.*\/d>).*/parent/p; s/^renameat2(.*EXCHANGE.*/exchange/p; s/^unlink.*"old".*/remove-old/p' trace | tr '\n' ' ')
[ "$order" = "file directory file directory directory exchange parent remove-old " ] || fail "directory: the order is $order"
cases=$((cases + 1))

echo "$cases cases, $failures failures"
[ $cases -ge 60 ] || { echo "FAIL: only $cases cases"; exit 1; }
[ $failures = 0 ]
