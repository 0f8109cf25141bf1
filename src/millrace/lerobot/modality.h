// SPDX-License-Identifier: Apache-2.0
#pragma once

// GR00T's meta/modality.json. It tells which numbers of a column form a group, and GR00T's names of cameras and
// annotations. It is written from a short spec, or proposed from the names of features. Pure functions; thread-safe.
//
// A spec has one line per entry; '#' begins a comment:
//
//     state.single_arm = observation.state[0:5]
//     action.gripper = action[5:6]
//     state.hand_rotation = observation.pose[3:7] quaternion
//     video.front = observation.images.front
//     annotation.human.task_description = task_index

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

struct ModalityEntry {
  std::string kind;            // "state", "action", "video" or "annotation"
  std::string name, column;    // GR00T's name and the name of the feature
  int64_t start = 0, end = 0;  // for a state or an action: the numbers [start, end) of the column
  std::string rotation;        // for a state or an action: "quaternion", ...; empty: none
};

// Returns how many numbers a rotation_type has; 0 for an unknown rotation_type.
int64_t rotation_width(std::string_view rotation);

// Returns an entry as a line of a spec.
std::string spec_line(const ModalityEntry& entry);

// Parses a spec. Errors: invalid_argument (a line that is no entry, an unknown feature, a range outside the feature, a
// duplicate name; the message names the line).
[[nodiscard]] Result<std::vector<ModalityEntry>> parse_modality_spec(std::string_view text, const Info& info);

// Proposes entries for the kinds that `given` lacks. Groups the numbers of observation.state and action by their names
// in info.json: left and right, gripper or hand, arm. A column without names is one group. Every camera gets an entry,
// and so does the task of a frame. Other features are left to the user.
std::vector<ModalityEntry> proposed_modality(const Info& info, const std::vector<ModalityEntry>& given);

Json modality_json(const std::vector<ModalityEntry>& entries);

// Reads the entries of a modality.json. Drops keys that ModalityEntry lacks, such as `absolute` of GR00T N1.5. Errors:
// corruption (a group without a range, an unknown kind).
[[nodiscard]] Result<std::vector<ModalityEntry>> modality_entries(const Json& modality);

}  // namespace millrace::lerobot
