// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/glob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/storage/url.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Glob : public ::testing::Test {
 protected:
  Glob() {
    for (const char* name : {"a.txt", "b.md", ".hidden/x.txt", "year=2024/month=01/p.txt", "year=2024/q.txt",
                             "year=2025/r.md", "_SUCCESS", "_delta_log/0.json", "year=2024/.tmp.txt"}) {
      const Location at = open_url(kRoot + std::string(name)).value();
      EXPECT_TRUE(write_object(*at.storage, at.key, "x"));
    }
  }
  static std::vector<std::string> matches(const std::string& pattern) {
    std::vector<std::string> names;
    const std::vector<Match> found = find_matches(kRoot + pattern).value();
    for (const Match& match : found) {
      names.push_back(match.url.substr(kRoot.size()) + (match.folder ? "/" : ""));
    }
    return names;
  }
  static inline const std::string kRoot = "mem://glob/raw/";
};

TEST_F(Glob, MatchesComponentByComponent) {
  EXPECT_THAT(matches("*.txt"), ElementsAre("a.txt"));
  EXPECT_THAT(matches("year=*"), ElementsAre("year=2024/", "year=2025/"));
  EXPECT_THAT(matches("year=*/"), ElementsAre("year=2024/", "year=2025/"));
  EXPECT_THAT(matches("*/*.txt"), ElementsAre("year=2024/q.txt"));
  EXPECT_THAT(matches("year=202[5]/?.md"), ElementsAre("year=2025/r.md"));
  EXPECT_THAT(matches("no*"), IsEmpty());
  EXPECT_THAT(matches("a.txt"), ElementsAre("a.txt"));
}

TEST_F(Glob, TwoStarsStandForAnyFolders) {
  EXPECT_THAT(matches("**/*.txt"), ElementsAre("a.txt", "year=2024/month=01/p.txt", "year=2024/q.txt"));
  EXPECT_THAT(matches("year=2024/**/*.txt"), ElementsAre("year=2024/month=01/p.txt", "year=2024/q.txt"));
  EXPECT_THAT(matches("**/month=*"), ElementsAre("year=2024/month=01/p.txt"));
  EXPECT_THAT(matches("year=2025/**"), ElementsAre("year=2025/r.md"));
}

TEST_F(Glob, FilesOfAFolderAreFoundHoweverDeep) {
  const FolderFiles files = files_below(kRoot).value();
  std::vector<std::string> urls;
  for (const Match& file : files.files) {
    urls.push_back(file.url);
    EXPECT_EQ(file.size, 1);
    EXPECT_FALSE(file.version.empty());
  }
  EXPECT_THAT(urls, ElementsAre(kRoot + "a.txt", kRoot + "b.md", kRoot + "year=2024/month=01/p.txt",
                                kRoot + "year=2024/q.txt", kRoot + "year=2025/r.md"));
  EXPECT_THAT(files.passed, ElementsAre(kRoot + "_SUCCESS", kRoot + "_delta_log/0.json"));
}

}  // namespace
}  // namespace millrace
