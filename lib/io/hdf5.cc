#include "io/hdf5.h"

#include <hdf5.h>

#include <algorithm>

#include "base/error.h"
#include "io/hdf5_driver.h"
#include "io/hdf5_handle.h"

namespace mt {
namespace {

std::vector<hsize_t> dimensions(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

Hdf5Id make_space(const Shape& shape) {
  if (shape.empty()) {
    return {H5Screate(H5S_SCALAR), H5Sclose};
  }
  const std::vector<hsize_t> dims = dimensions(shape);
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

// A type of two bytes: sign in bit 15, then the exponent, then the mantissa.
Hdf5Id small_float(std::size_t exponent_bits, std::size_t bias) {
  Hdf5Id type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  const std::size_t mantissa_bits = 15 - exponent_bits;
  H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5Tset_size(type.get(), 2);
  H5Tset_ebias(type.get(), bias);
  return type;
}

Hdf5Id make_type(FileType type) {
  switch (type) {
    case FileType::kF32:
      return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case FileType::kF64:
      return {H5Tcopy(H5T_IEEE_F64LE), H5Tclose};
    case FileType::kBf16:
      return small_float(8, 127);
    case FileType::kF16:
      return small_float(5, 15);
    case FileType::kI32:
      return {H5Tcopy(H5T_STD_I32LE), H5Tclose};
    case FileType::kU16:
      return {H5Tcopy(H5T_STD_U16LE), H5Tclose};
    case FileType::kU8:
      return {H5Tcopy(H5T_STD_U8LE), H5Tclose};
    case FileType::kI64:
      return {H5Tcopy(H5T_STD_I64LE), H5Tclose};
    case FileType::kU64:
      return {H5Tcopy(H5T_STD_U64LE), H5Tclose};
  }
  return {};
}

Hdf5Id make_text_type(std::size_t bytes) {
  Hdf5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<std::size_t>(bytes, 1));
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

}  // namespace

std::string hdf5_version() {
  const Hdf5Lock lock;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return cat(major, ".", minor, ".", release);
}

FileType file_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FileType::kF32;
    case DType::kBf16:
      return FileType::kBf16;
    case DType::kF16:
      return FileType::kF16;
    case DType::kI32:
      return FileType::kI32;
    case DType::kU16:
      return FileType::kU16;
    case DType::kU8:
      return FileType::kU8;
  }
  return FileType::kU8;
}

// ---- writing

struct Hdf5Writer::State {
  struct DataSet {
    FileType type = FileType::kU8;
    Shape shape;
    ByteRange range;
    bool shown = false;  // virtual: has no bytes of its own
  };

  LatchedFile latch;
  Hdf5Id file, bfloat16;
  std::map<std::string, DataSet> data_sets;

  State(int fd, const std::string& path, std::uint64_t user_block);
  void check(bool ok, const std::string& what) const {
    latch.check();
    if (!ok) {
      throw EnvironmentError(cat("cannot write ", latch.path, ": ", what, hdf5_reason()));
    }
  }
  // bf16 is committed as /bfloat16 with its first data set.
  Hdf5Id stored_type(FileType type);
  Hdf5Id create(const std::string& name, const Hdf5Id& type, const Shape& shape,
                const Hdf5Id& properties);
  void add_attribute(const std::string& object, const std::string& name, const Hdf5Id& type,
                     const Hdf5Id& space, const void* value);
};

Hdf5Writer::State::State(int fd, const std::string& path, std::uint64_t user_block) {
  start_hdf5();
  latch.fd = fd;
  latch.path = path;
  const Hdf5Id access(latching_access(&latch), H5Pclose);
  const Hdf5Id creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  // All metadata stays in memory until the file closes: nothing is ever read back, which a latched
  // error would have falsified.
  H5AC_cache_config_t cache{};
  cache.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  bool ok = H5Pget_mdc_config(access.get(), &cache) >= 0;
  cache.evictions_enabled = false;
  cache.incr_mode = H5C_incr__off;
  cache.flash_incr_mode = H5C_flash_incr__off;
  cache.decr_mode = H5C_decr__off;
  // Elements begin at multiples of 64 bytes, so that they may be used where they are mapped.
  ok = ok && H5Pset_mdc_config(access.get(), &cache) >= 0 &&
       H5Pset_alignment(access.get(), 1, 64) >= 0 &&
       H5Pset_userblock(creation.get(), user_block) >= 0 &&
       H5Pset_obj_track_times(creation.get(), false) >= 0;
  check(ok, "properties of the file");
  file = Hdf5Id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  check(file.valid(), "HDF5 cannot create the file");
}

Hdf5Id Hdf5Writer::State::stored_type(FileType type) {
  if (type == FileType::kBf16 && !bfloat16.valid()) {
    bfloat16 = make_type(type);
    const Hdf5Id properties(H5Pcreate(H5P_DATATYPE_CREATE), H5Pclose);
    H5Pset_obj_track_times(properties.get(), false);
    check(H5Tcommit2(file.get(), "bfloat16", bfloat16.get(), H5P_DEFAULT, properties.get(),
                     H5P_DEFAULT) >= 0,
          "type /bfloat16");
  }
  return type == FileType::kBf16 ? Hdf5Id(H5Topen2(file.get(), "bfloat16", H5P_DEFAULT), H5Tclose)
                                 : make_type(type);
}

Hdf5Id Hdf5Writer::State::create(const std::string& name, const Hdf5Id& type, const Shape& shape,
                                 const Hdf5Id& properties) {
  const Hdf5Id space = make_space(shape);
  const Hdf5Id link(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(link.get(), 1);
  H5Pset_char_encoding(link.get(), H5T_CSET_UTF8);
  H5Pset_obj_track_times(properties.get(), false);
  Hdf5Id data_set(H5Dcreate2(file.get(), name.c_str(), type.get(), space.get(), link.get(),
                             properties.get(), H5P_DEFAULT),
                  H5Dclose);
  check(data_set.valid(), cat("data set ", name));
  return data_set;
}

void Hdf5Writer::State::add_attribute(const std::string& object, const std::string& name,
                                      const Hdf5Id& type, const Hdf5Id& space, const void* value) {
  const Hdf5Id owner(H5Oopen(file.get(), object.c_str(), H5P_DEFAULT), H5Oclose);
  const Hdf5Id made(
      H5Acreate2(owner.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  check(made.valid() && H5Awrite(made.get(), type.get(), value) >= 0,
        cat("attribute ", name, " of ", object));
}

namespace {

// Contiguous, its place taken at once and not filled.
Hdf5Id contiguous() {
  Hdf5Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(properties.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
  return properties;
}

}  // namespace

Hdf5Writer::Hdf5Writer(const PendingFile& file, std::uint64_t user_block)
    : Hdf5Writer(file.fd(), file.temporary_path(), user_block) {}

Hdf5Writer::Hdf5Writer(int fd, const std::string& path, std::uint64_t user_block)
    : state_([&] {
        const Hdf5Lock lock;
        return std::make_unique<State>(fd, path, user_block);
      }()) {}

Hdf5Writer::~Hdf5Writer() {
  const Hdf5Lock lock;
  state_.reset();
}

void Hdf5Writer::create(const std::string& name, FileType type, const Shape& shape) {
  const Hdf5Lock lock;
  const std::string path = hdf5_absolute(name);
  const Hdf5Id properties = contiguous();
  const Hdf5Id data_set = state_->create(path, state_->stored_type(type), shape, properties);
  state_->data_sets[path] = {type, shape, hdf5_range(data_set)};
}

void Hdf5Writer::write_rows(const std::string& name, std::int64_t first, std::int64_t rows,
                            const void* data) {
  const Hdf5Lock lock;
  const std::string path = hdf5_absolute(name);
  const auto found = state_->data_sets.find(path);
  MT_ASSERT(found != state_->data_sets.end() && !found->second.shown);
  const State::DataSet& entry = found->second;
  MT_ASSERT(first >= 0 && rows >= 0 && first + rows <= (entry.shape.empty() ? 1 : entry.shape[0]));
  if (rows == 0 || entry.range.bytes == 0) {
    return;
  }
  const Hdf5Id type = state_->stored_type(entry.type);
  const Hdf5Id data_set(H5Dopen2(state_->file.get(), path.c_str(), H5P_DEFAULT), H5Dclose);
  if (entry.shape.empty()) {
    state_->check(H5Dwrite(data_set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0,
                  cat("data set ", path));
    return;
  }
  std::vector<hsize_t> start(entry.shape.size(), 0);
  std::vector<hsize_t> count = dimensions(entry.shape);
  start[0] = static_cast<hsize_t>(first);
  count[0] = static_cast<hsize_t>(rows);
  const Hdf5Id in_file = make_space(entry.shape);
  const Hdf5Id in_memory = make_space({count.begin(), count.end()});
  H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  state_->check(
      H5Dwrite(data_set.get(), type.get(), in_memory.get(), in_file.get(), H5P_DEFAULT, data) >= 0,
      cat("data set ", path));
}

void Hdf5Writer::write(const std::string& name, FileType type, const Shape& shape,
                       const void* data) {
  const Hdf5Lock lock;
  create(name, type, shape);
  write_rows(name, 0, shape.empty() ? 1 : shape[0], data);
}

void Hdf5Writer::write_text(const std::string& name, std::string_view text) {
  const Hdf5Lock lock;
  const std::string path = hdf5_absolute(name);
  const Hdf5Id type = make_text_type(text.size());
  const Hdf5Id data_set = state_->create(path, type, {}, contiguous());
  state_->data_sets[path] = {FileType::kU8, {}, {hdf5_range(data_set).offset, text.size()}};
  state_->check(H5Dwrite(data_set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                         text.empty() ? "" : text.data()) >= 0,
                cat("data set ", path));
}

void Hdf5Writer::write_virtual(const std::string& name, FileType type, const Shape& shape,
                               const std::vector<VirtualPart>& parts) {
  const Hdf5Lock lock;
  const std::string path = hdf5_absolute(name);
  const Hdf5Id stored = state_->stored_type(type);
  if (shape.empty() && parts.size() == 1) {  // HDF5 has no virtual scalars: a link shows it
    const Hdf5Id link(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(link.get(), 1);
    state_->check(
        H5Lcreate_external(parts[0].file.c_str(), parts[0].data_set.c_str(), state_->file.get(),
                           path.c_str(), link.get(), H5P_DEFAULT) >= 0,
        cat("link ", path));
    return;
  }
  const Hdf5Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const Hdf5Id whole = make_space(shape);
  for (const VirtualPart& part : parts) {
    if (std::find(part.extent.begin(), part.extent.end(), 0) != part.extent.end()) {
      continue;
    }
    const std::vector<hsize_t> start = dimensions(part.offset);
    const std::vector<hsize_t> count = dimensions(part.extent);
    const Hdf5Id source = make_space(part.extent);
    H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
    state_->check(H5Pset_virtual(properties.get(), whole.get(), part.file.c_str(),
                                 part.data_set.c_str(), source.get()) >= 0,
                  cat("virtual data set ", path));
  }
  state_->create(path, stored, shape, properties);
  state_->data_sets[path] = {type, shape, {}, true};
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name,
                           std::string_view text) {
  const Hdf5Lock lock;
  state_->add_attribute(object, name, make_text_type(text.size()), make_space({}),
                        text.empty() ? "" : text.data());
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name, std::int64_t value) {
  const Hdf5Lock lock;
  state_->add_attribute(object, name, make_type(FileType::kI64), make_space({}), &value);
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name, double value) {
  const Hdf5Lock lock;
  state_->add_attribute(object, name, make_type(FileType::kF64), make_space({}), &value);
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name,
                           std::span<const std::int64_t> values) {
  const Hdf5Lock lock;
  const Hdf5Id space = make_space({static_cast<std::int64_t>(values.size())});
  state_->add_attribute(object, name, make_type(FileType::kI64), space, values.data());
}

ByteRange Hdf5Writer::range(const std::string& name) const {
  const Hdf5Lock lock;
  const auto found = state_->data_sets.find(hdf5_absolute(name));
  MT_ASSERT(found != state_->data_sets.end());
  return found->second.range;
}

std::map<std::string, ByteRange> Hdf5Writer::close() {
  const Hdf5Lock lock;
  state_->bfloat16.reset();
  const bool closed = state_->file.reset();
  state_->check(closed, "HDF5 cannot finish the file");
  std::map<std::string, ByteRange> ranges;
  for (const auto& [name, entry] : state_->data_sets) {
    if (!entry.shown) {
      ranges[name] = entry.range;
    }
  }
  return ranges;
}

}  // namespace mt
