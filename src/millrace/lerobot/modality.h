// SPDX-License-Identifier: Apache-2.0
#pragma once

// GR00T's meta/modality.json: which numbers of which column form a group, and how GR00T calls cameras and annotations.
// It is written from a short spec, or proposed from the names of features. Pure functions; thread-safe.
//
// A spec has a line for each entry; '#' begins a comment:
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
  std::string name, column;    // GR00T's name and the feature's
  int64_t start = 0, end = 0;  // of a state or an action: the numbers [start, end) of the column
  std::string rotation;        // of a state or an action: "quaternion", ...; empty: none
};

// How many numbers a rotation_type has; 0: it is none.
int64_t rotation_width(std::string_view rotation);

// The line of a spec.
std::string spec_line(const ModalityEntry& entry);

// Errors: invalid_argument (a line that is no entry, an unknown feature, a range outside of it, a name twice: naming
// the line).
[[nodiscard]] Result<std::vector<ModalityEntry>> parse_modality_spec(std::string_view text, const Info& info);

// Entries for the kinds that `given` lacks. The numbers of observation.state and action are grouped by the names that
// info.json has: left and right, gripper or hand, arm; without names a column is one group. Every camera is an entry,
// and so is the task of a frame. Features that no entry takes are left to the user.
std::vector<ModalityEntry> proposed_modality(const Info& info, const std::vector<ModalityEntry>& given);

Json modality_json(const std::vector<ModalityEntry>& entries);

// The other way round. Keys that entries have not, such as GR00T N1.5's `absolute`, are left out. Errors: corruption (a
// group without a range, a kind that is unknown).
[[nodiscard]] Result<std::vector<ModalityEntry>> modality_entries(const Json& modality);

}  // namespace millrace::lerobot
