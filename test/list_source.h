// A source of tokens that are there already.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "eval/token_source.h"

namespace mt::testing {

// Gives them out in pieces.
class ListSource : public TokenSource {
 public:
  explicit ListSource(std::vector<std::int32_t> ids, std::size_t piece = 5)
      : ids_(std::move(ids)), piece_(piece) {}
  bool read_more(std::vector<std::int32_t>& ids) override {
    const std::size_t end = std::min(ids_.size(), at_ + piece_);
    ids.insert(ids.end(), ids_.begin() + static_cast<std::ptrdiff_t>(at_),
               ids_.begin() + static_cast<std::ptrdiff_t>(end));
    const bool more = end > at_;
    at_ = end;
    return more;
  }
  [[nodiscard]] Counts counts() const override {
    return {.tokens = static_cast<std::int64_t>(at_), .words = 3, .bytes = 7};
  }
  [[nodiscard]] const std::string& name() const override { return name_; }

 private:
  std::vector<std::int32_t> ids_;
  std::size_t piece_, at_ = 0;
  std::string name_ = "list";
};

}  // namespace mt::testing
