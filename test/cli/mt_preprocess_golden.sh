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
cmp pile.h5 zst.h5 || fail "compressed input gives another shard"
finish
