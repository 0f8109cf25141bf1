// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/info.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/checks.h"

namespace millrace::lerobot {
namespace {

constexpr std::array<std::string_view, 5> kBookkeeping = {"timestamp", "frame_index", "episode_index", "index",
                                                          "task_index"};
constexpr size_t kMostNames = 1 << 16;

// The names of a feature, whatever they are nested in: ["a"], {"motors": ["a"]}, {"axes": {...}}.
void add_names(const Json& value, std::vector<std::string>& names) {
  if (names.size() > kMostNames) return;
  if (value.is_string()) names.push_back(value.get<std::string>());
  if (!value.is_structured()) return;
  for (const Json& item : value) add_names(item, names);
}

Feature::Video parse_video(const Json& feature) {
  Feature::Video video;
  const Json* info = nullptr;
  for (const char* key : {"info", "video_info"}) {
    const Json* found = member(feature, key);
    if (found == nullptr || !found->is_object()) continue;
    video.key = key;
    info = found;
    break;
  }
  if (info == nullptr) return video;
  video.fps = number_at(*info, "video.fps");
  video.codec = text_at(*info, "video.codec");
  video.pixel_format = text_at(*info, "video.pix_fmt");
  video.height = integer_at(*info, "video.height");
  video.width = integer_at(*info, "video.width");
  video.is_depth =
      bool_at(*info, "is_depth_map").value_or(false) || bool_at(*info, "video.is_depth_map").value_or(false);
  if (!video.is_depth) return video;
  constexpr std::array kKeys = {"is_depth_map",    "depth_unit",  "video.depth_min",
                                "video.depth_max", "video.shift", "video.use_log"};
  for (const char* key : kKeys) {
    if (member(*info, key) == nullptr) video.missing_depth_keys.emplace_back(key);
  }
  return video;
}

Feature parse_feature(const std::string& name, const Json& value) {
  Feature feature{.name = name, .dtype = text_at(value, "dtype").value_or("")};
  if (const Json* shape = member(value, "shape"); shape != nullptr && shape->is_array()) {
    for (const Json& size : *shape) feature.shape.push_back(as_integer(size).value_or(-1));
  }
  if (const Json* names = member(value, "names"); names != nullptr && !names->is_null()) {
    feature.has_names = true;
    add_names(*names, feature.names);
  }
  feature.video = parse_video(value);
  feature.fps = number_at(value, "fps");
  return feature;
}

std::optional<PathTemplate> parse_template(const Json& json, const char* key, Report& report) {
  const auto text = text_at(json, key);
  if (!text) return std::nullopt;
  auto parsed = PathTemplate::parse(*text);
  if (parsed) return *std::move(parsed);
  report.add(4, {.file = std::string(kInfoFile), .data = {.column = key}},
             fmt::format("\"{}\": {}", *text, parsed.error().message()));
  return std::nullopt;
}

void parse_features(const Json& json, Info& info, Report& report) {
  const Json* features = member(json, "features");
  if (features == nullptr || !features->is_object()) return;
  for (const auto& [name, value] : features->items()) {
    if (value.is_object()) {
      info.features.push_back(parse_feature(name, value));
    } else {
      report.add(1, {.file = std::string(kInfoFile), .data = {.column = name}}, "the feature is no object");
    }
  }
}

void check_keys(const Json& json, Report& report) {
  for (const char* key : {"codebase_version", "fps", "features", "data_path", "chunks_size"}) {
    if (member(json, key) == nullptr) report.add(1, {.file = std::string(kInfoFile)}, fmt::format("it has no {}", key));
  }
  if (const Json* features = member(json, "features"); features != nullptr && !features->is_object()) {
    report.add(1, {.file = std::string(kInfoFile)}, "features is no object");
  }
}

}  // namespace

std::string_view version_text(Version version) {
  switch (version) {
    case Version::kV20:
      return "v2.0";
    case Version::kV21:
      return "v2.1";
    case Version::kV30:
      return "v3.0";
    default:
      return "unknown";
  }
}

Version parse_version(std::string_view text) {
  if (text.starts_with('v')) text.remove_prefix(1);
  if (text == "2.0") return Version::kV20;
  if (text == "2.1") return Version::kV21;
  return text.starts_with("3.") ? Version::kV30 : Version::kUnknown;
}

bool Feature::is_bookkeeping() const {
  return std::find(kBookkeeping.begin(), kBookkeeping.end(), name) != kBookkeeping.end();
}

bool Feature::is_learned() const {
  return is_float() && !is_bookkeeping() && (name.starts_with("action") || name.starts_with("observation"));
}

int64_t Feature::size() const {
  int64_t size = 1;
  for (const int64_t each : shape) {
    if (each < 0 || each > (1 << 28) || size > (1 << 28)) return -1;
    size *= each;
  }
  return size;
}

std::optional<std::pair<int64_t, int64_t>> Feature::picture_size() const {
  if (shape.size() != 3) return std::nullopt;
  const auto is_channels = [](std::string_view word) {
    return word == "channel" || word == "channels" || word == "rgb" || word == "c";
  };
  const bool named = names.size() == 3;
  const auto few = [](int64_t size) { return size == 1 || size == 3 || size == 4; };
  const bool last = named ? is_channels(names[2]) : few(shape[2]) && !few(shape[0]);
  const bool first = named ? is_channels(names[0]) : few(shape[0]) && !few(shape[2]);
  if (last == first) return std::nullopt;
  return last ? std::pair(shape[0], shape[1]) : std::pair(shape[1], shape[2]);
}

const Feature* Info::find(std::string_view name) const {
  const auto found = std::find_if(features.begin(), features.end(), [&](const Feature& f) { return f.name == name; });
  return found == features.end() ? nullptr : &*found;
}

std::vector<const Feature*> Info::cameras() const {
  std::vector<const Feature*> cameras;
  for (const Feature& feature : features) {
    if (feature.is_video()) cameras.push_back(&feature);
  }
  return cameras;
}

Info parse_info(std::string_view text, Report& report) {
  Info info;
  const Result<Json> parsed = parse_python_json(text);
  if (!parsed || !parsed->is_object()) {
    report.add(1, {.file = std::string(kInfoFile)}, parsed ? "it is no object" : parsed.error().message());
    return info;
  }
  const Json& json = *parsed;
  check_keys(json, report);
  info.version_text = text_at(json, "codebase_version").value_or("");
  info.version = parse_version(info.version_text);
  info.robot_type = text_at(json, "robot_type").value_or("");
  info.storage_format = text_at(json, "storage_format").value_or("");
  info.fps = number_at(json, "fps");
  info.total_episodes = integer_at(json, "total_episodes");
  info.total_frames = integer_at(json, "total_frames");
  info.total_tasks = integer_at(json, "total_tasks");
  info.total_videos = integer_at(json, "total_videos");
  info.total_chunks = integer_at(json, "total_chunks");
  info.chunks_size = integer_at(json, "chunks_size");
  info.data_file_mb = number_at(json, "data_files_size_in_mb");
  info.video_file_mb = number_at(json, "video_files_size_in_mb");
  if (const Json* splits = member(json, "splits"); splits != nullptr && splits->is_object()) {
    for (const auto& [name, range] : splits->items()) {
      info.splits.emplace_back(name, range.is_string() ? range.get<std::string>() : range.dump());
    }
  }
  info.data_path = parse_template(json, "data_path", report);
  info.video_path = parse_template(json, "video_path", report);
  parse_features(json, info, report);
  check_info(info, report);
  return info;
}

}  // namespace millrace::lerobot
