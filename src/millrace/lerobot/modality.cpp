// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/modality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "millrace/base/text/strings.h"

namespace millrace::lerobot {
namespace {

constexpr std::array<std::string_view, 4> kKinds = {"state", "action", "video", "annotation"};

bool is_vector_kind(std::string_view kind) {
  return kind == "state" || kind == "action";
}

}  // namespace

int64_t rotation_width(std::string_view rotation) {
  if (rotation == "quaternion") return 4;
  if (rotation == "rotation_6d") return 6;
  if (rotation == "matrix") return 9;
  return rotation == "axis_angle" || rotation.starts_with("euler_angles") ? 3 : 0;
}

namespace {

// ---- a line of a spec

struct Line {
  int64_t number = 0;
  std::string_view text;

  tl::unexpected<Error> wrong(std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, "line {}, '{}': {}", number, text, what);
  }
};

bool parse_place(std::string_view text, int64_t& value) {
  text = trimmed(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// "[3:7] quaternion" behind the name of a column; an empty text is the whole column.
Status parse_range(const Line& line, std::string_view text, const Feature& feature, ModalityEntry& entry) {
  entry.end = feature.size();
  if (text.starts_with('[')) {
    const size_t colon = text.find(':'), close = text.find(']');
    if (colon == text.npos || close == text.npos || colon > close ||
        !parse_place(text.substr(1, colon - 1), entry.start) ||
        !parse_place(text.substr(colon + 1, close - colon - 1), entry.end)) {
      return line.wrong("the range is no [START:END]");
    }
    text = trimmed(text.substr(close + 1));
  }
  if (entry.start < 0 || entry.end <= entry.start || entry.end > feature.size()) {
    return line.wrong(fmt::format("{} has the numbers [0:{}]", feature.name, feature.size()));
  }
  entry.rotation = text;
  if (text.empty()) return {};
  const int64_t wanted = rotation_width(text);
  if (wanted == 0) return line.wrong(fmt::format("'{}' is no rotation_type", text));
  if (wanted != entry.end - entry.start) return line.wrong(fmt::format("a {} has {} numbers", text, wanted));
  return {};
}

Status parse_vector(const Line& line, std::string_view value, const Info& info, ModalityEntry& entry) {
  const size_t end = value.find_first_of("[ \t");
  entry.column = value.substr(0, end);
  const Feature* const feature = info.find(entry.column);
  if (feature == nullptr) return line.wrong("there is no feature " + entry.column);
  if (!feature->is_numeric() || feature->size() <= 0) return line.wrong(entry.column + " holds no numbers");
  return parse_range(line, end == value.npos ? std::string_view() : trimmed(value.substr(end)), *feature, entry);
}

Result<ModalityEntry> parse_line(const Line& line, const Info& info) {
  const size_t equals = line.text.find('=');
  const size_t dot = line.text.find('.');
  if (equals == line.text.npos || dot > equals) return line.wrong("no KIND.NAME = COLUMN");
  ModalityEntry entry{.kind = std::string(trimmed(line.text.substr(0, dot))),
                      .name = std::string(trimmed(line.text.substr(dot + 1, equals - dot - 1)))};
  if (std::ranges::find(kKinds, entry.kind) == kKinds.end()) {
    return line.wrong("the kinds are state, action, video and annotation");
  }
  if (entry.name.empty()) return line.wrong("the name is missing");
  const std::string_view value = trimmed(line.text.substr(equals + 1));
  if (is_vector_kind(entry.kind)) {
    RETURN_IF_ERROR(parse_vector(line, value, info, entry));
    return entry;
  }
  entry.column = value;
  const Feature* const feature = info.find(entry.column);
  if (feature == nullptr) return line.wrong("there is no feature " + entry.column);
  if (entry.kind == "video" && !feature->is_video()) return line.wrong(entry.column + " is no camera");
  return entry;
}

// ---- proposals

// The group that a number belongs to by its name: "left_shoulder_pan.pos" to "left_arm".
std::string group_of_name(std::string_view name) {
  const std::string lower = lower_case(name);
  const auto has = [&](std::string_view word) { return lower.find(word) != lower.npos; };
  const std::string side = has("left") ? "left_" : has("right") ? "right_" : "";
  if (has("gripper")) return side + "gripper";
  for (const char* part : {"hand", "finger", "thumb"}) {
    if (has(part)) return side + "hand";
  }
  for (const char* part : {"waist", "torso", "neck", "head", "leg", "base"}) {
    if (has(part)) return side.empty() || std::string_view(part) == "leg" ? side + part : part;
  }
  return side.empty() ? "single_arm" : side + "arm";
}

// A group that comes again behind another one gets a number.
std::string unused_name(const std::vector<ModalityEntry>& entries, const ModalityEntry& wanted) {
  const auto is_used = [&](const std::string& name) {
    return std::ranges::any_of(entries,
                               [&](const ModalityEntry& e) { return e.kind == wanted.kind && e.name == name; });
  };
  std::string name = wanted.name;
  for (int i = 2; is_used(name); ++i) name = fmt::format("{}_{}", wanted.name, i);
  return name;
}

void propose_vector(const Info& info, const std::string& kind, const std::string& column,
                    std::vector<ModalityEntry>& entries) {
  const Feature* const feature = info.find(column);
  if (feature == nullptr || !feature->is_numeric() || feature->size() <= 0) return;
  const bool named = static_cast<int64_t>(feature->names.size()) == feature->size();
  ModalityEntry entry{.kind = kind, .name = "all", .column = column, .end = feature->size()};
  if (!named) return entries.push_back(entry);
  for (int64_t begin = 0; begin < feature->size(); begin = entry.end) {
    entry.name = group_of_name(feature->names[static_cast<size_t>(begin)]);
    entry.start = begin;
    for (entry.end = begin + 1; entry.end < feature->size(); ++entry.end) {
      if (group_of_name(feature->names[static_cast<size_t>(entry.end)]) != entry.name) break;
    }
    entry.name = unused_name(entries, entry);
    entries.push_back(entry);
  }
}

void propose_named(const Info& info, const std::string& kind, std::vector<ModalityEntry>& entries) {
  constexpr std::string_view kPrefix = "annotation.";
  for (const Feature& feature : info.features) {
    if (kind == "video" && feature.is_video()) {
      const size_t dot = feature.name.rfind('.');
      entries.push_back({.kind = kind, .name = feature.name.substr(dot + 1), .column = feature.name});
      entries.back().name = unused_name({entries.begin(), entries.end() - 1}, entries.back());
    }
    if (kind == "annotation" && feature.name.starts_with(kPrefix)) {
      entries.push_back({.kind = kind, .name = feature.name.substr(kPrefix.size()), .column = feature.name});
    }
  }
  const bool any = std::ranges::any_of(entries, [](const ModalityEntry& e) { return e.kind == "annotation"; });
  if (kind == "annotation" && !any && info.find("task_index") != nullptr) {
    entries.push_back({.kind = kind, .name = "human.task_description", .column = "task_index"});
  }
}

// ---- modality.json

// The column that an entry without original_key has.
std::string usual_column(std::string_view kind, const std::string& name) {
  if (kind == "state") return "observation.state";
  if (kind == "action") return "action";
  return (kind == "video" ? "observation.images." : "annotation.") + name;
}

Result<ModalityEntry> entry_of(const std::string& kind, const std::string& name, const Json& value) {
  const auto wrong = [&](std::string_view what) { return fail(ErrorCode::kCorruption, "{}.{}: {}", kind, name, what); };
  if (!value.is_object()) return wrong("it is no object");
  ModalityEntry entry{.kind = kind, .name = name};
  entry.column = text_at(value, "original_key").value_or(usual_column(kind, name));
  if (name.empty() || entry.column.empty()) return wrong("its name or its original_key is empty");
  if (!is_vector_kind(kind)) return entry;
  const auto start = integer_at(value, "start"), end = integer_at(value, "end");
  if (!start || !end || *start < 0 || *end <= *start) return wrong("it has no range from start to end");
  entry.start = *start;
  entry.end = *end;
  entry.rotation = text_at(value, "rotation_type").value_or("");
  return entry;
}

}  // namespace

std::string spec_line(const ModalityEntry& entry) {
  std::string line = fmt::format("{}.{} = {}", entry.kind, entry.name, entry.column);
  if (is_vector_kind(entry.kind)) line += fmt::format("[{}:{}]", entry.start, entry.end);
  if (!entry.rotation.empty()) line += " " + entry.rotation;
  return line;
}

Result<std::vector<ModalityEntry>> parse_modality_spec(std::string_view text, const Info& info) {
  std::vector<ModalityEntry> entries;
  Status status;
  for_each_line(text, [&](int64_t number, std::string_view content) {
    const Line line{number, trimmed(content.substr(0, content.find('#')))};
    if (!status || line.text.empty()) return;
    auto entry = parse_line(line, info);
    if (!entry) {
      status = tl::unexpected(entry.error());
    } else if (unused_name(entries, *entry) != entry->name) {
      status = line.wrong("the name is there already");
    } else {
      entries.push_back(*std::move(entry));
    }
  });
  RETURN_IF_ERROR(status);
  return entries;
}

std::vector<ModalityEntry> proposed_modality(const Info& info, const std::vector<ModalityEntry>& given) {
  std::vector<ModalityEntry> entries;
  for (const std::string_view kind : kKinds) {
    if (std::ranges::any_of(given, [&](const ModalityEntry& entry) { return entry.kind == kind; })) continue;
    if (is_vector_kind(kind)) {
      propose_vector(info, std::string(kind), kind == "state" ? "observation.state" : "action", entries);
    } else {
      propose_named(info, std::string(kind), entries);
    }
  }
  return entries;
}

Json modality_json(const std::vector<ModalityEntry>& entries) {
  Json all = {
      {"state", Json::object()}, {"action", Json::object()}, {"video", Json::object()}, {"annotation", Json::object()}};
  for (const ModalityEntry& entry : entries) {
    Json& value = all[entry.kind][entry.name] = Json::object();
    const bool is_usual = entry.kind == "state"    ? entry.column == "observation.state"
                          : entry.kind == "action" ? entry.column == "action"
                          : entry.kind == "video"  ? false
                                                   : entry.column == "annotation." + entry.name;
    if (is_vector_kind(entry.kind)) value = {{"start", entry.start}, {"end", entry.end}};
    if (!is_usual) value["original_key"] = entry.column;
    if (!entry.rotation.empty()) value["rotation_type"] = entry.rotation;
  }
  return all;
}

Result<std::vector<ModalityEntry>> modality_entries(const Json& modality) {
  if (!modality.is_object()) return fail(ErrorCode::kCorruption, "it is no object");
  std::vector<ModalityEntry> entries;
  for (const auto& [kind, group] : modality.items()) {
    if (std::ranges::find(kKinds, kind) == kKinds.end()) return fail(ErrorCode::kCorruption, "{}: no such kind", kind);
    if (!group.is_object()) return fail(ErrorCode::kCorruption, "{}: it is no object", kind);
    for (const auto& [name, value] : group.items()) {
      ASSIGN_OR_RETURN(entries.emplace_back(), entry_of(kind, name, value));
    }
  }
  return entries;
}

}  // namespace millrace::lerobot
