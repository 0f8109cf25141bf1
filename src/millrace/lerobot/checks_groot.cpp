// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/modality.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {
namespace {

constexpr std::string_view kModality = "meta/modality.json";
constexpr int64_t kMostBytes = 16 << 20;
// N1.7 as it is released; N1.5 takes 64 numbers of state and 32 of action.
constexpr int64_t kMostHorizon = 40, kMostDims = 132, kMostState15 = 64, kMostAction15 = 32;

Place in_modality(std::string column = {}) {
  return {.file = std::string(kModality), .data = {.column = std::move(column)}};
}

Result<Json> read_modality(const Tree& tree) {
  ASSIGN_OR_RETURN(const std::string text, tree.read(kModality, kMostBytes));
  return parse_python_json(text);
}

Group group_of(const std::string& kind, const std::string& name, const Json& value) {
  const std::string usual = kind == "state" ? "observation.state" : "action";
  return {.kind = kind,
          .name = name,
          .column = text_at(value, "original_key").value_or(usual),
          .start = integer_at(value, "start").value_or(-1),
          .end = integer_at(value, "end").value_or(-1),
          .rotation = text_at(value, "rotation_type").value_or("")};
}

std::vector<Group> groups_of(const Json& modality) {
  std::vector<Group> groups;
  for (const char* kind : {"state", "action"}) {
    const Json* section = member(modality, kind);
    if (section == nullptr || !section->is_object()) continue;
    for (const auto& [name, value] : section->items()) groups.push_back(group_of(kind, name, value));
  }
  return groups;
}

std::string full_name(const Group& group) {
  return group.kind + "." + group.name;
}

void check_group(const Checking& checking, const Group& group) {
  Report& report = checking.report;
  const Place place = in_modality(full_name(group));
  const Feature* feature = checking.dataset.info.find(group.column);
  if (feature == nullptr) return report.add(63, place, fmt::format("there is no feature {}", group.column));
  if (group.start < 0 || group.end <= group.start) {
    return report.add(63, place, fmt::format("start {} and end {} are no range", group.start, group.end));
  }
  if (group.end > feature->size()) {
    return report.add(63, place,
                      fmt::format("it ends at {}, and {} has {} numbers", group.end, group.column, feature->size()));
  }
  if (group.rotation.empty()) return;
  const int64_t width = group.end - group.start;
  const int64_t wanted = rotation_width(group.rotation);
  if (wanted == 0) {
    report.add(70, place, fmt::format("\"{}\" is no rotation_type", group.rotation));
  } else if (wanted != width) {
    report.add(70, place, fmt::format("a {} has {} numbers, and the group {}", group.rotation, wanted, width));
  }
}

// Reports numbers of a column that no group covers, or two.
void check_cover(const Checking& checking, const std::vector<Group>& groups) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> covers;  // kind and column -> how often each number
  for (const Group& group : groups) {
    const Feature* feature = checking.dataset.info.find(group.column);
    if (feature == nullptr || feature->size() <= 0 || feature->size() > (1 << 20)) continue;
    auto& cover = covers[{group.kind, group.column}];
    cover.resize(static_cast<size_t>(feature->size()));
    for (int64_t i = std::max<int64_t>(group.start, 0); i < std::min(group.end, feature->size()); ++i)
      ++cover[static_cast<size_t>(i)];
  }
  for (const auto& [key, cover] : covers) {
    const auto twice = std::find_if(cover.begin(), cover.end(), [](int count) { return count > 1; });
    const auto never = std::find(cover.begin(), cover.end(), 0);
    if (twice != cover.end()) {
      checking.report.add(63, in_modality(key.second),
                          fmt::format("number {} of it is in two groups of {}", twice - cover.begin(), key.first), {},
                          Severity::kWarning);
    }
    if (never != cover.end()) {
      checking.report.add(63, in_modality(key.second),
                          fmt::format("number {} of it is in no group of {}", never - cover.begin(), key.first), {},
                          Severity::kWarning);
    }
  }
}

void check_named(const Checking& checking, const Json& modality) {
  const Info& info = checking.dataset.info;
  if (const Json* video = member(modality, "video"); video != nullptr && video->is_object()) {
    for (const auto& [name, value] : video->items()) {
      const std::string key = text_at(value, "original_key").value_or("observation.images." + name);
      const Feature* feature = info.find(key);
      const Place place = in_modality("video." + name);
      if (feature == nullptr || !feature->is_video()) {
        checking.report.add(64, place, fmt::format("there is no camera {}", key));
        continue;
      }
      const bool any = std::any_of(
          checking.dataset.tree.files().begin(), checking.dataset.tree.files().end(), [&](const TreeFile& file) {
            return file.path.starts_with("videos/") && file.path.find("/" + key + "/") != std::string::npos;
          });
      if (!any) checking.report.add(64, place, fmt::format("the camera {} has no files", key));
    }
  }
  const Json* annotation = member(modality, "annotation");
  if (annotation == nullptr || !annotation->is_object()) return;
  for (const auto& [name, value] : annotation->items()) {
    if (name.starts_with("annotation.")) {
      checking.report.add(65, in_modality("annotation." + name),
                          "its name has the prefix annotation., which the loader puts before it");
    }
    const std::string key = text_at(value, "original_key").value_or("annotation." + name);
    const Feature* feature = info.find(key);
    if (feature == nullptr) {
      checking.report.add(64, in_modality("annotation." + name), fmt::format("there is no column {}", key));
    } else if (!feature->dtype.starts_with("int") && !feature->dtype.starts_with("uint")) {
      checking.report.add(64, in_modality("annotation." + name),
                          fmt::format("the column {} is {}, and indices of tasks are wanted", key, feature->dtype));
    }
  }
}

void check_language_key(const Checking& checking, const Json& modality) {
  const std::string& key = checking.options.language_key;
  if (key.empty() || key == "task" || key == "sub_task") return;
  constexpr std::string_view kPrefix = "annotation.";
  if (!key.starts_with(kPrefix)) {
    return checking.report.add(65, in_modality(key), fmt::format("the language key is \"{}\"", key));
  }
  const Json* annotation = member(modality, "annotation");
  if (annotation == nullptr || member(*annotation, key.substr(kPrefix.size())) == nullptr) {
    checking.report.add(65, in_modality(key),
                        fmt::format("modality.json has no annotation \"{}\"", key.substr(kPrefix.size())));
  }
}

// N1.5 decides by the third name of a camera where it looks for its rate and size.
void check_n15(const Checking& checking) {
  if (checking.options.groot != GrootVersion::kN15) return;
  for (const Feature* camera : checking.dataset.info.cameras()) {
    const std::string channels = camera->names.size() == 3 ? camera->names[2] : "";
    const std::string wanted = channels == "channel" ? "video_info" : channels == "channels" ? "info" : "";
    const Place place{.file = std::string(kInfoFile), .data = {.column = camera->name}};
    if (wanted.empty()) {
      checking.report.add(67, place,
                          fmt::format("its third name is \"{}\", and N1.5 takes channel and channels", channels));
    } else if (camera->video.key != wanted) {
      checking.report.add(67, place,
                          fmt::format("beside \"{}\" N1.5 wants {}, and {} is there", channels, wanted,
                                      camera->video.key.empty() ? "neither" : camera->video.key));
    }
  }
}

void check_dims(const Checking& checking, const std::vector<Group>& groups) {
  std::map<std::string, int64_t> width;
  for (const Group& group : groups) width[group.kind] += std::max<int64_t>(group.end - group.start, 0);
  for (const auto& [kind, dims] : width) {
    const bool n15 = checking.options.groot == GrootVersion::kN15;
    const int64_t most = !n15 ? kMostDims : kind == "state" ? kMostState15 : kMostAction15;
    if (dims <= most) continue;
    // The modality config chooses among the groups, and is not part of the dataset.
    checking.report.add(68, in_modality(kind),
                        fmt::format("its groups have {} numbers together, and the model takes {}", dims, most),
                        "Choose groups of fewer numbers in the modality config.", Severity::kWarning);
  }
  const int64_t horizon = checking.options.policy_horizon;
  if (checking.options.groot == GrootVersion::kN17 && horizon > kMostHorizon) {
    checking.report.add(68, in_modality("action"),
                        fmt::format("a horizon of {} steps, the model takes {}", horizon, kMostHorizon));
  }
}

bool is_relative_file(std::string_view path) {
  return path.starts_with("meta/relative_stats") && path.ends_with(".json");
}

Status check_relative(const Checking& checking, const std::vector<Group>& groups) {
  for (const TreeFile& file : checking.dataset.tree.below("meta/relative_stats")) {
    if (!is_relative_file(file.path)) continue;
    ASSIGN_OR_RETURN(const std::string text, checking.dataset.tree.read(file.path, kMostBytes));
    const Result<Json> json = parse_python_json(text);
    if (!json || !json->is_object()) {
      checking.report.add(68, {.file = file.path}, json ? "it is no object" : json.error().message());
      continue;
    }
    for (const auto& [name, stats] : json->items()) {
      if (name == "__fingerprints__" || !stats.is_object()) continue;
      const std::string& key = name;
      const auto group = std::find_if(groups.begin(), groups.end(),
                                      [&](const Group& g) { return g.kind == "action" && g.name == key; });
      const Place place{.file = file.path, .data = {.column = name}};
      if (group == groups.end()) {
        checking.report.add(68, place, "modality.json has no such group of actions");
        continue;
      }
      for (const auto& [statistic, value] : stats.items()) {
        std::vector<int64_t> shape;
        const auto numbers = numbers_of(value, shape);
        const int64_t dims = group->end - group->start, horizon = checking.options.policy_horizon;
        const bool fits = numbers && shape.size() == 2 && shape[1] == dims && (horizon <= 0 || shape[0] == horizon);
        if (fits && shape[0] <= kMostHorizon) continue;
        const std::string is = numbers && shape.size() == 2 ? fmt::format("{} x {}", shape[0], shape[1]) : "no matrix";
        checking.report.add(68, place,
                            fmt::format("its {} is {}, and {} x {} is wanted", statistic, is,
                                        horizon > 0 ? std::to_string(horizon) : "horizon", dims));
        break;
      }
    }
  }
  return {};
}

// Files that came together have times that tell nothing; one that is younger by a second was written later.
void check_age(const Checking& checking) {
  const Tree& tree = checking.dataset.tree;
  const TreeFile* newest = nullptr;
  for (const TreeFile& file : tree.below("data/")) {
    if (newest == nullptr || file.modified > newest->modified) newest = &file;
  }
  if (newest == nullptr || !tree.is_local()) return;
  for (const TreeFile& file : tree.below("meta/")) {
    if (file.path != "meta/stats.json" && !is_relative_file(file.path)) continue;
    if (file.modified + std::chrono::seconds(1) >= newest->modified) continue;
    checking.report.add(69, {.file = file.path}, fmt::format("it is older than {}", newest->path));
  }
}

}  // namespace

std::vector<Group> read_groups(const Tree& tree) {
  if (tree.find(kModality) == nullptr) return {};
  const Result<Json> modality = read_modality(tree);
  return modality ? groups_of(*modality) : std::vector<Group>();
}

Status check_groot(const Checking& checking) {
  const Tree& tree = checking.dataset.tree;
  const bool is_asked = checking.options.groot != GrootVersion::kNone;
  if (is_asked && !is_v2(checking.dataset.info.version)) {
    checking.report.add(66, {.file = std::string(kInfoFile)},
                        fmt::format("it is {}", checking.dataset.info.version_text));
  }
  if (tree.find(kModality) == nullptr) {
    if (is_asked) checking.report.add(63, in_modality(), "the file is missing");
    return {};
  }
  const Result<Json> modality = read_modality(tree);
  if (!modality || !modality->is_object()) {
    checking.report.add(63, in_modality(), modality ? "it is no object" : modality.error().message());
    return {};
  }
  const std::vector<Group> groups = groups_of(*modality);
  for (const Group& group : groups) check_group(checking, group);
  check_cover(checking, groups);
  check_named(checking, *modality);
  check_language_key(checking, *modality);
  if (!is_asked) return {};
  check_n15(checking);
  check_dims(checking, groups);
  check_age(checking);
  return check_relative(checking, groups);
}

}  // namespace millrace::lerobot
