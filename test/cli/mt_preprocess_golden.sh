#!/usr/bin/env bash
# mt-preprocess against the ids that Megatron-DeepSpeed's and OpenAI's encoders wrote for whole corpora.
source=$1 bin=$2 scratch=$3
rm -rf "$scratch"; mkdir -p "$scratch"
. "$source/test/cli/testing.sh"
shared=${MT_SHARED:-$source/../shared}/data
cd "$scratch" || exit 1
if [ ! -d "$shared/tokenizers" ]; then
  echo "SKIP: the shared corpora are absent ($shared)"
  exit 77
fi
# golden NAME INPUT TOKENIZER TOKENS SHA256: both of the tokens, as u16.
golden() {
  local range offset bytes found
  expect 0 "$bin/mt-preprocess" --input "$shared/$2" --output-prefix "$1" --append-eod \
    --vocab-file "$shared/tokenizers/$3/vocab.json" --merge-file "$shared/tokenizers/$3/merges.txt"
  says "$4 tokens"
  # The user block says where the tokens lie: the first part, at byte 96.
  range=$(od -A n -t u8 -j 96 -N 16 "$1.h5")
  read -r offset bytes <<<"$range"
  [ "$bytes" -eq $((2 * $4)) ] || fail "$1: $bytes bytes of tokens"
  found=$(tail -c +$((offset + 1)) "$1.h5" | head -c "$bytes" | sha256sum | cut -d' ' -f1)
  [ "$found" = "$5" ] || fail "$1: the ids have sha256 $found, expected $5"
}
golden owt megatron_indexed/openwebtext1000.jsonl.zst gpt2-tiny 1361845 \
  "$(sha256sum < "$shared/megatron_indexed/openwebtext1000_text_document.bin" | cut -d' ' -f1)"
pile=3dc14963254de7760044286effbe5335394470c810a5c69f119c6210105df671
golden pile pile/pile_sample.jsonl gpt2 3848866 $pile
golden zst pile/pile_sample.jsonl.zst gpt2 3848866 $pile
# The two files of Megatron-DeepSpeed's own run, byte for byte; and back into the shard of the same documents.
tiny="--vocab-file $shared/tokenizers/gpt2-tiny/vocab.json --merge-file $shared/tokenizers/gpt2-tiny/merges.txt"
# shellcheck disable=SC2086
expect 0 "$bin/mt-preprocess" --input "$shared/megatron_indexed/openwebtext1000.jsonl.zst" --output-prefix owt --append-eod \
  $tiny --output-format megatron
for kind in bin idx; do
  cmp "owt_text_document.$kind" "$shared/megatron_indexed/openwebtext1000_text_document.$kind" || fail "another .$kind than Megatron-DeepSpeed's"
done
# shellcheck disable=SC2086
expect 0 "$bin/mt-preprocess" --from-megatron "$shared/megatron_indexed/openwebtext1000" --output-prefix from $tiny
# shellcheck disable=SC2086
expect 0 "$bin/mt-preprocess" --from-megatron owt --output-prefix again --output-format megatron $tiny
cmp again_text_document.idx owt_text_document.idx && cmp again_text_document.bin owt_text_document.bin || fail "there and back: other bytes"
cmp zst.h5 pile.h5 || fail "compressed input gives another shard"
finish
