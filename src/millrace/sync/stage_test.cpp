// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/stage.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "millrace/base/testing/helpers.h"
#include "millrace/formats/tar.h"
#include "millrace/sync/detail/unpack.h"
#include "millrace/sync/testing.h"

namespace millrace::sync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string tar_of(const Tree& members) {
  std::string tar;
  for (const auto& [name, content] : members) EXPECT_TRUE(formats::append_tar_member(tar, name, as_bytes(content)));
  formats::append_tar_end(tar);
  return tar;
}

class StageTest : public ::testing::Test {
 protected:
  StageTest() {
    std::filesystem::create_directories(source_ + "/sub");
    put("sub/large.tar", tar_of({{"a.json", R"({"x": 1})"}, {"deep/b.txt", std::string(100'000, 'b')}}));
    put("small.tar", tar_of({{"a.json", R"({"x": 1})"}, {"deep/b.txt", "text"}}));
    put("tiny.txt", "t");
  }
  void put(const std::string& name, const std::string& content) { std::ofstream(source_ + "/" + name) << content; }
  StageReport run(const StageOptions& options = {}) {
    StageOptions watched = options;
    steps_.clear();
    watched.on_step = [&](const StageStep& step) {
      steps_.push_back(std::string(step_name(step.kind)) + ": " + step.detail);
    };
    const auto report = stage(source_, target_, watched);
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? *report : StageReport{};
  }

  TempDir dir_;
  const std::string source_ = dir_.path() + "/source", target_ = dir_.path() + "/target";
  std::vector<std::string> steps_;
};

TEST_F(StageTest, UploadsListsAndChecksASample) {
  const StageReport report = run();
  ASSERT_TRUE(report.end) << report.end.error().to_string();
  EXPECT_EQ(report.objects, 3);
  EXPECT_EQ(report.upload.copied_files, 3);
  EXPECT_EQ(report.sample, "small.tar");
  EXPECT_EQ(report.members, 2);
  ASSERT_EQ(steps_.size(), 4u);
  EXPECT_THAT(steps_[0], HasSubstr("upload: copied 3 files"));
  EXPECT_THAT(steps_[1], HasSubstr("all 3 files of the source are there"));
  EXPECT_THAT(steps_[2], HasSubstr("sample: small.tar"));
  EXPECT_EQ(steps_[3], "unpack: 2 files, 12 B; 1 checked inside");
  EXPECT_EQ(run().upload.skipped_files, 3) << "the second time moves nothing";
}

TEST_F(StageTest, TheSampleCanBeChosenAndKept) {
  const std::string kept = dir_.path() + "/kept";
  const StageReport report = run({.sample = "sub/large.tar", .sample_dir = kept});
  ASSERT_TRUE(report.end) << report.end.error().to_string();
  EXPECT_EQ(report.unpacked_bytes, 100'008);
  EXPECT_EQ(std::filesystem::file_size(kept + "/large.tar.unpacked/deep/b.txt"), 100'000u);
  EXPECT_EQ(run({.sample = "none"}).end.error().code(), ErrorCode::kNotFound);
}

TEST_F(StageTest, ADamagedSampleIsFound) {
  put("small.tar", tar_of({{"a.json", R"({"x": )"}}));
  EXPECT_THAT(run().end.error().to_string(), AllOf(HasSubstr("a.json"), HasSubstr("not what its name says")));
  put("small.tar", tar_of({{"a.json", "{}"}}).substr(0, 700));
  const StageReport cut = run();
  EXPECT_EQ(cut.end.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(cut.end.error().to_string(), HasSubstr("unpack small.tar"));
  put("small.tar", tar_of({{"../a.txt", "{}"}}));
  EXPECT_EQ(run().end.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/a.txt"));
}

TEST_F(StageTest, WhatIsNotThereAfterTheUploadIsSaid) {
  // The upload takes the record's word: the file has vanished from the target behind its back.
  ASSERT_TRUE(run().end);
  const auto meddle = [&](const SyncEvent& event) {
    if (event.path == "tiny.txt") std::filesystem::remove(target_ + "/small.tar");
  };
  StageOptions options;
  options.sync.compare = CompareBy::kUsual;
  put("tiny.txt", "changed");
  options.sync.on_event = meddle;
  const StageReport report = run(options);
  EXPECT_EQ(report.end.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(report.end.error().to_string(), AllOf(HasSubstr("list"), HasSubstr("small.tar: missing")));
}

TEST_F(StageTest, ADryRunTouchesNothing) {
  StageOptions options;
  options.sync.dry_run = true;
  ASSERT_TRUE(run(options).end);
  EXPECT_THAT(steps_, ElementsAre(HasSubstr("upload: to copy: 3 files")));
  EXPECT_FALSE(std::filesystem::exists(target_));
}

TEST_F(StageTest, OneObjectIsNoFolder) {
  EXPECT_EQ(stage(source_ + "/tiny.txt", target_).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(stage(source_ + "/none", target_).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace millrace::sync
