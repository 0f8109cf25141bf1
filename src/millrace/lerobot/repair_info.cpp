// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/repair_parts.h"

namespace millrace::lerobot {
namespace {

// "0:50"
std::optional<std::pair<int64_t, int64_t>> parse_split(std::string_view text) {
  std::pair<int64_t, int64_t> range;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.first);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, range.second);
  if (second.ec != std::errc() || second.ptr != end || range.first < 0 || range.second <= range.first)
    return std::nullopt;
  return range;
}

class Mender {
 public:
  Mender(Json& json, Repair& repair) : dataset_(repair.dataset), json_(json), repair_(repair) {}

  void run() {
    mend_version();
    mend_missing();
    const auto episodes = static_cast<int64_t>(dataset_.episodes.size());
    set(11, "total_episodes", episodes);
    set(11, "total_frames", dataset_.frames());
    set(12, "total_tasks", static_cast<int64_t>(dataset_.tasks.size()));
    if (is_v2(dataset_.info.version)) {
      set(12, "total_videos", episodes * static_cast<int64_t>(dataset_.info.cameras().size()));
      const int64_t size = integer_at(json_, "chunks_size").value_or(0);
      if (size > 0) set(12, "total_chunks", (episodes + size - 1) / size);
    }
    mend_splits(episodes);
    mend_template("data_path", false);
    mend_template("video_path", true);
  }

 private:
  void set(int rule, const char* key, const Json& value) {
    const Json* old = member(json_, key);
    if (old != nullptr && *old == value) return;
    repair_.fixes.push_back({rule, std::string(kInfoFile), key, old == nullptr ? "" : old->dump(), value.dump()});
    json_[key] = value;
  }

  void leave(std::string sentence) { repair_.left.push_back(fmt::format("{}: {}", kInfoFile, sentence)); }

  // The layout says the version where its files are of one version only.
  void mend_version() {
    if (member(json_, "codebase_version") != nullptr) return;
    const Layout layout = layout_of(dataset_.tree);
    if (layout.is_mixed() || (layout.v2.empty() && layout.v3.empty())) {
      return leave("codebase_version is missing, and the files do not tell the version");
    }
    const bool has_episode_stats = dataset_.tree.find("meta/episodes_stats.jsonl") != nullptr;
    set(1, "codebase_version", !layout.v3.empty() ? "v3.0" : has_episode_stats ? "v2.1" : "v2.0");
  }

  // Keys that every dataset of the version has, with what LeRobot writes where no one says otherwise.
  void mend_missing() {
    if (integer_at(json_, "chunks_size").value_or(0) <= 0) mend_chunks_size();
    if (dataset_.info.version == Version::kV30) {
      if (!(number_at(json_, "data_files_size_in_mb").value_or(0) > 0)) set(14, "data_files_size_in_mb", 100);
      if (!(number_at(json_, "video_files_size_in_mb").value_or(0) > 0)) set(14, "video_files_size_in_mb", 200);
    }
    if (member(json_, "robot_type") == nullptr) set(1, "robot_type", nullptr);
    if (member(json_, "video_path") == nullptr && dataset_.info.cameras().empty()) set(1, "video_path", nullptr);
    if (dataset_.info.frame_rate() == 0) leave("fps is missing or not positive, and only the recorder knows it");
  }

  // In v2.x it decides where files are, and 1000 must be right for all of them; in v3.0 it limits later recordings.
  void mend_chunks_size() {
    constexpr int64_t kUsual = 1000;
    if (is_v2(dataset_.info.version)) {
      Info usual = dataset_.info;
      usual.chunks_size = kUsual;
      if (!usual.data_path) {
        auto parsed = PathTemplate::parse(usual_template(usual.version, false));
        if (parsed) usual.data_path = *std::move(parsed);
      }
      const bool fits = std::ranges::all_of(
          dataset_.episodes, [&](const Episode& episode) { return exists(usual, episode, nullptr, "", false); });
      if (!fits) return leave("chunks_size is missing or not positive, and with 1000 files would be missing");
    }
    set(14, "chunks_size", kUsual);
  }

  // A single split covers all episodes. Several say what was meant, and only their writer knows which episodes a new
  // one gets; but episodes that do not exist belong to none.
  void mend_splits(int64_t episodes) {
    const auto& splits = dataset_.info.splits;
    if (splits.size() <= 1) {
      const std::string name = splits.empty() ? "train" : splits[0].first;
      return set(13, "splits", Json::object({{name, fmt::format("0:{}", episodes)}}));
    }
    Json mended = Json::object();
    std::vector<bool> covered(static_cast<size_t>(episodes));
    for (const auto& [name, text] : splits) {
      const auto range = parse_split(text);
      if (!range || range->first >= episodes) {
        return leave(fmt::format("split \"{}\" is \"{}\", and only its writer knows which of the {} episodes are meant",
                                 name, text, episodes));
      }
      const int64_t end = std::min(range->second, episodes);
      std::fill(covered.begin() + range->first, covered.begin() + end, true);
      mended[name] = fmt::format("{}:{}", range->first, end);
    }
    set(13, "splits", mended);
    const auto missing = std::ranges::find(covered, false);
    if (missing == covered.end()) return;
    leave(fmt::format("episode {} is in no split, and only their writer knows in which it belongs",
                      missing - covered.begin()));
  }

  // Where each file lies where the version's own template has it, and not all of them where this one does.
  void mend_template(const char* key, bool is_video) {
    const auto& given = is_video ? dataset_.info.video_path : dataset_.info.data_path;
    const std::string usual(usual_template(dataset_.info.version, is_video));
    const auto cameras = dataset_.info.cameras();
    if ((given && given->text() == usual) || (is_video && cameras.empty())) return;
    Info other = dataset_.info;
    if (!other.chunks_size || *other.chunks_size <= 0) other.chunks_size = integer_at(json_, "chunks_size");
    Info stated = other;
    auto parsed = PathTemplate::parse(usual);
    if (!parsed) return;
    (is_video ? other.video_path : other.data_path) = *std::move(parsed);
    int64_t by_given = 0, by_usual = 0, files = 0;
    for (const Episode& episode : dataset_.episodes) {
      for (size_t i = 0; i < (is_video ? cameras.size() : 1); ++i) {
        const VideoSpan* span = is_video && i < episode.videos.size() ? &episode.videos[i] : nullptr;
        const std::string camera = is_video ? cameras[i]->name : "";
        ++files;
        by_given += exists(stated, episode, span, camera, is_video) ? 1 : 0;
        by_usual += exists(other, episode, span, camera, is_video) ? 1 : 0;
      }
    }
    if (by_usual > by_given && (by_usual == files || is_video)) set(4, key, usual);
  }

  bool exists(const Info& info, const Episode& episode, const VideoSpan* span, const std::string& camera,
              bool is_video) const {
    const auto path = template_path(info, episode, span, camera, is_video);
    return path && dataset_.tree.find(*path) != nullptr;
  }

  const Dataset& dataset_;
  Json& json_;
  Repair& repair_;
};

}  // namespace

void plan_info(Json& info, Repair& repair) {
  Mender(info, repair).run();
}

}  // namespace millrace::lerobot
