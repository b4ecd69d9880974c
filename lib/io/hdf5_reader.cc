#include <hdf5.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "io/hdf5.h"
#include "io/hdf5_handle.h"

namespace mt {

struct Hdf5Reader::State {
  std::string path;
  Hdf5Id file, links;  // links: a property list that follows none to other files

  [[noreturn]] void fail(const std::string& object, const std::string& what) const {
    throw DataError(cat(path, ": ", object, ": ", what, hdf5_reason()));
  }
  Hdf5Id open_object(const std::string& name) const {
    Hdf5Id object(H5Oopen(file.get(), name.c_str(), links.get()), H5Oclose);
    if (!object.valid()) {
      fail(name, "no such object");
    }
    return object;
  }
  // A data set whose elements lie in this file.
  Hdf5Id open_data_set(const std::string& name) const;
  Hdf5Id open_attribute(const std::string& object, const std::string& name) const;
  Shape shape(const std::string& name, const Hdf5Id& data_set) const;
};

Hdf5Id Hdf5Reader::State::open_data_set(const std::string& name) const {
  Hdf5Id object = open_object(name);
  if (H5Iget_type(object.get()) != H5I_DATASET) {
    fail(name, "not a data set");
  }
  const Hdf5Id properties(H5Dget_create_plist(object.get()), H5Pclose);
  if (H5Pget_layout(properties.get()) == H5D_VIRTUAL ||
      H5Pget_external_count(properties.get()) != 0) {
    fail(name, "its elements lie in another file");
  }
  return object;
}

Hdf5Id Hdf5Reader::State::open_attribute(const std::string& object, const std::string& name) const {
  Hdf5Id attribute(H5Aopen(open_object(object).get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) {
    fail(object, cat("no attribute ", name));
  }
  return attribute;
}

Shape Hdf5Reader::State::shape(const std::string& name, const Hdf5Id& data_set) const {
  const Hdf5Id space(H5Dget_space(data_set.get()), H5Sclose);
  const int dims = H5Sget_simple_extent_ndims(space.get());
  if (dims < 0) {
    fail(name, "no simple shape");
  }
  std::vector<hsize_t> sizes(static_cast<std::size_t>(dims));
  H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
  return {sizes.begin(), sizes.end()};
}

namespace {

// The one string of a data set or attribute, whose own reading function is given.
template <typename Read>
std::string read_string(const Hdf5Id& type, const Hdf5Id& space, Read read, bool* ok) {
  *ok = H5Tget_class(type.get()) == H5T_STRING && H5Sget_simple_extent_npoints(space.get()) == 1;
  if (!*ok) {
    return "";
  }
  if (H5Tis_variable_str(type.get()) > 0) {
    char* text = nullptr;
    *ok = read(type.get(), &text) >= 0;
    const std::string copy = text != nullptr ? text : "";
    H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, &text);
    return copy;
  }
  std::string text(H5Tget_size(type.get()), '\0');
  *ok = read(type.get(), text.data()) >= 0;
  if (H5Tget_strpad(type.get()) == H5T_STR_NULLTERM) {
    text.resize(std::min(text.find('\0'), text.size()));
  }
  const char pad = H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD ? ' ' : '\0';
  text.resize(text.find_last_not_of(pad) + 1);
  return text;
}

template <typename T>
hid_t memory_type() {
  if constexpr (std::is_same_v<T, float>) {
    return H5T_NATIVE_FLOAT;
  } else if constexpr (std::is_same_v<T, double>) {
    return H5T_NATIVE_DOUBLE;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return H5T_NATIVE_INT32;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return H5T_NATIVE_INT64;
  } else if constexpr (std::is_same_v<T, std::uint16_t>) {
    return H5T_NATIVE_UINT16;
  } else {
    static_assert(std::is_same_v<T, std::uint8_t>);
    return H5T_NATIVE_UINT8;
  }
}

bool is_number(const Hdf5Id& type) {
  const H5T_class_t kind = H5Tget_class(type.get());
  return kind == H5T_FLOAT || kind == H5T_INTEGER;
}

}  // namespace

Hdf5Reader::Hdf5Reader(const std::string& path) : state_(std::make_unique<State>()) {
  const Hdf5Lock lock;
  start_hdf5();
  state_->path = path;
  static_cast<void>(open_regular(path));  // a missing file gets the system's reason
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), false, true);  // file systems without locks are readable too
  state_->file = Hdf5Id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!state_->file.valid()) {
    throw DataError(cat(path, ": not an HDF5 file that can be read", hdf5_reason()));
  }
  state_->links = Hdf5Id(H5Pcreate(H5P_LINK_ACCESS), H5Pclose);
  const auto refuse = [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
                         void*) -> herr_t { return -1; };
  H5Pset_elink_cb(state_->links.get(), refuse, nullptr);
}

Hdf5Reader::~Hdf5Reader() {
  const Hdf5Lock lock;
  state_.reset();
}
Hdf5Reader::Hdf5Reader(Hdf5Reader&&) noexcept = default;

std::vector<std::string> Hdf5Reader::names(const std::string& group) const {
  const Hdf5Lock lock;
  struct Found {
    std::vector<std::string> links;
    bool out_of_memory = false;
  } found;
  const auto collect = [](hid_t, const char* name, const H5L_info_t* info, void* out) -> herr_t {
    auto& into = *static_cast<Found*>(out);
    if (info->type == H5L_TYPE_HARD) {
      try {
        into.links.emplace_back(name);
      } catch (const std::bad_alloc&) {
        into.out_of_memory = true;
        return -1;
      }
    }
    return 0;
  };
  const Hdf5Id root = state_->open_object(group);
  if (H5Lvisit(root.get(), H5_INDEX_NAME, H5_ITER_INC, collect, &found) < 0) {
    if (found.out_of_memory) throw std::bad_alloc();
    state_->fail(group, "its objects cannot be listed");
  }
  const std::string front = group == "/" ? "/" : hdf5_absolute(group) + "/";
  std::vector<std::string> names;
  for (const std::string& link : found.links) {
    if (H5Iget_type(state_->open_object(front + link).get()) == H5I_DATASET) {
      names.push_back(front + link);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Hdf5Reader::contains(const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Id object(H5Oopen(state_->file.get(), name.c_str(), state_->links.get()), H5Oclose);
  return object.valid();
}

Shape Hdf5Reader::shape(const std::string& name) const {
  const Hdf5Lock lock;
  return state_->shape(name, state_->open_data_set(name));
}

template <typename T>
std::vector<T> Hdf5Reader::read(const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Id data_set = state_->open_data_set(name);
  const Hdf5Id type(H5Dget_type(data_set.get()), H5Tclose);
  if (!is_number(type)) {
    state_->fail(name, "not a data set of numbers");
  }
  std::int64_t count = 1;
  for (const std::int64_t size : state_->shape(name, data_set)) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count) ||
        count > std::numeric_limits<std::int64_t>::max() / 8) {
      state_->fail(name, "its shape is too large");
    }
  }
  const hsize_t stored = H5Dget_storage_size(data_set.get());
  if (count > 0 && stored == 0) {
    state_->fail(name, "was never written");
  }
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0 &&
      H5Dread(data_set.get(), memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    state_->fail(name, "cannot be read");
  }
  return values;
}
template std::vector<float> Hdf5Reader::read<float>(const std::string&) const;
template std::vector<double> Hdf5Reader::read<double>(const std::string&) const;
template std::vector<std::int32_t> Hdf5Reader::read<std::int32_t>(const std::string&) const;
template std::vector<std::int64_t> Hdf5Reader::read<std::int64_t>(const std::string&) const;
template std::vector<std::uint16_t> Hdf5Reader::read<std::uint16_t>(const std::string&) const;
template std::vector<std::uint8_t> Hdf5Reader::read<std::uint8_t>(const std::string&) const;

std::string Hdf5Reader::text(const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Id data_set = state_->open_data_set(name);
  const Hdf5Id type(H5Dget_type(data_set.get()), H5Tclose);
  const Hdf5Id space(H5Dget_space(data_set.get()), H5Sclose);
  bool ok = false;
  std::string text = read_string(
      type, space,
      [&](hid_t memory, void* out) {
        return H5Dread(data_set.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
      },
      &ok);
  if (!ok) {
    state_->fail(name, "not one string");
  }
  return text;
}

bool Hdf5Reader::has_attribute(const std::string& object, const std::string& name) const {
  const Hdf5Lock lock;
  return H5Aexists(state_->open_object(object).get(), name.c_str()) > 0;
}

std::string Hdf5Reader::text_attribute(const std::string& object, const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Id attribute = state_->open_attribute(object, name);
  const Hdf5Id type(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Id space(H5Aget_space(attribute.get()), H5Sclose);
  bool ok = false;
  std::string text = read_string(
      type, space, [&](hid_t memory, void* out) { return H5Aread(attribute.get(), memory, out); },
      &ok);
  if (!ok) {
    state_->fail(object, cat("attribute ", name, " is not one string"));
  }
  return text;
}

double Hdf5Reader::number_attribute(const std::string& object, const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Id attribute = state_->open_attribute(object, name);
  const Hdf5Id type(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Id space(H5Aget_space(attribute.get()), H5Sclose);
  double value = 0;
  if (!is_number(type) || H5Sget_simple_extent_npoints(space.get()) != 1 ||
      H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0) {
    state_->fail(object, cat("attribute ", name, " is not one number"));
  }
  return value;
}

ByteRange Hdf5Reader::range(const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Id data_set = state_->open_data_set(name);
  const Hdf5Id properties(H5Dget_create_plist(data_set.get()), H5Pclose);
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS) {
    state_->fail(name, "not contiguous");
  }
  return hdf5_range(data_set);
}

}  // namespace mt
