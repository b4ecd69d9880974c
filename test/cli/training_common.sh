# For the scripts that run mt-train: checks, and a small job. Sourced with the source folder, the folder of the programs
# and a scratch folder in $1, $2, $3.
set -u
source=$1 bin=$2 work=$3
export LC_ALL=C
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
[ -x "$bin/mt-train" ] || { echo "mt-train was not built"; exit 1; }
[ -x "$bin/mt-preprocess" ] || { echo "mt-preprocess was not built"; exit 1; }
failed=0
checks=0
fail() { echo "FAILED: $*"; failed=1; }

# expect STATUS PATTERN COMMAND...: the status, and that the last line on stderr has the pattern (an error is one line).
expect() {
  local wanted=$1 pattern=$2 found
  shift 2
  checks=$((checks + 1))
  "$@" >"$work/out" 2>"$work/err"
  found=$?
  [ "$found" -eq "$wanted" ] || fail "status $found, expected $wanted: $* ($(tail -1 "$work/err"))"
  [ -z "$pattern" ] || tail -n 2 "$work/err" | grep -qE -- "$pattern" || fail "no \"$pattern\" in \"$(tail -1 "$work/err")\": $*"
  if [ "$wanted" -ge 2 ] && [ "$wanted" -le 5 ]; then
    [ "$(grep -c 'error: ' "$work/err")" -eq 1 ] || fail "$(grep -c 'error: ' "$work/err") error lines: $*"
  fi
}

same_folder() {
  checks=$((checks + 1))
  diff -r "$1" "$2" >/dev/null || fail "$1 and $2 differ: $3"
}

# 60 documents of Shakespeare.
make_data() {
  head -c 120000 "$source/share/shakespeare/input.txt" | awk 'BEGIN { RS = ""; n = 0 }
    { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/\n/, "\\n"); text = text $0 "\\n\\n"
      if (++n % 9 == 0) { print "{\"text\": \"" text "\"}"; text = "" } }' > docs.jsonl
  "$bin/mt-preprocess" --input docs.jsonl --output-prefix data --vocab-file "$source/share/shakespeare/vocab.json" \
    --merge-file "$source/share/shakespeare/merges.txt" --append-eod >prep.log 2>&1 ||
    { cat prep.log; echo "mt-preprocess failed"; exit 1; }
}

# 12 steps of a tiny model, with dropout. In a file, since an option may stand once on a command line.
cat > tiny.conf <<'END'
num-layers = 2
hidden-size = 32
num-attention-heads = 2
seq-length = 32
max-position-embeddings = 32
micro-batch-size = 4
global-batch-size = 8
train-iters = 12
lr = 1e-2
lr-decay-style = cosine
lr-warmup-iters = 3
data-path = data.h5
split = 90,10,0
eval-iters = 2
eval-interval = 6
threads = 2
END
train=("$bin/mt-train" --config tiny.conf)

finish() {
  echo "$checks checks"
  [ "$failed" -eq 0 ] && rm -rf "$work"
  exit "$failed"
}
