// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/decide.h"

#include <gtest/gtest.h>

namespace millrace::link {
namespace {

using State = LinkFile::State;

ObjectInfo version(const std::string& text) {
  ObjectInfo info;
  info.version = text;
  return info;
}

LinkFile known(State state = State::kEqual) {
  return {.path = "f", .here = {.version = "h1"}, .there = "t1", .state = state};
}

const LinkConfig kAll{.imports = {true, true, true}, .exports = {true, true, true}};
const LinkConfig kNone{.imports = {false, false, false}, .exports = {false, false, false}};

TEST(Decide, OneSideChanged) {
  const auto h1 = version("h1"), h2 = version("h2"), t1 = version("t1"), t2 = version("t2");
  EXPECT_EQ(decide(kAll, known(), h1, t1).step, Step::kNone);
  EXPECT_EQ(decide(kAll, known(), h2, t1).step, Step::kExport);
  EXPECT_EQ(decide(kAll, known(), h1, t2).step, Step::kImport);
  EXPECT_EQ(decide(kAll, std::nullopt, h1, std::nullopt).step, Step::kExport);
  EXPECT_EQ(decide(kAll, std::nullopt, std::nullopt, t1).step, Step::kImport);
  EXPECT_EQ(decide(kAll, std::nullopt, h1, t1).step, Step::kCompare);
  for (const auto& [here, there] : {std::pair{h2, t1}, {h1, t2}}) {
    EXPECT_EQ(decide(kNone, known(), here, there).step, Step::kNone);
  }
  EXPECT_EQ(decide(kNone, std::nullopt, h1, std::nullopt).step, Step::kNone);
  EXPECT_EQ(decide(kNone, std::nullopt, std::nullopt, t1).step, Step::kNone);
}

TEST(Decide, ARemovalGoesOverOnlyWhereItIsAskedFor) {
  const auto h1 = version("h1"), t1 = version("t1");
  EXPECT_EQ(decide(kAll, known(), std::nullopt, t1).step, Step::kDeleteThere);
  EXPECT_EQ(decide(kAll, known(), h1, std::nullopt).step, Step::kDeleteHere);
  const Decision object_stays = decide(kNone, known(), std::nullopt, t1);
  EXPECT_EQ(object_stays.step, Step::kRemember);
  EXPECT_EQ(object_stays.state, State::kGoneHere);
  const Decision file_stays = decide(kNone, known(), h1, std::nullopt);
  EXPECT_EQ(file_stays.state, State::kGoneThere);
  // What was kept is not copied back until it changes.
  EXPECT_EQ(decide(kAll, known(State::kGoneHere), std::nullopt, t1).step, Step::kNone);
  EXPECT_EQ(decide(kAll, known(State::kGoneHere), std::nullopt, version("t2")).step, Step::kImport);
  EXPECT_EQ(decide(kAll, known(State::kGoneThere), h1, std::nullopt).step, Step::kNone);
  EXPECT_EQ(decide(kAll, known(State::kGoneThere), version("h2"), std::nullopt).step, Step::kExport);
  EXPECT_EQ(decide(kAll, known(), std::nullopt, std::nullopt).step, Step::kForget);
}

TEST(Decide, AChangeIsWorthMoreThanARemoval) {
  const Decision back = decide(kAll, known(), std::nullopt, version("t2"));
  EXPECT_EQ(back.step, Step::kImport);
  EXPECT_TRUE(back.conflict);
  const Decision kept = decide(kAll, known(), version("h2"), std::nullopt);
  EXPECT_EQ(kept.step, Step::kExport);
  EXPECT_TRUE(kept.conflict);
  EXPECT_TRUE(decide(kAll, known(), version("h2"), version("t2")).conflict);
}

TEST(Decide, AReleasedFileIsNeverSent) {
  EXPECT_EQ(decide(kAll, known(State::kReleased), version("h1"), version("t1")).step, Step::kNone);
  EXPECT_EQ(decide(kAll, known(State::kReleased), version("h2"), version("t1")).step, Step::kRefuse);
  EXPECT_EQ(decide(kAll, known(State::kReleased), version("h1"), version("t2")).step, Step::kImport);
  const Decision lost = decide(kAll, known(State::kReleased), version("h1"), std::nullopt);
  EXPECT_EQ(lost.step, Step::kRefuse);
  EXPECT_NE(lost.reason.find("CONTENT LOST"), std::string_view::npos);
  EXPECT_EQ(decide(kAll, known(State::kReleased), std::nullopt, version("t1")).step, Step::kDeleteThere);
}

TEST(Decide, AChangedTimeOfTheInodeIsAChange) {
  LinkFile file = known();
  file.here.changed_ns = 5;
  ObjectInfo now = version("h1");
  now.changed += std::chrono::nanoseconds(6);
  EXPECT_EQ(decide(kAll, file, now, version("t1")).step, Step::kExport);
}

TEST(Decide, TheRuleDecidesAConflict) {
  ObjectInfo old = version("old"), young = version("young");
  young.modified += std::chrono::seconds(1);
  EXPECT_EQ(resolve(ConflictRule::kNewest, young, old).step, Step::kExport);
  EXPECT_EQ(resolve(ConflictRule::kNewest, old, young).step, Step::kImport);
  EXPECT_EQ(resolve(ConflictRule::kBucket, young, old).step, Step::kImport);
  EXPECT_EQ(resolve(ConflictRule::kDirectory, old, young).step, Step::kExport);
  EXPECT_TRUE(resolve(ConflictRule::kBoth, old, young).both);
}

}  // namespace
}  // namespace millrace::link
