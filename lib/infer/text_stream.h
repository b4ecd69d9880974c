// The two filters between the bytes of tokens and a reader: one ends the text at a stop string, one
// lets only whole characters through.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mt {

// Ends a stream of bytes where the first of several stop strings is complete, wherever the borders
// of tokens lie: a function of the bytes alone. Of strings that are complete at the same byte the
// longest counts. Bytes that may begin a stop string are held back until that is decided.
class StopText {
 public:
  // Throws UsageError for an empty string and for one of more than 1 Ki bytes.
  explicit StopText(std::vector<std::string> stops);

  // Appends to out what may go out now. True: a stop string is complete; nothing of it and nothing
  // after it goes out, and there is no further call.
  [[nodiscard]] bool push(std::string_view bytes, std::string& out);
  // What was held back, at the end of a text without a stop string.
  [[nodiscard]] std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;         // shorter than the longest stop string
  std::size_t longest_ = 0;  // bytes
};

// Cuts a stream of bytes between UTF-8 characters: a character that comes in several tokens leaves
// in one piece. Bytes that are not UTF-8 pass at once.
class CharacterStream {
 public:
  // The bytes that may go out now.
  [[nodiscard]] std::string push(std::string_view bytes);
  // What is left at the end of the stream, an unfinished character as it stands.
  [[nodiscard]] std::string finish();

 private:
  std::string held_;  // the beginning of a character, at most 3 bytes
};

}  // namespace mt
