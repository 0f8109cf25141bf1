// SPDX-License-Identifier: Apache-2.0
// Symbolic links of the directory, empty folders and folder markers: what a link passes over, and what it never does.
#include <gmock/gmock.h>

#include "millrace/link/testing.h"
#include "millrace/sync/testing.h"

namespace millrace::link {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

Step look_at(LinkBench& link, const std::string& path) {
  Carrier carrier(link.config(), link.here(), link.there(), link.state(), link.engine(), {}, {});
  const auto step = carrier.look_at(path);
  EXPECT_TRUE(step && carrier.finish()) << path;
  return step ? *step : Step::kRefuse;
}

std::vector<std::string> problems_of(LinkBench& link) {
  std::vector<std::string> told;
  const auto problems = link.state().problems(9);
  for (const Problem& each : *problems) told.push_back(each.path + ": " + each.error);
  return told;
}

TEST(Link, NothingGoesThroughASymbolicLinkOrReplacesIt) {
  LinkBench link(everything());
  const fs::path outside = link.directory().parent_path() / "outside";
  const Files theirs = {{"file", "outside"}, {"x", "outside, too"}};
  fs::create_directories(outside);
  for (const auto& [name, content] : theirs) std::ofstream(outside / name) << content;
  fs::create_directory_symlink(outside, link.directory() / "dir");
  fs::create_symlink(outside / "file", link.directory() / "file");
  fs::create_symlink("nowhere", link.directory() / "nowhere");
  fs::create_symlink("circle", link.directory() / "circle");
  link.write("plain", "x");
  link.put("dir/x", "1");
  link.put("file", "2");
  for (int round = 0; round < 2; ++round) {
    const auto report = link.sweep();
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->passed, 4);
    EXPECT_EQ(report->counts.exported, round == 0 ? 1 : 0);
    EXPECT_EQ(report->counts.imported + report->counts.deleted_there, 0);
    EXPECT_THAT(problems_of(link),
                UnorderedElementsAre(
                    "dir/x: in the directory dir is a symbolic link, and nothing is written through it: put a folder "
                    "in its place",
                    "file: in the directory is a symbolic link of this name: remove or rename it"));
    for (const char* path : {"dir/x", "file", "nowhere", "circle"}) EXPECT_EQ(look_at(link, path), Step::kNone);
    EXPECT_EQ(files_below(outside), theirs);
    EXPECT_EQ(link.objects(), (Files{{"dir/x", "1"}, {"file", "2"}, {"plain", "x"}}));
  }
  for (const char* name : {"dir", "file", "nowhere", "circle"}) fs::remove(link.directory() / name);
  EXPECT_EQ(link.swept().imported, 2);
  EXPECT_THAT(problems_of(link), IsEmpty());
  EXPECT_EQ(link.files(), link.objects());
  EXPECT_EQ(files_below(outside), theirs);
}

TEST(Link, AFolderThatBecomesASymbolicLinkRemovesNothing) {
  LinkBench link(everything());
  for (const char* name : {"dir/x", "dir/y", "plain"}) link.write(name, name);
  link.swept();
  const Files objects = link.objects();
  const fs::path outside = link.directory().parent_path() / "outside";
  fs::rename(link.directory() / "dir", outside);
  fs::create_directory_symlink(outside, link.directory() / "dir");
  const LinkCounts counts = link.swept();
  EXPECT_EQ(counts.deleted_there + counts.exported + counts.failed, 0);
  EXPECT_EQ(look_at(link, "dir/x"), Step::kNone);
  EXPECT_EQ(link.objects(), objects);
  // Neither a change nor a removal of the bucket goes through it.
  link.put("dir/x", "changed in the bucket");
  link.remove_object("dir/y");
  EXPECT_EQ(link.swept().failed, 1);
  EXPECT_EQ(files_below(outside), (Files{{"x", "dir/x"}, {"y", "dir/y"}}));
  fs::remove(link.directory() / "dir");
  fs::rename(outside, link.directory() / "dir");
  const LinkCounts back = link.swept();
  EXPECT_EQ(back.imported, 1);
  EXPECT_EQ(back.deleted_here, 1);
  EXPECT_THAT(problems_of(link), IsEmpty());
  EXPECT_EQ(link.files(), (Files{{"dir/x", "changed in the bucket"}, {"plain", "plain"}}));
}

TEST(Link, EmptyFoldersAndFolderMarkersAreLeftAlone) {
  LinkBench link(everything());
  fs::create_directories(link.directory() / "empty/deep");
  link.write("plain", "x");
  const auto bent = std::make_shared<sync::BentStorage>(link.there().storage);
  bent->bend_page = [&](ListPage& page) {
    ObjectInfo marker;
    marker.key = link.there().key + "/a folder/";
    if (page.next_page_token.empty()) page.objects.insert(page.objects.begin(), marker);
  };
  Carrier carrier(link.config(), link.here(), link.there(), link.state(), link.engine(), {}, {});
  const Location there{bent, link.there().key, link.there().url};
  const auto report = sweep(link.config(), link.here(), there, link.state(), carrier, {});
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->passed, 1);
  EXPECT_EQ(report->counts.exported, 1);
  EXPECT_FALSE(fs::exists(link.directory() / "a folder"));
  EXPECT_EQ(link.objects(), (Files{{"plain", "x"}}));
  // A folder comes with its first file, and stays when that goes.
  link.put("empty/deep/new", "1");
  link.put("other/new", "2");
  EXPECT_EQ(link.swept().imported, 2);
  link.remove_object("empty/deep/new");
  link.remove_object("other/new");
  EXPECT_EQ(link.swept().deleted_here, 2);
  EXPECT_TRUE(fs::is_directory(link.directory() / "empty/deep"));
  EXPECT_EQ(link.files(), (Files{{"plain", "x"}}));
}

}  // namespace
}  // namespace millrace::link
