// A folder with a sample checkpoint "a", and ways to damage and read it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "test/fault/sample_checkpoint.h"

namespace mt::testing_data {

namespace fs = std::filesystem;

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string name = testing::TempDir() + "mt-checkpoint-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    save("a", 1);
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void save(const std::string& name, std::int64_t iteration, bool replace = false) const {
    mt::save_checkpoint(path(name), sample_checkpoint(iteration).content, *world_, replace);
  }
  // The message of the DataError that reading everything gives; "" if everything is right.
  [[nodiscard]] std::string fault(const std::string& name) const {
    try {
      check_sample(path(name), 1);
    } catch (const DataError& error) {
      return error.what();
    } catch (const mt::EnvironmentError& error) {
      return std::string("environment: ") + error.what();
    }
    return "";
  }
  // The names of all files of a checkpoint.
  [[nodiscard]] std::vector<std::string> files(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path(name))) {
      if (entry.is_regular_file()) {
        names.push_back(fs::relative(entry.path(), path(name)).string());
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // What a message about this byte of this file must say.
  [[nodiscard]] static std::string owner(const mt::Manifest& manifest, const std::string& file,
                                         std::uint64_t byte) {
    for (const auto& [name, tensor] : manifest.tensors) {
      for (const mt::StoredBox& box : tensor.boxes) {
        if (box.file == file && byte >= box.byte_offset && byte < box.byte_offset + box.bytes) {
          return file + ": tensor " + name + ":";
        }
      }
    }
    return file + ":";
  }
  [[nodiscard]] mt::Manifest manifest(const std::string& name) const {
    return mt::Manifest::parse(bytes_of(path(name) + "/manifest.json"), "manifest");
  }
  static std::string output(const std::string& command) {
    std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
    std::string text;
    char buffer[4096];
    while (std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) {
      text.append(buffer, n);
    }
    EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
    return text;
  }

  std::string folder_;
  std::unique_ptr<mt::Communicator> world_ = mt::make_single_communicator();
};

}  // namespace mt::testing_data
