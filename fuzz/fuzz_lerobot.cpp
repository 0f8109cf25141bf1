// SPDX-License-Identifier: Apache-2.0
// The first byte chooses a reader of robot datasets, the others are the file: the boxes of a video, info.json, the
// lists of episodes and tasks, statistics, a path template, a spec of modality.json, a list such as 0-9,12. Whatever
// the bytes, what is taken of them agrees with itself.
#include <array>
#include <nlohmann/json.hpp>

#include "invariants.h"
#include "millrace/formats/mp4.h"
#include "millrace/lerobot/episode_list.h"
#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/modality.h"
#include "millrace/lerobot/stats.h"

namespace {

using namespace millrace;
using namespace millrace::lerobot;
using tokenizer::require;

bool mp4(std::string_view file) {
  const auto boxes = formats::read_mp4(MemoryReader(as_bytes(file), "a.mp4"));
  if (!boxes) {
    require(boxes.error().code() == ErrorCode::kCorruption, "a damaged video is said to be one");
    return false;
  }
  for (const formats::Mp4Track& track : boxes->tracks) {
    const auto ticks = formats::presentation_ticks(track);
    require(track.durations.empty() || static_cast<int64_t>(ticks.size()) == track.samples, "a time for each frame");
    require(!track.key_samples || track.key_samples->empty() || track.key_samples->back() < track.samples,
            "key frames are frames");
    static_cast<void>(formats::pixel_format(track) + formats::codec_name(track));
  }
  return true;
}

bool info(std::string_view file) {
  Report report(0);
  const Info read = parse_info(file, report);
  for (const Feature& feature : read.features) {
    require(read.find(feature.name) != nullptr, "a feature is found by its name");
    require(feature.size() >= -1, "a size is a number of numbers, or not known");
    static_cast<void>(feature.picture_size());
  }
  require(!read.features.empty() || report.errors_so_far() > 0 || parse_python_json(file).has_value(),
          "what is no JSON is an error");
  for (const Finding& finding : report.take()) static_cast<void>(finding_text(finding));
  return !read.features.empty();
}

bool lists(std::string_view file) {
  Report report(0);
  Dataset dataset;
  parse_episodes(file, dataset, report);
  parse_tasks(file, dataset, report);
  dataset.info.features = {{.name = "action", .dtype = "float32", .shape = {2}}};
  parse_episode_stats(file, dataset, report);
  for (const Episode& episode : dataset.episodes) require(episode.length >= 0, "a length is a number of frames");
  return !dataset.episodes.empty();
}

bool statistics(std::string_view file) {
  const auto json = parse_python_json(file);
  if (!json) return false;
  Report report(0);
  // Another reader of anybody's JSON.
  if (const auto entries = modality_entries(*json)) {
    for (const ModalityEntry& entry : *entries)
      require(!entry.kind.empty() && !entry.column.empty(), "an entry is whole");
  }
  const StatsByFeature stats = parse_stats(*json, {.file = "stats.json"}, report);
  const Feature feature{.name = "action", .dtype = "float32", .shape = {2}};
  for (const auto& [name, each] : stats) check_feature_stats(feature, each, {.file = "stats.json"}, report);
  return !stats.empty();
}

bool path_template(std::string_view file) {
  const auto parsed = PathTemplate::parse(file);
  if (!parsed) return false;
  TemplateValues values;
  const std::vector<std::string> names = parsed->names();
  for (const std::string& name : names) values.emplace_back(name, int64_t{7});
  static_cast<void>(parsed->format(values));
  require(!names.empty() || parsed->format({}).has_value(), "a text without names needs no values");
  return true;
}

bool modality_spec(std::string_view file) {
  Info info;
  info.features = {{.name = "action", .dtype = "float32", .shape = {7}},
                   {.name = "observation.state", .dtype = "float32", .shape = {7}},
                   {.name = "observation.images.front", .dtype = "video", .shape = {48, 64, 3}}};
  const auto entries = parse_modality_spec(file, info);
  if (!entries) return false;
  std::string text;
  for (const ModalityEntry& entry : *entries) {
    require(entry.kind == "video" || entry.kind == "annotation" || (0 <= entry.start && entry.start < entry.end),
            "a group has numbers");
    text += spec_line(entry) + "\n";
  }
  const auto again = parse_modality_spec(text, info);
  require(again && modality_json(*again) == modality_json(*entries), "an entry is the spec that it prints");
  return !entries->empty();
}

bool episode_list(std::string_view file) {
  const auto ranges = parse_episode_list(file);
  if (!ranges) return false;
  constexpr size_t kEpisodes = 1000;
  const auto episodes = episodes_in(*ranges, kEpisodes);
  if (!episodes) return false;
  for (size_t i = 0; i < episodes->size(); ++i) {
    require((*episodes)[i] < kEpisodes && (i == 0 || (*episodes)[i - 1] < (*episodes)[i]), "episodes are in order");
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return -1;
  constexpr std::array kReaders = {mp4, info, lists, statistics, path_template, modality_spec, episode_list};
  // SAFETY: char may alias any object.
  const std::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  return kReaders[data[0] % kReaders.size()](file) ? 0 : -1;
}
