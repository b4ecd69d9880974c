#include "io/hdf5_driver.h"

#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>

#include "base/error.h"

namespace mt {
namespace {

// What HDF5 holds of an open file. The public part comes first, as the library demands.
struct OpenFile {
  H5FD_t base{};
  LatchedFile* latch = nullptr;
  haddr_t end_of_allocation = 0;
  haddr_t end_of_file = 0;
};
static_assert(std::is_standard_layout_v<OpenFile>);

struct AccessInfo {
  LatchedFile* latch = nullptr;
};

constexpr haddr_t kMaxAddress = (haddr_t{1} << 62) - 1;

OpenFile* self(H5FD_t* file) {
  return reinterpret_cast<OpenFile*>(file);
}
const OpenFile* self(const H5FD_t* file) {
  return reinterpret_cast<const OpenFile*>(file);
}

void latch_error(LatchedFile& latch, const char* call, haddr_t offset) {
  if (latch.error == 0) {
    latch.error = errno != 0 ? errno : EIO;
    latch.error_call = call;
    latch.error_offset = offset;
  }
}

H5FD_t* open_file(const char* /*name*/, unsigned /*flags*/, hid_t access, haddr_t /*most*/) {
  const auto* info = static_cast<const AccessInfo*>(H5Pget_driver_info(access));
  if (info == nullptr || info->latch == nullptr) {
    return nullptr;
  }
  try {
    auto file = std::make_unique<OpenFile>();
    file->latch = info->latch;
    return &file.release()->base;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    latch_error(*info->latch, "opening", 0);
    return nullptr;
  }
}

herr_t close_file(H5FD_t* file) {
  const std::unique_ptr<OpenFile> owned(self(file));
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const int x = self(a)->latch->fd;
  const int y = self(b)->latch->fd;
  return x < y ? -1 : (x > y ? 1 : 0);
}

herr_t query(const H5FD_t* /*file*/, unsigned long* flags) {
  if (flags != nullptr) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
             H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  }
  return 0;
}

haddr_t end_of_allocation(const H5FD_t* file, H5FD_mem_t /*type*/) {
  return self(file)->end_of_allocation;
}

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t /*type*/, haddr_t address) {
  self(file)->end_of_allocation = address;
  return 0;
}

haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t /*type*/) {
  return self(file)->end_of_file;
}

// Bytes that were never written read as zeros.
herr_t read_bytes(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address,
                  size_t size, void* buffer) {
  LatchedFile& latch = *self(file)->latch;
  auto* out = static_cast<char*>(buffer);
  while (size > 0) {
    const ssize_t got = ::pread(latch.fd, out, size, static_cast<off_t>(address));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      latch_error(latch, "read", address);
    }
    if (got <= 0) {
      std::memset(out, 0, size);
      return 0;
    }
    out += got;
    address += static_cast<haddr_t>(got);
    size -= static_cast<size_t>(got);
  }
  return 0;
}

herr_t write_bytes(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address,
                   size_t size, const void* buffer) {
  OpenFile& open = *self(file);
  open.end_of_file = std::max(open.end_of_file, address + size);
  const auto* in = static_cast<const char*>(buffer);
  while (size > 0 && open.latch->error == 0) {
    errno = 0;
    const ssize_t put = ::pwrite(open.latch->fd, in, size, static_cast<off_t>(address));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      latch_error(*open.latch, "write", address);
      break;
    }
    in += put;
    address += static_cast<haddr_t>(put);
    size -= static_cast<size_t>(put);
  }
  return 0;
}

// Called with the final size when the file closes.
herr_t truncate_file(H5FD_t* file, hid_t /*transfer*/, hbool_t /*closing*/) {
  OpenFile& open = *self(file);
  if (open.end_of_file == open.end_of_allocation) {
    return 0;
  }
  open.end_of_file = open.end_of_allocation;
  while (open.latch->error == 0 &&
         ::ftruncate(open.latch->fd, static_cast<off_t>(open.end_of_file)) != 0) {
    if (errno != EINTR) {
      latch_error(*open.latch, "set the size of", open.end_of_file);
    }
  }
  return 0;
}

herr_t get_handle(H5FD_t* file, hid_t /*access*/, void** handle) {
  *handle = &self(file)->latch->fd;
  return 0;
}

// A template, so that fields which only later versions of HDF5 have need no preprocessor.
template <typename Class>
Class driver_class() {
  Class driver{};
  if constexpr (requires { driver.version; }) {
    driver.version = 1;  // H5FD_CLASS_VERSION
    driver.value = 600;  // of the range that is free for private use
  }
  driver.name = "mt-latching";
  driver.maxaddr = kMaxAddress;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(AccessInfo);
  driver.open = open_file;
  driver.close = close_file;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = end_of_file;
  driver.get_handle = get_handle;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  const H5FD_mem_t one_kind[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(one_kind), std::end(one_kind), std::begin(driver.fl_map));
  return driver;
}

}  // namespace

void LatchedFile::check() const {
  if (error != 0) {
    throw EnvironmentError(cat("cannot ", error_call, " ", path, ": at offset ", error_offset, ": ",
                               std::strerror(error)));
  }
}

std::int64_t latching_access(LatchedFile* file) {
  static const H5FD_class_t driver = driver_class<H5FD_class_t>();
  static const hid_t registered = H5FDregister(&driver);
  const AccessInfo info{file};
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (registered < 0 || access < 0 || H5Pset_driver(access, registered, &info) < 0) {
    throw EnvironmentError(cat(file->path, ": HDF5 does not accept the file driver"));
  }
  return access;
}

}  // namespace mt
