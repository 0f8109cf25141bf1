// SPDX-License-Identifier: Apache-2.0
// Lines as `lfs changelog` of Lustre 2.12 to 2.15 prints them, and a stand-in for lfs whose changelog is a text file.
#include "millrace/link/changelog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "millrace/base/testing/helpers.h"

namespace millrace::link {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ChangelogLine, IsParsed) {
  const auto created = *parse_change(
      "13 01CREAT 09:41:50.123456789 2026.11.25 0x0 t=[0x200000402:0x5:0x0] j=cp.0 ef=0xf u=0:0 nid=10.0.0.1@tcp "
      "p=[0x200000007:0x1:0x0] a name with blanks.txt");
  EXPECT_EQ(created.index, 13);
  EXPECT_EQ(created.type, "01CREAT");
  EXPECT_EQ(created.target, "[0x200000402:0x5:0x0]");
  EXPECT_EQ(created.parent, "[0x200000007:0x1:0x0]");
  EXPECT_EQ(created.name, "a name with blanks.txt");
  const auto closed = *parse_change("14 11CLOSE 09:41:50.2 2026.11.25 0x242 t=[0x200000402:0x5:0x0] j=cp.0 u=0:0\n");
  EXPECT_EQ(closed.target, "[0x200000402:0x5:0x0]");
  EXPECT_EQ(closed.parent, "");
  const auto renamed = *parse_change(
      "15 08RENME 09:41:51.0 2026.11.25 0x0 t=[0:0x0:0x0] p=[0x200000007:0x1:0x0] new name s=[0x200000402:0x5:0x0] "
      "sp=[0x200000402:0x9:0x0] old name");
  EXPECT_EQ(renamed.name, "new name");
  EXPECT_EQ(renamed.old_parent, "[0x200000402:0x9:0x0]");
  EXPECT_EQ(renamed.old_name, "old name");
  for (const char* line : {"", "x", "13", "13 01CREAT", "13 01CREAT a b c d", "lfs: error"}) {
    EXPECT_FALSE(parse_change(line)) << line;
  }
}

class ChangelogTest : public ::testing::Test {
 protected:
  ChangelogTest() : directory_(folder_.path() + "/lustre/data") {
    std::filesystem::create_directories(directory_ + "/folder/below");
    std::ofstream(folder_.path() + "/lfs") << R"sh(#!/bin/sh
here=$(dirname "$0")
case $1 in
changelog)
  [ -e "$here/broken" ] && { echo "lfs changelog: cannot open changelog: Permission denied" >&2; exit 1; }
  awk -v from="${3:-0}" '$1 >= from' "$here/log" ;;
changelog_clear) echo "$2 $3 $4" >>"$here/cleared" ;;
fid2path)
  path=$(awk -v fid="$3" '$1 == fid { print $2 }' "$here/fids")
  [ -n "$path" ] || { echo "lfs fid2path: cannot find '$3': No such file or directory" >&2; exit 2; }
  echo "$path" ;;
esac
)sh";
    ::chmod((folder_.path() + "/lfs").c_str(), 0755);
    path_ = std::getenv("PATH");
    ::setenv("PATH", (folder_.path() + ":" + path_).c_str(), 1);
    fid("[1:0:0]", directory_);
    fid("[1:1:0]", directory_ + "/folder");
    fid("[1:2:0]", directory_ + "/folder/file");
    fid("[2:0:0]", folder_.path() + "/lustre/elsewhere");
    std::ofstream(folder_.path() + "/log");
  }
  ~ChangelogTest() override { ::setenv("PATH", path_.c_str(), 1); }

  void fid(const std::string& id, const std::string& path) {
    std::ofstream(folder_.path() + "/fids", std::ios::app) << id << " " << path << "\n";
  }
  void record(const std::string& type, const std::string& rest) {
    std::ofstream(folder_.path() + "/log", std::ios::app)
        << ++index_ << " " << type << " 09:41:50.1 2026.11.25 0x0 " << rest << "\n";
  }
  std::string cleared() {
    std::ifstream in(folder_.path() + "/cleared");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TempDir folder_;
  const std::string directory_;
  std::string path_;
  int index_ = 0;
};

TEST_F(ChangelogTest, TellsThePathsOfTheDirectory) {
  record("01CREAT", "t=[9:9:9] p=[1:0:0] old");
  auto log = *Changelog::open("lustre-MDT0000:cl1", directory_);
  EXPECT_EQ(cleared(), "lustre-MDT0000 cl1 1\n");
  EXPECT_THAT(log.read()->paths, IsEmpty());

  record("01CREAT", "t=[1:5:0] j=cp u=0:0 p=[1:0:0] new file");
  record("11CLOSE", "t=[1:2:0] j=python u=0:0");
  record("01CREAT", "t=[2:1:0] p=[2:0:0] outside");
  record("10OPEN", "t=[1:9:0] u=0:0");
  record("11CLOSE", "t=[7:7:7] j=gone");
  auto seen = *log.read();
  EXPECT_THAT(seen.paths, ElementsAre("folder/file", "new file"));
  EXPECT_FALSE(seen.removed || seen.lost);
  EXPECT_THAT(cleared(), HasSubstr("lustre-MDT0000 cl1 6\n"));

  record("06UNLNK", "t=[1:5:0] p=[1:0:0] new file");
  seen = *log.read();
  EXPECT_THAT(seen.paths, IsEmpty());
  EXPECT_TRUE(seen.removed);
  EXPECT_THAT(log.read()->paths, IsEmpty()) << "each is told once";

  record("08RENME", "t=[0:0:0] p=[1:1:0] file2 s=[1:2:0] sp=[1:0:0] file");
  seen = *log.read();
  EXPECT_THAT(seen.paths, ElementsAre("folder/file2"));
  EXPECT_TRUE(seen.removed && !seen.lost);
  record("08RENME", "t=[0:0:0] p=[1:1:0] below s=[1:3:0] sp=[1:0:0] above");
  EXPECT_TRUE(log.read()->lost) << "files of a renamed directory have no records";
}

TEST_F(ChangelogTest, WhatFailsIsSaid) {
  EXPECT_EQ(Changelog::open("lustre-MDT0000", directory_).error().code(), ErrorCode::kInvalidArgument);
  auto log = *Changelog::open("lustre-MDT0000:cl1", directory_);
  std::ofstream(folder_.path() + "/broken");
  const auto read = log.read();
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().to_string(), HasSubstr("Permission denied"));
  EXPECT_FALSE(Changelog::open("lustre-MDT0000:cl1", directory_));
}

}  // namespace
}  // namespace millrace::link
