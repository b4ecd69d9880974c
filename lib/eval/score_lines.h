// Lines that ask for the likelihood of continuations, and their tokens. A line is a JSON object:
//   {"context": TEXT, "continuation": TEXT}              a pair
//   {"context": TEXT, "continuations": [TEXT, ...]}      a question with options
// and may hold "id" (anything, given back) and for a question "answer" (the right option, from 0).
// Other keys are ignored.
//
// The boundary of context and continuation is that of the lm-evaluation-harness: white space at the
// end of the context goes to the continuation, then context + continuation is encoded as one text,
// and what lies beyond as many tokens as the context alone has is the continuation. A context that
// is empty then is one end-of-text token; nothing else is put before a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace mt {

struct ScoreItem {
  std::uint64_t line = 0;
  Json id;                // null if the line has none
  bool question = false;  // has options, even if only one
  std::string context;
  std::vector<std::string> continuations;
  std::optional<std::int64_t> answer;
};
// False for a blank line. Throws DataError naming `where` (file and line).
[[nodiscard]] bool parse_score_line(std::string_view line, const std::string& where,
                                    ScoreItem& item);

struct EncodedScore {
  struct Option {
    std::vector<std::int32_t> tokens;        // context and continuation, after the cut
    std::int64_t bytes = 0, characters = 0;  // of the continuation as it was given
  };
  std::vector<Option> options;
  std::int64_t context = 0;  // tokens of the context, the same for all options, after the cut
  std::int64_t shared = 0;   // inputs that all options have in common, at most context - 1
  std::int64_t cut = 0;      // tokens cut off the context's left, the same for all options
  bool empty_context = false;

  // Scored tokens of an option.
  [[nodiscard]] std::int64_t scored(const Option& option) const {
    return static_cast<std::int64_t>(option.tokens.size()) - context;
  }
};

enum class LongContext { kCut, kRefuse };

// Throws DataError naming `where`: an empty continuation, one that has no token of its own because
// it joins the context's last one, one that does not fit into `positions`; with kRefuse also a
// context that would have to be cut.
[[nodiscard]] EncodedScore encode_score(const ScoreItem& item, Tokenizer& tokenizer,
                                        std::int64_t positions, LongContext policy,
                                        const std::string& where);

}  // namespace mt
