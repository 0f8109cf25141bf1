// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/base/text/utf8.h"
#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/info.h"

namespace millrace::lerobot {
namespace {

constexpr std::string_view kDataV2 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet";
constexpr std::string_view kVideoV2 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4";
constexpr std::string_view kDataV3 = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet";
constexpr std::string_view kVideoV3 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4";

Place in_info() {
  return {.file = std::string(kInfoFile)};
}

TemplateValues values_of(const Info& info, const Episode& episode, const VideoSpan* video, std::string_view key) {
  if (is_v2(info.version)) {
    const int64_t chunk = episode.index / std::max<int64_t>(info.chunks_size.value_or(1000), 1);
    return {{"episode_chunk", chunk}, {"episode_index", episode.index}, {"video_key", std::string(key)}};
  }
  const int64_t chunk = video != nullptr ? video->chunk : episode.data_chunk;
  const int64_t file = video != nullptr ? video->file : episode.data_file;
  return {{"chunk_index", chunk}, {"file_index", file}, {"video_key", std::string(key)}};
}

// What the template says; where no file is there, what the version's own template says, if one is there.
std::optional<std::string> resolved(const Tree& tree, const std::optional<PathTemplate>& given, std::string_view usual,
                                    const TemplateValues& values) {
  std::optional<std::string> path;
  if (given) {
    if (auto formatted = given->format(values)) path = *std::move(formatted);
  }
  if (path && tree.find(*path) != nullptr) return path;
  const auto parsed = PathTemplate::parse(usual);
  const auto fallback = parsed ? parsed->format(values) : Result<std::string>();
  if (fallback && tree.find(*fallback) != nullptr) return *fallback;
  return path;
}

std::string first_few(const std::vector<std::string>& all) {
  constexpr size_t kShown = 3;
  const std::vector<std::string> shown(all.begin(), all.begin() + static_cast<ptrdiff_t>(std::min(all.size(), kShown)));
  return fmt::format("{}", fmt::join(shown, ", "));
}

void check_layout(const Checking& checking) {
  const Layout layout = layout_of(checking.dataset.tree);
  const Info& info = checking.dataset.info;
  if (is_v2(info.version) && !layout.v3.empty()) {
    checking.report.add(
        2, in_info(),
        fmt::format("codebase_version is {}, but these are v3.0's: {}", info.version_text, first_few(layout.v3)));
  }
  if (info.version == Version::kV30 && !layout.v2.empty()) {
    checking.report.add(
        2, in_info(),
        fmt::format("codebase_version is {}, but these are v2.x's: {}", info.version_text, first_few(layout.v2)));
  }
  const bool lines = checking.dataset.tree.find("meta/episodes.jsonl") != nullptr;
  const bool tables = !checking.dataset.tree.below("meta/episodes/").empty();
  if (lines == tables) {
    checking.report.add(3, {.file = "meta"},
                        lines ? "both episodes.jsonl and the tables of episodes/ are there"
                              : "neither episodes.jsonl nor tables in episodes/ are there");
  }
}

void check_template(const Checking& checking, const std::optional<PathTemplate>& path, const char* key, bool is_video) {
  if (!path) return;
  const bool v2 = is_v2(checking.dataset.info.version);
  const std::vector<std::string_view> known = v2 ? std::vector<std::string_view>{"episode_chunk", "episode_index"}
                                                 : std::vector<std::string_view>{"chunk_index", "file_index"};
  Place place = in_info();
  place.data.column = key;
  for (const std::string& name : path->names()) {
    if (std::find(known.begin(), known.end(), name) != known.end() || (is_video && name == "video_key")) continue;
    checking.report.add(4, place, fmt::format("{{{}}} is no value of {}", name, checking.dataset.info.version_text));
  }
  const std::string& text = path->text();
  if (text.starts_with('/') || text.find("..") != text.npos || text.find("://") != text.npos) {
    checking.report.add(5, place, fmt::format("\"{}\" leads out of the dataset", text));
  }
}

// LR004, LR014, LR041: that each episode's files are there.
class FileCheck {
 public:
  explicit FileCheck(const Checking& checking) : checking_(checking), dataset_(checking.dataset) {
    for (const TreeFile& file : dataset_.tree.files()) names_.insert(file.path.substr(file.path.rfind('/') + 1));
  }

  void run() {
    const auto cameras = dataset_.info.cameras();
    for (const Episode& episode : dataset_.episodes) {
      const auto data = dataset_.data_file(episode);
      check(dataset_.info.data_path, episode, nullptr, "", data, 4);
      for (size_t i = 0; i < cameras.size(); ++i) {
        if (dataset_.info.version == Version::kV30 && i >= episode.videos.size()) continue;
        const VideoSpan* span = i < episode.videos.size() ? &episode.videos[i] : nullptr;
        check(dataset_.info.video_path, episode, span, cameras[i]->name,
              dataset_.video_file(episode, i, cameras[i]->name), 41);
      }
    }
  }

 private:
  void check(const std::optional<PathTemplate>& given, const Episode& episode, const VideoSpan* video,
             const std::string& key, const std::optional<std::string>& found, int rule) {
    const auto wanted = given ? given->format(values_of(dataset_.info, episode, video, key)) : Result<std::string>();
    const std::string path = wanted ? *wanted : found.value_or("");
    if (path.empty() || (found && path == *found && dataset_.tree.find(path) != nullptr)) return;
    if (!told_.insert(path).second) return;
    const DataPlace data{.episode = episode.index, .column = key};
    if (found && dataset_.tree.find(*found) != nullptr) {
      checking_.report.add(4, {.file = path, .data = data},
                           fmt::format("the template of info.json leads here, and the file is {}", *found));
      return;
    }
    checking_.report.add(rule, {.file = path, .data = data},
                         rule == 4 ? "the file of this episode is missing" : "the video of this episode is missing");
    // In v2.x the name alone tells the episode: the file may be in another chunk.
    const std::string name = path.substr(path.rfind('/') + 1);
    if (is_v2(dataset_.info.version) && key.empty() && names_.count(name) > 0) {
      checking_.report.add(14, {.file = path, .data = data},
                           fmt::format("{} is there, in another chunk than episode / chunks_size", name));
    }
  }

  const Checking& checking_;
  const Dataset& dataset_;
  std::set<std::string> names_, told_;
};

void check_file_sizes(const Checking& checking) {
  const Info& info = checking.dataset.info;
  if (info.version != Version::kV30) return;
  std::map<std::string, int64_t> episodes_in, files_in;
  const auto cameras = info.cameras();
  for (const Episode& episode : checking.dataset.episodes) {
    if (const auto path = checking.dataset.data_file(episode)) ++episodes_in[*path];
    for (size_t i = 0; i < episode.videos.size() && i < cameras.size(); ++i) {
      if (const auto path = checking.dataset.video_file(episode, i, cameras[i]->name)) ++episodes_in[*path];
    }
  }
  for (const auto& [path, episodes] : episodes_in) {
    const TreeFile* file = checking.dataset.tree.find(path);
    if (file == nullptr) continue;
    ++files_in[path.substr(0, path.rfind('/'))];
    const auto limit_mb = path.ends_with(".mp4") ? info.video_file_mb : info.data_file_mb;
    // A writer estimates: an episode may end beyond the limit, two limits are another size.
    const double limit = 2 * limit_mb.value_or(0) * (1 << 20);
    if (limit > 0 && episodes > 1 && static_cast<double>(file->size) > limit) {
      checking.report.add(
          14, {.file = path},
          fmt::format("it has {}, and info.json says at most {} MB", format_bytes(file->size), *limit_mb));
    }
  }
  for (const auto& [folder, files] : files_in) {
    if (info.chunks_size.value_or(0) <= 0 || files <= *info.chunks_size) continue;
    checking.report.add(14, {.file = folder},
                        fmt::format("it has {} files, and chunks_size is {}", files, *info.chunks_size));
  }
}

void check_cameras(const Checking& checking) {
  const Info& info = checking.dataset.info;
  const size_t part = is_v2(info.version) ? 2 : 1;
  std::set<std::string> told;
  for (const TreeFile& file : checking.dataset.tree.below("videos/")) {
    size_t begin = 0;
    for (size_t i = 0; i < part && begin != std::string::npos; ++i) {
      begin = file.path.find('/', begin);
      if (begin != std::string::npos) ++begin;
    }
    if (begin == std::string::npos) continue;
    const size_t end = file.path.find('/', begin);
    if (end == std::string::npos) continue;
    const std::string key = file.path.substr(begin, end - begin);
    const Feature* feature = info.find(key);
    if ((feature != nullptr && feature->is_video()) || !told.insert(key).second) continue;
    checking.report.add(41, {.file = file.path.substr(0, end), .data = {.column = key}},
                        "a folder of videos that no feature declares",
                        "Declare the camera in info.json, or remove the folder.", Severity::kWarning);
  }
}

void check_total(const Checking& checking, int rule, const char* key, const std::optional<int64_t>& said,
                 int64_t counted) {
  if (!said) {
    if (rule == 11) checking.report.add(rule, in_info(), fmt::format("it has no {}", key));
  } else if (*said != counted) {
    checking.report.add(rule, in_info(), fmt::format("{} is {}, and {} are there", key, *said, counted));
  }
}

void check_totals(const Checking& checking) {
  const Info& info = checking.dataset.info;
  const auto episodes = static_cast<int64_t>(checking.dataset.episodes.size());
  check_total(checking, 11, "total_episodes", info.total_episodes, episodes);
  check_total(checking, 11, "total_frames", info.total_frames, checking.dataset.frames());
  check_total(checking, 12, "total_tasks", info.total_tasks, static_cast<int64_t>(checking.dataset.tasks.size()));
  if (!is_v2(info.version)) return;
  check_total(checking, 12, "total_videos", info.total_videos, episodes * static_cast<int64_t>(info.cameras().size()));
  const int64_t size = info.chunks_size.value_or(0);
  if (size > 0) check_total(checking, 12, "total_chunks", info.total_chunks, (episodes + size - 1) / size);
}

// "0:5". Nothing when it is something else.
std::optional<std::pair<int64_t, int64_t>> parse_range(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == text.npos) return std::nullopt;
  std::pair<int64_t, int64_t> range{0, 0};
  const auto whole = [](std::string_view part, int64_t& out) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    return error == std::errc() && end == part.data() + part.size();
  };
  if (!whole(text.substr(0, colon), range.first) || !whole(text.substr(colon + 1), range.second)) return std::nullopt;
  return range;
}

void check_splits(const Checking& checking) {
  const auto episodes = static_cast<int64_t>(checking.dataset.episodes.size());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, text] : checking.dataset.info.splits) {
    const auto range = parse_range(text);
    if (!range || range->first < 0 || range->second < range->first) {
      checking.report.add(13, in_info(), fmt::format("the split {} is \"{}\", which is no range", name, text));
      return;
    }
    if (range->second > episodes) {
      checking.report.add(13, in_info(),
                          fmt::format("the split {} is {}, and there are {} episodes", name, text, episodes));
      return;
    }
    ranges.push_back(*range);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > covered) break;
    covered = std::max(covered, end);
  }
  if (!ranges.empty() && covered < episodes) {
    checking.report.add(13, in_info(), fmt::format("no split has episode {}", covered));
  }
}

void check_numbers(const Checking& checking) {
  int64_t expected = 0, row = 0;
  const bool v3 = checking.dataset.info.version == Version::kV30;
  for (const Episode& episode : checking.dataset.episodes) {
    if (episode.index != expected) {
      checking.report.add(15, episode.place,
                          fmt::format("its number is {}, and its place {}", episode.index, expected));
    }
    ++expected;
    if (episode.length <= 0) checking.report.add(16, episode.place, "the episode has no frames");
    if (!v3 || episode.to_row < 0) continue;
    if (episode.from_row != row || episode.to_row - episode.from_row != episode.length) {
      checking.report.add(17, episode.place,
                          fmt::format("its rows are {} to {}, its length is {}, and it begins at row {}",
                                      episode.from_row, episode.to_row, episode.length, row));
    }
    row = episode.to_row;
  }
}

void check_tasks(const Checking& checking) {
  int64_t expected = 0;
  std::map<std::string, int64_t> texts;
  for (const Task& task : checking.dataset.tasks) {
    if (task.index != expected) {
      checking.report.add(32, task.place, fmt::format("its task_index is {}, and its place {}", task.index, expected));
    }
    ++expected;
    if (task.text.empty()) checking.report.add(34, task.place, "the task's text is empty");
    if (!is_utf8(task.text)) checking.report.add(34, task.place, "the task's text is no UTF-8");
    const auto [first, is_new] = texts.emplace(task.text, task.index);
    if (!is_new) checking.report.add(34, task.place, fmt::format("task {} has the same text", first->second));
  }
}

void check_horizon(const Checking& checking) {
  const int64_t horizon = checking.options.policy_horizon;
  if (horizon <= 0) return;
  int64_t lost = 0, total = 0;
  for (const Episode& episode : checking.dataset.episodes) {
    total += episode.length;
    lost += std::min(episode.length, horizon - 1);
    if (episode.length >= horizon) continue;
    checking.report.add(61, episode.place,
                        fmt::format("it has {} frames, and the policy looks {} ahead", episode.length, horizon));
  }
  if (total > 0 && checking.options.groot != GrootVersion::kNone) {
    checking.report.add(61, {.file = "."},
                        fmt::format("{} of {} steps are never trained on with a horizon of {}", format_count(lost),
                                    format_count(total), horizon),
                        {}, Severity::kNote);
  }
}

}  // namespace

std::string_view usual_template(Version version, bool is_video) {
  if (is_v2(version)) return is_video ? kVideoV2 : kDataV2;
  return is_video ? kVideoV3 : kDataV3;
}

std::optional<std::string> template_path(const Info& info, const Episode& episode, const VideoSpan* span,
                                         std::string_view camera, bool is_video) {
  const auto& path = is_video ? info.video_path : info.data_path;
  if (!path) return std::nullopt;
  auto formatted = path->format(values_of(info, episode, span, camera));
  return formatted ? std::optional(*std::move(formatted)) : std::nullopt;
}

int64_t Dataset::frames() const {
  int64_t sum = 0;
  for (const Episode& episode : episodes) sum += episode.length;
  return sum;
}

std::optional<std::string> Dataset::data_file(const Episode& episode) const {
  return resolved(tree, info.data_path, usual_template(info.version, false), values_of(info, episode, nullptr, ""));
}

std::optional<std::string> Dataset::video_file(const Episode& episode, size_t camera, std::string_view key) const {
  const VideoSpan* span = camera < episode.videos.size() ? &episode.videos[camera] : nullptr;
  return resolved(tree, info.video_path, usual_template(info.version, true), values_of(info, episode, span, key));
}

void check_episodes(const Checking& checking) {
  check_layout(checking);
  check_template(checking, checking.dataset.info.data_path, "data_path", false);
  check_template(checking, checking.dataset.info.video_path, "video_path", true);
  if (!checking.dataset.info.cameras().empty() && !checking.dataset.info.video_path) {
    checking.report.add(4, in_info(), "there are cameras, and no video_path");
  }
  FileCheck(checking).run();
  check_file_sizes(checking);
  check_cameras(checking);
  check_totals(checking);
  check_splits(checking);
  check_numbers(checking);
  check_tasks(checking);
  check_horizon(checking);
}

}  // namespace millrace::lerobot
