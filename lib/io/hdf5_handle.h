// Owned HDF5 identifiers, for the sources of io/hdf5.h only.
#pragma once

#include <hdf5.h>
#include <sys/mman.h>

#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/hdf5.h"

namespace mt {

// Held around every call of the library, closing of identifiers included. Where a function of ours
// calls another, it is taken twice.
class Hdf5Lock {
 public:
  Hdf5Lock() : held_(mutex()) {}

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex of_process;
    return of_process;
  }
  std::lock_guard<std::recursive_mutex> held_;
};

// An owned HDF5 identifier.
class Hdf5Id {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Id() = default;
  Hdf5Id(hid_t id, Close close) : id_(id), close_(close) {}
  ~Hdf5Id() { reset(); }
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, -1);
      close_ = other.close_;
    }
    return *this;
  }
  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] bool valid() const { return id_ >= 0; }
  // Closes now; false if HDF5 reports a failure.
  bool reset() { return id_ < 0 || close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// Before a file is opened. Once a process: no error stack on stderr, no plugins loaded for unknown
// filters. Each time: HDF5 1.10 follows null pointers where malloc fails, so that what it needs
// must be there; throws std::bad_alloc if not.
inline void start_hdf5() {
  constexpr std::size_t kNeeded = std::size_t{16} << 20;  // address space
  void* const room =
      ::mmap(nullptr, kNeeded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, kNeeded);
  static const bool started = H5open() >= 0 && H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0 &&
                              H5PLset_loading_state(0) >= 0;
  if (!started) {
    throw EnvironmentError("the HDF5 library does not start");
  }
}

// The innermost description on HDF5's error stack, in parentheses.
inline std::string hdf5_reason() {
  std::string reason;
  const auto take = [](unsigned n, const H5E_error2_t* entry, void* out) -> herr_t {
    if (n == 0 && entry->desc != nullptr) {
      *static_cast<std::string*>(out) = entry->desc;
    }
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &reason);
  return reason.empty() ? "" : cat(" (HDF5: ", reason, ")");
}

// A name as a path from the root.
inline std::string hdf5_absolute(const std::string& name) {
  return !name.empty() && name.front() == '/' ? name : "/" + name;
}

// Contiguous elements of a data set; nothing for those that have no place of their own.
inline ByteRange hdf5_range(const Hdf5Id& data_set) {
  const haddr_t offset = H5Dget_offset(data_set.get());
  const hsize_t bytes = H5Dget_storage_size(data_set.get());
  return bytes == 0 ? ByteRange{} : ByteRange{offset, bytes};
}

}  // namespace mt
