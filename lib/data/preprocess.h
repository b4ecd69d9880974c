// JSON lines or plain texts -> token shard, with several threads. The result does not depend on
// their number: batches of lines are written in the order in which they were read. Memory is
// bounded by a few batches a thread, each of some 256 KiB of lines, one longer line or one plain
// text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/document_writer.h"
#include "text/tokenizer.h"

namespace mt {

struct PreprocessOptions {
  std::vector<std::string> inputs;  // "-" is stdin
  bool plain = false;               // each input is one document, as it is
  std::string json_key = "text";
  bool append_eod = false;
  bool strict = false;
  int workers = 1;
  std::int64_t log_interval = 0;  // documents between two log lines; 0: none
};

struct PreprocessCounts {
  std::int64_t inputs = 0;                // that were read to their end
  std::int64_t lines = 0, blank = 0;      // with `plain` 0
  std::int64_t documents = 0, empty = 0;  // empty ones are documents
  std::int64_t tokens = 0, text_bytes = 0;
  std::int64_t not_json = 0, not_object = 0, missing_key = 0, not_string = 0;
  std::int64_t replaced = 0, replaced_lines = 0;  // U+FFFD put in, and the lines that got one
  [[nodiscard]] std::int64_t bad() const {
    return not_json + not_object + missing_key + not_string;
  }
};

// Adds the documents of all inputs to `writer`, which the caller closes. Bad lines are logged as
// "FILE:LINE: reason", the first 100 of them, and counted; with `strict` the first one, or the
// first line with something to replace, is a DataError. So is an input whose first ten lines (or
// all, of fewer) neither are JSON nor begin with a brace: a plain text. Throws DataError if there
// is not one document (naming the keys that were seen), EnvironmentError before anything is read if
// an input cannot be opened. On a terminal a line of progress is redrawn (base/log.h).
[[nodiscard]] PreprocessCounts preprocess(const PreprocessOptions& options,
                                          const Tokenizer& tokenizer, DocumentWriter& writer);

}  // namespace mt
