// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/log_tail.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace millrace::jobs {
namespace {

class LogTailTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace_tail_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/log"; }
  void append(const std::string& text) const { std::ofstream(path(), std::ios::app) << text; }

  std::string folder_;
};

TEST_F(LogTailTest, LinesComeWhole) {
  LogTail tail(path());
  EXPECT_EQ(tail.read(true)->text, "");  // no file yet
  append("one\ntw");
  EXPECT_EQ(tail.read(false)->text, "one\n");
  append("o\nthree");
  EXPECT_EQ(tail.read(false)->text, "two\n");
  EXPECT_EQ(tail.read(true)->text, "three");
  EXPECT_EQ(tail.read(true)->text, "");
}

TEST_F(LogTailTest, AFileThatBeginsAgainIsReadFromItsStart) {
  LogTail tail(path());
  append("first\nhalf");
  EXPECT_EQ(tail.read(false)->text, "first\n");
  std::filesystem::resize_file(path(), 0);
  append("second\n");
  const auto emptied = tail.read(false);
  EXPECT_TRUE(emptied->began_again);
  EXPECT_EQ(emptied->text, "half\nsecond\n");
  std::ofstream(folder_ + "/other") << "a longer text than before\n";
  std::filesystem::rename(folder_ + "/other", path());
  const auto replaced = tail.read(false);
  EXPECT_TRUE(replaced->began_again);
  EXPECT_EQ(replaced->text, "a longer text than before\n");
}

TEST_F(LogTailTest, LargeFilesComeInPieces) {
  std::string all;
  for (int i = 0; i < 200'000; ++i) all += "line " + std::to_string(i) + "\n";
  append(all);
  LogTail tail(path());
  std::string seen;
  for (bool more = true; more;) {
    const auto news = tail.read(true);
    EXPECT_LE(news->text.size(), size_t{2} << 20);
    seen += news->text;
    more = news->more;
  }
  EXPECT_EQ(seen, all);
}

TEST(LogLabels, StandBeforeEachLine) {
  EXPECT_EQ(with_label("a\n\nb", "7_1"), "[7_1] a\n[7_1] \n[7_1] b\n");
  EXPECT_EQ(with_label("", "7_1"), "");
}

}  // namespace
}  // namespace millrace::jobs
