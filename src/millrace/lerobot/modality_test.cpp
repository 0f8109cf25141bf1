// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/modality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::lerobot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Info arm() {
  Info info;
  const std::vector<std::string> names = {"shoulder_pan.pos", "elbow.pos", "gripper.pos"};
  info.features = {
      {.name = "observation.state", .dtype = "float32", .shape = {3}, .has_names = true, .names = names},
      {.name = "action", .dtype = "float32", .shape = {3}},
      {.name = "observation.pose", .dtype = "float32", .shape = {7}},
      {.name = "observation.images.front", .dtype = "video", .shape = {48, 64, 3}},
      {.name = "task_index", .dtype = "int64", .shape = {1}},
  };
  return info;
}

std::vector<std::string> lines_of(const std::vector<ModalityEntry>& entries) {
  std::vector<std::string> lines;
  for (const ModalityEntry& entry : entries) lines.push_back(spec_line(entry));
  return lines;
}

TEST(Modality, IsProposedFromNames) {
  EXPECT_THAT(lines_of(proposed_modality(arm(), {})),
              ElementsAre("state.single_arm = observation.state[0:2]", "state.gripper = observation.state[2:3]",
                          "action.all = action[0:3]", "video.front = observation.images.front",
                          "annotation.human.task_description = task_index"));
  Info two = arm();
  two.features[1].names = {"left_elbow", "right_elbow", "left_wrist"};
  two.features.push_back({.name = "annotation.human.note", .dtype = "int64", .shape = {1}});
  EXPECT_THAT(lines_of(proposed_modality(two, {{.kind = "state", .name = "x"}, {.kind = "video", .name = "y"}})),
              ElementsAre("action.left_arm = action[0:1]", "action.right_arm = action[1:2]",
                          "action.left_arm_2 = action[2:3]", "annotation.human.note = annotation.human.note"));
}

TEST(Modality, ProposalsAreSpecs) {
  const auto proposed = proposed_modality(arm(), {});
  std::string text;
  for (const std::string& line : lines_of(proposed)) text += line + "\n";
  const auto parsed = parse_modality_spec(text, arm());
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(modality_json(*parsed), modality_json(proposed));
}

TEST(Modality, ASpecBecomesGrootsJson) {
  const auto parsed = parse_modality_spec(
      "# a comment\n"
      "state.arm = observation.state[0:2]  # two joints\n\n"
      "state.turn=observation.pose[3:7] quaternion\r\n"
      "action.all = action\n"
      "video.ego = observation.images.front\n"
      "annotation.human.task = task_index",
      arm());
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(modality_json(*parsed), Json::parse(R"({"state": {"arm": {"start": 0, "end": 2},
                       "turn": {"start": 3, "end": 7, "original_key": "observation.pose", "rotation_type": "quaternion"}},
             "action": {"all": {"start": 0, "end": 3}},
             "video": {"ego": {"original_key": "observation.images.front"}},
             "annotation": {"human.task": {"original_key": "task_index"}}})"));
}

TEST(Modality, GrootsJsonBecomesASpec) {
  const Json given = Json::parse(R"({"state": {"arm": {"start": 0, "end": 2, "absolute": true},
                       "turn": {"start": 3, "end": 7, "original_key": "observation.pose", "rotation_type": "quaternion"}},
             "action": {"all": {"start": 0, "end": 3}},
             "video": {"ego": {"original_key": "observation.images.front"}, "wrist": {}},
             "annotation": {"human.task": {"original_key": "task_index"}, "human.note": {}}})");
  const auto entries = modality_entries(given);
  ASSERT_TRUE(entries) << entries.error().to_string();
  EXPECT_THAT(lines_of(*entries),
              ElementsAre("state.arm = observation.state[0:2]", "state.turn = observation.pose[3:7] quaternion",
                          "action.all = action[0:3]", "video.ego = observation.images.front",
                          "video.wrist = observation.images.wrist", "annotation.human.task = task_index",
                          "annotation.human.note = annotation.human.note"));
  for (const char* wrong : {"[]", R"({"state": 3})", R"({"state": {"a": 3}})", R"({"state": {"a": {"start": 2}}})",
                            R"({"state": {"a": {"start": 2, "end": 2}}})", R"({"poses": {}})",
                            R"({"video": {"a": {"original_key": ""}}})", R"({"video": {"": {}}})"}) {
    EXPECT_FALSE(modality_entries(Json::parse(wrong))) << wrong;
  }
}

TEST(Modality, AWrongLineIsNamed) {
  const auto refused = [](std::string_view text) {
    const auto parsed = parse_modality_spec(text, arm());
    return parsed ? std::string() : parsed.error().message();
  };
  EXPECT_THAT(refused("\nstate.a = nothing[0:1]"), HasSubstr("line 2, 'state.a = nothing[0:1]': there is no feature"));
  EXPECT_THAT(refused("state.a = action[1:4]"), HasSubstr("action has the numbers [0:3]"));
  EXPECT_THAT(refused("state.a = action[1:1]"), HasSubstr("[0:3]"));
  EXPECT_THAT(refused("state.a = action[1-2]"), HasSubstr("[START:END]"));
  EXPECT_THAT(refused("video.a = action"), HasSubstr("is no camera"));
  EXPECT_THAT(refused("states.a = action"), HasSubstr("the kinds are"));
  EXPECT_THAT(refused("state.a = observation.pose[3:7] quaternoin"), HasSubstr("'quaternoin' is no rotation_type"));
  EXPECT_THAT(refused("state.a = observation.pose[3:6] quaternion"), HasSubstr("a quaternion has 4 numbers"));
  EXPECT_THAT(refused("action = 3"), HasSubstr("KIND.NAME"));
  EXPECT_THAT(refused("action. = action"), HasSubstr("name is missing"));
  EXPECT_THAT(refused("action.a = action[0:1]\naction.a = action[1:2]"), HasSubstr("line 2"));
}

}  // namespace
}  // namespace millrace::lerobot
