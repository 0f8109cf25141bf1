// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/unnamed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "millrace/base/io/io.h"
#include "millrace/base/testing/helpers.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// TMPDIR as long as it lives.
class TmpdirScope {
 public:
  explicit TmpdirScope(const std::string& folder) {
    if (const char* const before = std::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", folder.c_str(), 1);
  }
  ~TmpdirScope() { before_ ? ::setenv("TMPDIR", before_->c_str(), 1) : ::unsetenv("TMPDIR"); }

 private:
  std::optional<std::string> before_;
};

TEST(UnnamedFile, GivesBackWhatWasWrittenAndLeavesNothing) {
  const TempDir dir;
  const TmpdirScope here(dir.path());
  {
    auto file = *UnnamedFile::create("a test");
    const std::string bytes = test_bytes(3'000'000, 1), more = test_bytes(10, 2);
    ASSERT_TRUE(file.write_at(0, as_bytes(bytes)));
    ASSERT_TRUE(file.write_at(std::ssize(bytes), as_bytes(more)));
    std::string got(bytes.size() + more.size(), '.');
    ASSERT_TRUE(file.read_at(0, std::as_writable_bytes(std::span(got))));
    EXPECT_TRUE(got == bytes + more);
    EXPECT_THAT(file.read_at(1, std::as_writable_bytes(std::span(got))).error().to_string(),
                HasSubstr("read back a test"));
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  }
  const auto stream = *open_unnamed_stream("a test");
  EXPECT_EQ(std::fputs("text", stream.get()), 1);
  std::rewind(stream.get());
  char got[5] = {};
  EXPECT_EQ(std::fread(got, 1, sizeof got, stream.get()), 4U);
  EXPECT_STREQ(got, "text");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(UnnamedFile, AFolderThatIsNotThereIsNamed) {
  const TmpdirScope nowhere("/nonexistent/folder");
  const auto why = HasSubstr("keep a test in /nonexistent/folder, which TMPDIR may change: ");
  EXPECT_THAT(UnnamedFile::create("a test").error().to_string(), why);
  EXPECT_THAT(open_unnamed_stream("a test").error().to_string(), why);
}

TEST(UnnamedFile, AWriteThatFailsNamesTheFolder) {
  const TempDir dir;
  const TmpdirScope here(dir.path());
  auto file = *UnnamedFile::create("a test");
  EXPECT_THAT(file.write_at(INT64_MAX - 10, as_bytes(std::string(100, 'x'))).error().to_string(),
              HasSubstr("keep a test in " + dir.path()));
}

}  // namespace
}  // namespace millrace
