#include "model/inference_command.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace mt {
namespace {

constexpr std::size_t kFirst = 512;  // bytes of the first message
struct Header {
  InferenceCommand::Kind kind = InferenceCommand::Kind::kEnd;
  std::uint64_t numbers = 0, tokens = 0, labels = 0;
};
static_assert(sizeof(Header) < kFirst);

// Calls part(memory, bytes) for everything that the message is made of.
template <typename Part>
void each_part(InferenceCommand& command, const Part& part) {
  part(command.numbers.data(), command.numbers.size() * sizeof(std::int64_t));
  part(command.tokens.data(), command.tokens.size() * sizeof(std::int32_t));
  part(command.labels.data(), command.labels.size() * sizeof(std::int32_t));
}

}  // namespace

void broadcast_command(const Communicator& world, InferenceCommand& command) {
  if (world.size() == 1) return;
  const bool leads = world.rank() == 0;
  Header header{.kind = command.kind,
                .numbers = command.numbers.size(),
                .tokens = command.tokens.size(),
                .labels = command.labels.size()};
  std::vector<std::byte> message(kFirst);
  const auto size = [&] {
    return sizeof(Header) + header.numbers * sizeof(std::int64_t) +
           (header.tokens + header.labels) * sizeof(std::int32_t);
  };
  if (leads) {
    message.resize(std::max(kFirst, size()));
    std::memcpy(message.data(), &header, sizeof(Header));
    std::byte* to = message.data() + sizeof(Header);
    each_part(command, [&](const void* from, std::size_t bytes) {
      if (bytes > 0) std::memcpy(to, from, bytes);
      to += bytes;
    });
  }
  world.broadcast(message.data(), kFirst, 0);
  if (!leads) std::memcpy(&header, message.data(), sizeof(Header));
  if (const std::size_t whole = size(); whole > kFirst) {
    message.resize(whole);
    world.broadcast(message.data() + kFirst, static_cast<std::int64_t>(whole - kFirst), 0);
  }
  if (leads) return;
  command.kind = header.kind;
  command.numbers.resize(header.numbers);
  command.tokens.resize(header.tokens);
  command.labels.resize(header.labels);
  const std::byte* from = message.data() + sizeof(Header);
  each_part(command, [&](void* to, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    from += bytes;
  });
}

}  // namespace mt
