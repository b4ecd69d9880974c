#include "base/commit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"

namespace mt {
namespace {

namespace fs = std::filesystem;

// A fresh directory for each test.
class Commit : public testing::Test {
 protected:
  Commit() {
    std::string name = (fs::temp_directory_path() / "mt-commit-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~Commit() override { fs::remove_all(directory_); }
  Commit(const Commit&) = delete;
  Commit& operator=(const Commit&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  [[nodiscard]] std::set<std::string> listing() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  void put(const std::string& name, const std::string& content) const {
    PendingFile file(path(name), PendingFile::Existing::kReplace);
    file.write(content);
    file.commit();
  }
  [[nodiscard]] std::string get(const std::string& name) const {
    return read_file(path(name), 1 << 20);
  }

 private:
  std::string directory_;
};
using Names = std::set<std::string>;
constexpr auto kRefuse = PendingFile::Existing::kRefuse;
constexpr auto kReplace = PendingFile::Existing::kReplace;

template <typename E, typename F>
std::string message(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Commit, a_file_appears_whole_or_not_at_all) {
  {
    PendingFile file(path("a"), kRefuse);
    file.write("hello ");
    file.write("world");
    file.write_at(0, "J");
    EXPECT_FALSE(exists(path("a")));
    EXPECT_EQ(listing(), Names{fs::path(file.temporary_path()).filename()});
    EXPECT_EQ(fs::path(file.temporary_path()).filename().string().rfind(".a.tmp.", 0), 0U);
    file.commit();
  }
  EXPECT_EQ(listing(), Names{"a"});
  EXPECT_EQ(get("a"), "Jello world");
  {
    PendingFile file(path("b"), kRefuse);
    file.write("lost");
  }
  EXPECT_EQ(listing(), Names{"a"});
}

TEST_F(Commit, the_mode_follows_the_umask) {
  const mode_t old = ::umask(027);
  put("a", "x");
  ::umask(old);
  struct stat status {};
  ASSERT_EQ(::stat(path("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST_F(Commit, an_existing_file_is_refused_early_and_late) {
  put("a", "old");
  EXPECT_EQ(message<UsageError>([&] { PendingFile file(path("a"), kRefuse); }),
            "cannot write " + path("a") + ": it exists already");
  {
    PendingFile file(path("b"), kRefuse);
    file.write("mine");
    put("b", "theirs");
    EXPECT_THROW(file.commit(), UsageError);
  }
  EXPECT_EQ(get("b"), "theirs");
  EXPECT_EQ(listing(), (Names{"a", "b"}));
  // A link that leads nowhere is something, too.
  ASSERT_EQ(::symlink("nowhere", path("c").c_str()), 0);
  EXPECT_THROW(PendingFile(path("c"), kRefuse), UsageError);
}

TEST_F(Commit, a_link_to_a_device_and_a_name_with_a_slash_are_refused_at_once) {
  ASSERT_EQ(::symlink("/dev/null", path("null").c_str()), 0);
  for (const char* name : {"null", "new/"}) {
    EXPECT_THROW(PendingFile(path(name), PendingFile::Existing::kReplace), UsageError) << name;
  }
  EXPECT_TRUE(fs::is_symlink(path("null")));
}

TEST_F(Commit, replacing_a_link_leaves_its_target_alone) {
  put("target", "precious");
  ASSERT_EQ(::symlink("target", path("link").c_str()), 0);
  put("link", "new");
  EXPECT_EQ(get("target"), "precious");
  EXPECT_EQ(get("link"), "new");
  EXPECT_FALSE(fs::is_symlink(path("link")));
}

TEST_F(Commit, refuses_targets_that_are_no_files) {
  fs::create_directory(path("d"));
  EXPECT_THROW(PendingFile(path("d"), kReplace), UsageError);
  EXPECT_THROW(PendingFile("/dev/null", kReplace), UsageError);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0666), 0);
  EXPECT_THROW(PendingFile(path("fifo"), kReplace), UsageError);
  for (const char* const name : {"", "/", ".", "..", "x/.."}) {
    EXPECT_THROW(PendingFile(name, kReplace), UsageError) << name;
  }
  EXPECT_NE(message<EnvironmentError>([&] {
              PendingFile file(path("no/a"), kReplace);
            }).find("No such file or directory"),
            std::string::npos);
  EXPECT_EQ(listing(), (Names{"d", "fifo"}));
}

TEST_F(Commit, temporary_names_of_others_are_passed_over) {
  const std::string first = PendingFile(path("a"), kRefuse).temporary_path();
  ASSERT_EQ(::symlink("/etc/passwd", first.c_str()), 0);
  put("a", "x");
  EXPECT_EQ(get("a"), "x");
  EXPECT_TRUE(fs::is_symlink(first));
  PendingFile one(path("b"), kRefuse);
  PendingFile two(path("b"), kRefuse);
  EXPECT_NE(one.temporary_path(), two.temporary_path());
}

TEST_F(Commit, what_a_dead_job_left_is_removed_and_what_lives_is_not) {
  const PendingFile alive(path("a"), kRefuse);
  PendingDirectory directory(path("d"), kRefuse);
  std::ofstream(path(".a.tmp.1234-0")) << "left";
  std::ofstream(path(".a.tmp.1234-x")) << "not ours";
  std::ofstream(path(".ab.tmp.1234-0")) << "of another target";
  fs::create_directories(path(".d.tmp.1234-7/tokenizer"));
  std::ofstream(path(".d.tmp.1234-7/tokenizer/vocab.json")) << "left";
  {
    PendingFile next(path("a"), kRefuse);
    PendingDirectory other(path("d"), kRefuse);
    EXPECT_TRUE(fs::exists(alive.temporary_path()));
    EXPECT_TRUE(fs::exists(directory.path()));
    next.write("whole");
    next.commit();
  }
  EXPECT_EQ(get("a"), "whole");
  const std::set<std::string> expected = {"a", ".a.tmp.1234-x", ".ab.tmp.1234-0",
                                          fs::path(alive.temporary_path()).filename(),
                                          fs::path(directory.path()).filename()};
  EXPECT_EQ(listing(), expected);
  directory.commit();
  EXPECT_TRUE(fs::is_directory(path("d")));
}

TEST_F(Commit, the_longest_names_work) {
  const std::string name(255, 'n');
  put(name, "x");
  EXPECT_EQ(listing(), Names{name});
}

TEST_F(Commit, a_full_device_is_named_with_the_offset) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  EXPECT_EQ(message<EnvironmentError>([&] { write_fully(full.get(), "abc", 3, "out.h5"); }),
            "cannot write out.h5: at offset 0: No space left on device");
  EXPECT_EQ(message<EnvironmentError>([&] { write_fully_at(full.get(), "abc", 3, 7, "out.h5"); }),
            "cannot write out.h5: at offset 7: No space left on device");
}

TEST_F(Commit, a_directory_appears_whole_or_not_at_all) {
  {
    PendingDirectory pending(path("d"), kRefuse);
    EXPECT_FALSE(exists(path("d")));
    PendingFile file(pending.path() + "/x", kRefuse);
    file.write("1");
    file.commit();
    pending.commit();
  }
  EXPECT_EQ(listing(), Names{"d"});
  EXPECT_EQ(get("d/x"), "1");
  {
    PendingDirectory pending(path("e"), kRefuse);
    make_directories(pending.path() + "/deep/er");
  }
  EXPECT_EQ(listing(), Names{"d"});
}

TEST_F(Commit, an_existing_directory_is_refused_even_if_empty) {
  fs::create_directory(path("d"));
  EXPECT_THROW(PendingDirectory(path("d"), kRefuse), UsageError);
  {
    PendingDirectory pending(path("e"), kRefuse);
    fs::create_directory(path("e"));
    EXPECT_THROW(pending.commit(), UsageError);
  }
  EXPECT_EQ(listing(), (Names{"d", "e"}));
  put("f", "x");
  EXPECT_THROW(PendingDirectory(path("f"), kReplace), UsageError);
  ASSERT_EQ(::symlink("d", path("l").c_str()), 0);
  EXPECT_THROW(PendingDirectory(path("l"), kReplace), UsageError);
}

TEST_F(Commit, a_directory_is_replaced_as_a_whole) {
  fs::create_directory(path("d"));
  put("d/old", "1");
  {
    PendingDirectory pending(path("d/"), kReplace);
    PendingFile file(pending.path() + "/new", kRefuse);
    file.commit();
    EXPECT_TRUE(exists(path("d/old")));
    pending.commit();
  }
  EXPECT_EQ(listing(), Names{"d"});
  EXPECT_FALSE(exists(path("d/old")));
  EXPECT_TRUE(exists(path("d/new")));
}

TEST_F(Commit, removing_a_pending_directory_follows_no_link) {
  fs::create_directory(path("kept"));
  put("kept/file", "x");
  {
    PendingDirectory pending(path("d"), kRefuse);
    ASSERT_EQ(::symlink(path("kept").c_str(), (pending.path() + "/link").c_str()), 0);
  }
  EXPECT_EQ(get("kept/file"), "x");
}

TEST_F(Commit, a_second_process_finds_the_lock_held_and_by_whom) {
  const std::string directory = path("");
  auto lock = std::make_unique<DirectoryLock>(directory);
  const auto try_in_child = [&] {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string text =
          message<EnvironmentError>([&] { const DirectoryLock second(directory); });
      write_fully(ends[1], text.data(), text.size(), "pipe");
      ::_exit(0);
    }
    ::close(ends[1]);
    std::string text(1000, '\0');
    text.resize(static_cast<std::size_t>(::read(ends[0], text.data(), text.size())));
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return text;
  };
  EXPECT_NE(try_in_child().find("is in use by process " + std::to_string(::getpid()) + " on host "),
            std::string::npos)
      << try_in_child();
  lock.reset();
  EXPECT_EQ(try_in_child(), "no error");
  // The child has died with the lock.
  EXPECT_NO_THROW(DirectoryLock{directory});
}

TEST_F(Commit, a_lock_that_is_a_link_is_refused) {
  put("victim", "x");
  ASSERT_EQ(::symlink("victim", path(".lock").c_str()), 0);
  EXPECT_THROW(DirectoryLock{path("")}, EnvironmentError);
  EXPECT_EQ(get("victim"), "x");
  EXPECT_THROW(DirectoryLock{path("absent")}, EnvironmentError);
}

TEST_F(Commit, only_regular_files_are_opened_for_reading) {
  put("a", "0123456789");
  fs::create_directory(path("d"));
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0666), 0);
  ASSERT_EQ(::symlink("a", path("l").c_str()), 0);
  const auto refusal = [&](const std::string& name, Links links) {
    return message<Error>([&] { static_cast<void>(open_regular(name, links)); });
  };
  EXPECT_EQ(refusal(path("a"), Links::kRefuse), "no error");
  EXPECT_EQ(refusal(path("l"), Links::kFollow), "no error");
  EXPECT_NE(refusal(path("l"), Links::kRefuse).find("found a link"), std::string::npos);
  EXPECT_NE(refusal(path("d"), Links::kFollow).find("found a directory"), std::string::npos);
  EXPECT_NE(refusal(path("fifo"), Links::kFollow).find("found a FIFO"), std::string::npos);
  EXPECT_NE(refusal("/dev/null", Links::kFollow).find("found a device"), std::string::npos);
  EXPECT_EQ(refusal(path("x"), Links::kFollow),
            "cannot read " + path("x") + ": No such file or directory");
  const FileDescriptor fd = open_regular(path("a"));
  EXPECT_EQ(file_size(fd.get(), "a"), 10U);
  std::string text(4, '\0');
  read_fully_at(fd.get(), text.data(), 4, 6, "a");
  EXPECT_EQ(text, "6789");
  EXPECT_EQ(message<DataError>([&] { read_fully_at(fd.get(), text.data(), 4, 8, "a"); }),
            "a: truncated: expected 4 bytes at offset 8, the file ends after 2 of them");
}

TEST_F(Commit, whole_files_are_read_up_to_a_limit) {
  put("a", "0123456789");
  put("empty", "");
  EXPECT_EQ(read_file(path("a"), 10), "0123456789");
  EXPECT_THROW(static_cast<void>(read_file(path("a"), 9)), DataError);
  EXPECT_EQ(read_file(path("empty"), 0), "");
  // A file that does not say its size.
  EXPECT_FALSE(read_file("/proc/self/status", 1 << 20).empty());
  EXPECT_THROW(static_cast<void>(read_file("/proc/self/status", 10)), DataError);
}

TEST_F(Commit, directories_are_made_with_their_parents) {
  make_directories(path("a/b/c/"));
  EXPECT_TRUE(fs::is_directory(path("a/b/c")));
  EXPECT_NO_THROW(make_directories(path("a/b")));
  put("f", "");
  EXPECT_THROW(make_directories(path("f")), UsageError);
  EXPECT_THROW(make_directories(path("f/g")), UsageError);
  EXPECT_FALSE(exists(path("f/g")));
}

TEST(FileDescriptor, moves_and_reports_a_late_error) {
  FileDescriptor a(::open("/dev/null", O_RDONLY));
  const int fd = a.get();
  FileDescriptor b(std::move(a));
  EXPECT_EQ(b.get(), fd);
  FileDescriptor c;
  c = std::move(b);
  EXPECT_EQ(c.get(), fd);
  ::close(fd);
  EXPECT_THROW(c.close("x"), EnvironmentError);
  EXPECT_FALSE(c.valid());
}

}  // namespace
}  // namespace mt
