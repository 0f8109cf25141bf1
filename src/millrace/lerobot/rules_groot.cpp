// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/report.h"

namespace millrace::lerobot {
namespace {

constexpr Rule kGroot[] = {
    {"LR063", Severity::kError, "groot", "modality.json cuts the vectors into groups",
     "GR00T reads only what a group names; one beyond the vector stops it.",
     "Write meta/modality.json with start < end <= the vector.", "NVIDIA/Isaac-GR00T#105, #408"},
    {"LR064", Severity::kError, "groot", "what modality.json names is there",
     "The loader asserts each video and annotation.", "Correct original_key, or add the column.",
     "Isaac-GR00T lerobot_episode_loader.py"},
    {"LR065", Severity::kError, "groot", "the language key begins with annotation.",
     "The loader asserts that; only task and sub_task are taken as well.",
     "Write annotation.human.task_description, say.", "Isaac-GR00T lerobot_episode_loader.py"},
    {"LR066", Severity::kError, "groot", "the dataset is v2.x", "GR00T N1.5 to N1.7 read no v3.0.",
     "Convert it to v2.1.", "NVIDIA/Isaac-GR00T#391"},
    {"LR067", Severity::kError, "groot", "names and video information are a pair that N1.5 reads",
     "N1.5 wants video_info beside \"channel\" and info beside \"channels\", and stops at others.", "Rename the key.",
     "Isaac-GR00T N1.5 dataset.py"},
    {"LR068", Severity::kError, "groot", "relative statistics and horizon fit the model",
     "Each is a matrix of horizon x dimensions; N1.7 takes at most 40 steps and 132 dimensions.",
     "Remove relative_stats.json, so that it is computed again; choose a smaller horizon.",
     "Isaac-GR00T data_config.md; NVIDIA/Isaac-GR00T#644"},
    {"LR069", Severity::kWarning, "groot", "statistics are newer than the data",
     "GR00T computes them only where one is missing; edited data of the same shape keep the old ones.",
     "Remove stats.json and relative_stats.json after an edit.", "Isaac-GR00T stats.py"},
    {"LR070", Severity::kWarning, "groot", "groups that are rotations look like rotations",
     "A quaternion of length 2 or a group of 5 numbers is converted into nonsense without an error.",
     "Correct start, end or rotation_type; normalise quaternions.", "Isaac-GR00T schema.py"},
    {"LR071", Severity::kWarning, "hub", "the version tag is there, and is the main branch",
     "LeRobot downloads the tag of its version and not main: it gets old files beside new metadata.",
     "Move the tag to main.", "huggingface/lerobot#4138, #3601"},
    {"LR072", Severity::kWarning, "hub", "there are few enough files",
     "The Hub answers 429 to a client that asks for thousands of small files.",
     "Convert to v3.0, which packs episodes into large files.", "NVIDIA/Isaac-GR00T#434; huggingface_hub#3342"},
    {"LR073", Severity::kError, "video", "a depth camera says how depth is stored",
     "Without unit and range of the 12-bit codes, depth cannot be computed back.",
     "Write is_depth_map, depth_unit and video.depth_min, depth_max, shift and use_log into info.",
     "LeRobot depth_utils.py"},
    {"LR074", Severity::kWarning, "rows", "language columns are declared, and name cameras where they must",
     "Rows of the styles vqa and trace belong to one camera, all others to none.",
     "Declare the column with dtype language; set or remove camera.", "LeRobot language.py"},
    {"LR075", Severity::kWarning, "layout", "every data file and every video belongs to an episode",
     "What no episode names is copied, uploaded and paid for, and nothing reads it; or its episodes are missing from "
     "the "
     "metadata.",
     "Remove the file, or list its episodes in meta/.", "a public v3.0 set, 44 % of whose rows no episode names"},
    {"LR076", Severity::kError, "data", "every row of a data file belongs to an episode",
     "LeRobot numbers the rows of all files one behind the other: all rows behind those that no episode names are "
     "taken "
     "for others.",
     "Remove these rows, or list their episodes in meta/; the totals of info.json count listed episodes only.",
     "a public v3.0 set, 44 % of whose rows no episode names"},
    {"LR077", Severity::kError, "video", "no video has zero bytes",
     "The writer was stopped before the first byte, or a download or copy only made the name.",
     "Download or copy it again; else encode the episode again.", "strands-labs/robots#1078"},
};

}  // namespace

std::span<const Rule> groot_rules() {
  return kGroot;
}

}  // namespace millrace::lerobot
