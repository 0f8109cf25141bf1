// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/output.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "millrace/base/text/utf8.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

// A file that stands for stdout or stderr.
class Capture {
 public:
  Capture() : file_(std::tmpfile()) {}
  ~Capture() { std::fclose(file_); }
  int fd() const { return fileno(file_); }
  std::string text() const {
    std::string text(static_cast<size_t>(lseek(fd(), 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fd(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  std::FILE* file_;
};

TEST(OutputTest, ResultsGoToStdoutInOneOfTwoForms) {
  for (const bool json : {false, true}) {
    Capture out, err;
    Output output({.json = json}, out.fd(), err.fd());
    output.print({{"type", "thing"}, {"n", 1}}, "1 thing\n");
    output.print_json({{"type", "row"}});
    output.print_text("row\n");
    ASSERT_TRUE(output.flush());
    EXPECT_EQ(out.text(), json ? "{\"type\":\"thing\",\"n\":1}\n{\"type\":\"row\"}\n" : "1 thing\nrow\n");
    EXPECT_EQ(err.text(), "");
  }
}

TEST(OutputTest, JsonOfBrokenUtf8IsStillJson) {
  Capture out, err;
  Output output({.json = true}, out.fd(), err.fd());
  output.print_json({{"type", "row"},
                     {"name",
                      "a\xff"
                      "b"}});
  ASSERT_TRUE(output.flush());
  EXPECT_EQ(Json::parse(out.text())["name"],
            "a\xef\xbf\xbd"
            "b");
}

TEST(OutputTest, ErrorsAndLogLinesGoToStderr) {
  Capture out, err;
  {
    Output output({.json = true}, out.fd(), err.fd());
    log(LogLevel::kInfo, "not shown");
    log(LogLevel::kWarning, "shown {}", 1);
    output.error("millrace split", Error(ErrorCode::kNotFound, "no\nfile").add_context("open"));
    ASSERT_TRUE(output.flush());
  }
  log(LogLevel::kError, "nobody listens");
  EXPECT_EQ(err.text(), "warning: shown 1\nmillrace split: open: no\\nfile\n");
  EXPECT_EQ(out.text(), "{\"type\":\"error\",\"code\":\"not_found\",\"message\":\"open: no\\nfile\"}\n");
}

TEST(OutputTest, FindingsAreCounted) {
  Capture out, err;
  Output output({}, out.fd(), err.fd());
  EXPECT_EQ(output.findings(), 0);
  output.finding("a.tar", Error(ErrorCode::kCorruption, "a.tar: cut"));
  output.finding("b.tar", Error(ErrorCode::kCorruption, "b.tar: cut"));
  ASSERT_TRUE(output.flush());
  EXPECT_EQ(output.findings(), 2);
  EXPECT_EQ(out.text(), "error: a.tar: cut\nerror: b.tar: cut\n");
}

TEST(OutputTest, QuietHasNoNotesAndNoProgress) {
  Capture out, err;
  Output output({.quiet = true}, out.fd(), err.fd());
  const Progress progress;
  const auto view = output.watch(progress, "work");
  output.note("hello");
  EXPECT_EQ(err.text(), "");
}

TEST(OutputTest, AFullDiskBehindStdoutIsAnError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Capture err;
  Output output({}, fileno(full), err.fd());
  output.print_text("lost\n");
  const Status status = output.flush();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.error().to_string(), HasSubstr("standard output"));
  std::fclose(full);
}

TEST(TextTableTest, ColumnsAreAligned) {
  TextTable table({{"name"}, {"bytes", true}, {"index"}});
  table.add({"é", "1", "yes"});
  table.add({"a\tlong name", "1,000", ""});
  EXPECT_EQ(table.to_string(),
            "name          bytes  index\n"
            "é                 1  yes\n"
            "a\\tlong name  1,000\n");
}

TEST(PrintableTest, NothingReachesTheTerminalThatItObeys) {
  EXPECT_EQ(printable("a\x1b[31mb\r\n\x7f"), "a\\x1b[31mb\\x0d\\n\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m\xc2\xa0é"),
            "\\u009b31m\xc2\xa0é");
  EXPECT_EQ(printable("\xff"), "\xef\xbf\xbd");
  EXPECT_EQ(printable("ééé", 3), "ééé");
  EXPECT_EQ(printable("éééé", 3), "ééé…");
}

TEST(PrintableTest, RandomBytesBecomeShortPrintableUtf8) {
  const char* given = std::getenv("MILLRACE_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 80, '\0');
    for (char& c : text) c = static_cast<char>(random() % (round % 2 == 0 ? 256 : 160));
    const std::string shown = printable(text, 20);
    ASSERT_TRUE(is_utf8(shown));
    for (const char c : shown) ASSERT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7f);
    ASSERT_EQ(shown.find("\xc2\x9b"), std::string::npos);
    ASSERT_LE(shown.size(), 20U * 6 + 3);
  }
}

TEST(CountedTest, OneIsNotMany) {
  EXPECT_EQ(counted(0, "shard") + ", " + counted(1, "shard") + ", " + counted(1200, "shard"),
            "0 shards, 1 shard, 1,200 shards");
}

TEST(ProgressLineTest, SaysWhatIsKnown) {
  Progress::Snapshot s{.bytes = 250'000'000, .total_bytes = 1'000'000'000, .items = 1200, .seconds = 2};
  EXPECT_EQ(format_progress(s, "prepare", 200),
            "prepare  [=====>              ]   25%  250 MB of 1.00 GB  1,200  125 MB/s  ETA 6.00 s");
  EXPECT_EQ(format_progress(s, "prepare", 0), "prepare   25%  250 MB of 1.00 GB  1,200  125 MB/s  ETA 6.00 s");
  EXPECT_EQ(format_progress(s, "prepare", 79),
            "prepare  [===>          ]   25%  250 MB of 1.00 GB  1,200  125 MB/s  ETA 6.00 s");
  EXPECT_EQ(format_progress(s, "prepare", 66), format_progress(s, "prepare", 0));
  s.phase = "prepare";
  EXPECT_EQ(format_progress(s, "prepare", 0), "prepare   25%  250 MB of 1.00 GB  1,200  125 MB/s  ETA 6.00 s");
  s.total_bytes = 0;
  s.phase = "reading";
  EXPECT_EQ(format_progress(s, "prepare", 0), "prepare: reading  250 MB  1,200  125 MB/s");
  EXPECT_EQ(format_progress(s, "prepare", 10), "prepare: r");
  EXPECT_EQ(format_progress({.items = 3, .total_items = 3, .seconds = 1}, "check", 60),
            "check  [====================]  100%  3 of 3");
}

TEST(ProgressLineTest, NamesWhatIsUnderWayAndCountsWhatFailed) {
  Progress::Snapshot s{.bytes = 50, .total_bytes = 200, .items = 2, .total_items = 4, .failed = 1200, .seconds = 1};
  s.parts = {{"gro\xc3\x9f.tar", 10, 40}};
  EXPECT_EQ(format_progress(s, "sync", 0),
            "sync   25%  50 B of 200 B  2 of 4  1,200 failed  50 B/s  ETA 3.00 s  groß.tar 25%");
  s.parts.push_back({"b", 0, 10});
  s.parts.push_back({"c", 0, 0});
  EXPECT_THAT(format_progress(s, "sync", 0), testing::EndsWith("  groß.tar 25% and 2 more"));
  EXPECT_THAT(format_progress(s, "sync", 79), testing::EndsWith("ETA 3.00 s\n  groß.tar 25%  b 0%  c"));
  EXPECT_THAT(format_progress(s, "sync", 22), testing::EndsWith("\n  groß.tar 25% and 2 m"));
  EXPECT_THAT(format_progress(s, "sync", 23), testing::EndsWith("\n  groß.tar 25%  b 0%  c"));
  EXPECT_EQ(format_progress(s, "sync", 6), "sync  \n  groß") << "and no half of a character";
  s.parts = {{"bad\nname", 5, 0}};
  EXPECT_THAT(format_progress(s, "sync", 0), testing::EndsWith("  bad\\nname")) << "of unknown size";
}

}  // namespace
}  // namespace millrace::cli
