// Where the documents of a token data set go, one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mt {

class DocumentWriter {
 public:
  DocumentWriter() = default;
  virtual ~DocumentWriter() = default;
  DocumentWriter(const DocumentWriter&) = delete;
  DocumentWriter& operator=(const DocumentWriter&) = delete;

  // One document, which may be empty. `set` is an index from set_id(), or -1. Throws DataError for
  // an id outside the vocabulary.
  virtual void add_document(const std::int32_t* ids, std::size_t count, int set) = 0;
  // The number of a part of a mixture, by its name.
  [[nodiscard]] virtual int set_id(std::string_view name) = 0;
  // Makes the data appear. Without it nothing is left behind. Throws DataError if there is not one
  // token.
  virtual void close() = 0;
};

}  // namespace mt
