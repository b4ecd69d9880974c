// Words between ranks.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mt {

// The text of rank `root`, on every rank. Collective.
[[nodiscard]] std::string broadcast_text(const Communicator& group, const std::string& text,
                                         int root = 0);

// The texts of all ranks in their order, on every rank. Collective.
[[nodiscard]] std::vector<std::string> gather_texts(const Communicator& group,
                                                    const std::string& text);
// The same at rank `root` alone, elsewhere nothing: no rank holds more than it must. One broadcast
// for each text that is not empty. Collective.
[[nodiscard]] std::vector<std::string> gather_texts_at(const Communicator& group,
                                                       const std::string& text, int root = 0);

}  // namespace mt
