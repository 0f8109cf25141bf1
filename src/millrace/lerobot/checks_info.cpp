// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/info.h"

namespace millrace::lerobot {
namespace {

Place of_feature(std::string column = {}) {
  return {.file = std::string(kInfoFile), .data = {.column = std::move(column)}};
}

void check_version(const Info& info, Report& report) {
  if (info.version != Version::kUnknown || info.version_text.empty()) return;
  const bool old = info.version_text.starts_with("v1") || info.version_text.starts_with("1");
  report.add(2, of_feature(),
             fmt::format("codebase_version is \"{}\", and v2.0, v2.1 and v3.0 are known{}", info.version_text,
                         old ? " (LeRobot before November 2024 has a converter for v1.6)" : ""));
}

void check_rate(const Info& info, Report& report) {
  if (!info.fps) {
    report.add(10, of_feature(), "fps is no number");
    return;
  }
  const double fps = *info.fps;
  if (!std::isfinite(fps) || fps <= 0) {
    report.add(10, of_feature(), fmt::format("fps is {}", fps));
    return;
  }
  if (std::floor(fps) != fps) {
    report.add(10, of_feature(),
               fmt::format("fps is {}, which LeRobot's converters cut to {:.0f}", fps, std::floor(fps)), {},
               Severity::kWarning);
  }
  for (const Feature& feature : info.features) {
    for (const auto& [rate, key] : {std::pair(feature.fps, "fps"), std::pair(feature.video.fps, "video.fps")}) {
      if (!rate || std::abs(*rate - fps) < 1e-6 * fps) continue;
      report.add(10, of_feature(feature.name), fmt::format("its {} is {}, that of the dataset {}", key, *rate, fps), {},
                 Severity::kWarning);
    }
  }
}

void check_sizes(const Info& info, Report& report) {
  if (info.chunks_size && *info.chunks_size <= 0) {
    report.add(14, of_feature(), fmt::format("chunks_size is {}", *info.chunks_size), {}, Severity::kError);
  }
  for (const auto& [size, key] : {std::pair(info.data_file_mb, "data_files_size_in_mb"),
                                  std::pair(info.video_file_mb, "video_files_size_in_mb")}) {
    if (size && *size <= 0) report.add(14, of_feature(), fmt::format("{} is {}", key, *size));
  }
}

void check_feature_name(const Feature& feature, Report& report) {
  const std::string& name = feature.name;
  if (name.find('/') != name.npos) {
    report.add(28, of_feature(name), "its name has a '/'", {}, Severity::kError);
  } else if (name.starts_with("observations.") || name == "observations" || name.starts_with("actions.") ||
             name == "actions") {
    report.add(28, of_feature(name), "its name is in the plural");
  }
}

bool is_picture_word(std::string_view word) {
  constexpr std::array<std::string_view, 8> kWords = {"height", "width", "channel", "channels", "rgb", "h", "w", "c"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

void check_feature_names(const Feature& feature, Report& report) {
  if (feature.is_picture() && !feature.has_names) {
    report.add(29, of_feature(feature.name), "a camera without names: nobody knows which dimension is which");
  }
  if (!feature.has_names) return;
  const auto names = static_cast<int64_t>(feature.names.size());
  if (feature.is_picture()) {
    const bool fit = feature.names.size() == feature.shape.size() &&
                     std::all_of(feature.names.begin(), feature.names.end(), is_picture_word);
    if (!fit) report.add(29, of_feature(feature.name), "its names are not height, width and channels");
    return;
  }
  // With several dimensions, names are one a dimension or one a number.
  const bool fit = names == feature.size() || names == static_cast<int64_t>(feature.shape.size());
  if (names > 0 && (!fit || (feature.shape.size() == 1 && names != feature.size()))) {
    report.add(29, of_feature(feature.name), fmt::format("it has {} names for {} numbers", names, feature.size()));
  }
  std::set<std::string_view> seen;
  for (const std::string& name : feature.names) {
    if (!seen.insert(name).second) {
      report.add(30, of_feature(feature.name), fmt::format("the name \"{}\" stands there twice", name));
      break;
    }
  }
}

void check_depth(const Feature& feature, Report& report) {
  for (const std::string& key : feature.video.missing_depth_keys) {
    report.add(73, of_feature(feature.name), fmt::format("a depth camera without {}", key));
  }
  const auto& format = feature.video.pixel_format;
  if (feature.video.is_depth && format && format->find("12") == format->npos) {
    report.add(73, of_feature(feature.name), fmt::format("a depth camera in {}, which has not 12 bits", *format));
  }
}

void check_feature(const Feature& feature, Report& report) {
  if (feature.dtype.empty()) report.add(1, of_feature(feature.name), "the feature has no dtype");
  const bool shaped = std::all_of(feature.shape.begin(), feature.shape.end(), [](int64_t size) { return size > 0; });
  if (!shaped || feature.shape.empty()) report.add(1, of_feature(feature.name), "the feature has no valid shape");
  check_feature_name(feature, report);
  check_feature_names(feature, report);
  if (feature.is_picture() && feature.shape.size() == 3 && !feature.picture_size()) {
    report.add(31, of_feature(feature.name), "neither shape nor names say which dimension holds the channels", {},
               Severity::kWarning);
  }
  const bool is_language = feature.name == "language_persistent" || feature.name == "language_events";
  if (is_language && feature.dtype != "language") {
    report.add(74, of_feature(feature.name), fmt::format("its dtype is {} and not language", feature.dtype));
  }
}

}  // namespace

void check_info(const Info& info, Report& report) {
  check_version(info, report);
  check_rate(info, report);
  check_sizes(info, report);
  for (const Feature& feature : info.features) {
    check_feature(feature, report);
    if (info.version == Version::kV30) check_depth(feature, report);
  }
}

}  // namespace millrace::lerobot
