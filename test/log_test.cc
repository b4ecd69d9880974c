#include "base/log.h"

#include <gtest/gtest.h>

namespace mt {
namespace {

// What f writes to the descriptor of stderr.
template <typename F>
std::string logged(F f) {
  testing::internal::CaptureStderr();
  f();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, lines_name_program_level_and_a_rank_that_is_not_0) {
  set_log("mt-x", LogLevel::kInfo);
  EXPECT_EQ(logged([] { log_info("a"); }), "mt-x: a\n");
  EXPECT_EQ(logged([] { log_warning("a"); }), "mt-x: warning: a\n");
  EXPECT_EQ(logged([] { log_error("a"); }), "mt-x: error: a\n");
  EXPECT_EQ(logged([] { log_debug("a"); }), "");
  set_log("mt-x", LogLevel::kDebug, 0);
  EXPECT_EQ(logged([] { log_debug("a"); }), "mt-x: debug: a\n");
  set_log("mt-x", LogLevel::kQuiet, 3);
  EXPECT_EQ(logged([] {
              log_info("a");
              log_warning("a");
              log_debug("a");
            }),
            "");
  EXPECT_EQ(logged([] { log_error("a"); }), "mt-x: rank 3: error: a\n");
}

TEST(Log, text_from_outside_cannot_forge_a_line) {
  set_log("mt-x", LogLevel::kInfo);
  EXPECT_EQ(logged([] { log_info("a\nmt-x: error: \x1b[31m"); }),
            "mt-x: a\\x0amt-x: error: \\x1b[31m\n");
}

TEST(Log, progress_shows_on_a_terminal_only) {
  set_log("mt-x", LogLevel::kInfo);
  EXPECT_EQ(logged([] {
              progress("50 %");
              progress("");
            }),
            "");
}

TEST(Printable, keeps_text_and_shows_what_steers_a_terminal) {
  EXPECT_EQ(printable("plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(printable(std::string("\0\t\x7F", 3)), "\\x00\\x09\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"), "\\xc2\\x9b");           // CSI of Latin-1
  EXPECT_EQ(printable("\xE2\x80\xAE"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(printable("\xFF\xC3"), "\\xff\\xc3");           // not UTF-8, cut
  EXPECT_EQ(printable("\xC0\x80"), "\\xc0\\x80");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xE0\x80\xA0"), "\\xe0\\x80\\xa0");
}

}  // namespace
}  // namespace mt
