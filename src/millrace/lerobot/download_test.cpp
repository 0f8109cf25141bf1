// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/download.h"

#include <gmock/gmock.h>

namespace millrace::lerobot {
namespace {

using testing::ElementsAre;

TEST(Download, TakesTheNewestVersionThatMillraceReads) {
  const auto chosen = [](const std::vector<std::string>& tags) {
    std::vector<HubRef> refs{{"main", "c", false}, {"v9.9", "a branch", false}};
    for (const std::string& tag : tags) refs.push_back({tag, "commit of " + tag, true});
    const auto newest = newest_version(refs);
    return newest ? newest->name : "none";
  };
  EXPECT_EQ(chosen({"v2.0", "v3.0", "v2.1"}), "v3.0");
  EXPECT_EQ(chosen({"v2.9", "v2.10"}), "v2.10");
  EXPECT_EQ(chosen({"v2.1", "v4.0"}), "v2.1");
  EXPECT_EQ(chosen({"v1", "release", "v1.x", "2.0", "v-1.0"}), "none");
  EXPECT_EQ(chosen({}), "none");
}

std::vector<std::string> passing(const std::vector<std::string>& include, const std::vector<std::string>& exclude) {
  sync::Filter filter;
  for (const std::string& rule : filter_rules(include, exclude)) EXPECT_TRUE(filter.add_lines(rule, "test"));
  std::vector<std::string> passed;
  for (const char* path :
       {"README.md", "data/a.parquet", "meta/info.json", "meta/episodes/b.parquet", "videos/v.mp4"}) {
    if (filter.passes(path)) passed.emplace_back(path);
  }
  return passed;
}

TEST(Download, IncludesOnlyWhatIsAskedForAndExcludesFirst) {
  EXPECT_EQ(passing({}, {}).size(), 5U);
  EXPECT_THAT(passing({"meta/"}, {}), ElementsAre("meta/info.json", "meta/episodes/b.parquet"));
  EXPECT_THAT(passing({"*.parquet"}, {}), ElementsAre("data/a.parquet", "meta/episodes/b.parquet"));
  EXPECT_THAT(passing({"*.parquet", "*.md"}, {"meta/"}), ElementsAre("README.md", "data/a.parquet"));
  EXPECT_THAT(passing({}, {"*.mp4", "data/"}), ElementsAre("README.md", "meta/info.json", "meta/episodes/b.parquet"));
}

TEST(Download, RefusesWhatIsNoDataset) {
  for (const char* name : {"", "a b", "a/b/c", "hf://org/model", "hf://datasets/org/name/meta"}) {
    const auto got = download_dataset({.name = name, .target = "mem://download/x"});
    ASSERT_FALSE(got) << name;
    EXPECT_EQ(got.error().code(), ErrorCode::kInvalidArgument) << got.error().to_string();
  }
}

}  // namespace
}  // namespace millrace::lerobot
