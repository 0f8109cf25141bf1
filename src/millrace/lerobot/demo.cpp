// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/demo.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "millrace/formats/table_writer.h"
#include "millrace/lerobot/demo_arm.h"
#include "millrace/lerobot/exact_stats.h"
#include "millrace/lerobot/meta_tables.h"
#include "millrace/storage/url.h"
#include "millrace/video/edit.h"

namespace millrace::lerobot {
namespace {

using DemoJson = nlohmann::ordered_json;
using formats::ColumnToWrite;
using formats::TableToWrite;

constexpr int64_t kMaxEpisodes = 1000;  // a chunk, and well below the sizes at which v3.0 begins a new file
constexpr std::string_view kAnnotation = "annotation.human.task_description";
constexpr std::string_view kPixelFormat = "yuv420p";

// The numbers of a stretch of frames: of an episode, or of all.
struct DemoColumns {
  std::vector<float> state, action, timestamp;
  std::vector<int64_t> frame_index, episode_index, index, task_index;

  void add(const DemoColumns& other) {
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(state, other.state);
    append(action, other.action);
    append(timestamp, other.timestamp);
    append(frame_index, other.frame_index);
    append(episode_index, other.episode_index);
    append(index, other.index);
    append(task_index, other.task_index);
  }
};

struct DemoRecord {
  int64_t length = 0, task = 0, begin = 0;  // begin: of its frames among all
  std::map<std::string, ExactStats> stats;
};

std::string camera_key(int64_t camera) {
  return fmt::format("observation.images.{}", kDemoCameras[static_cast<size_t>(camera)]);
}

std::vector<double> as_doubles(const auto& values) {
  return {values.begin(), values.end()};
}

class DemoWriter {
 public:
  DemoWriter(const DemoOptions& options, Location root, const std::stop_token& stop, Progress* progress)
      : options_(options), root_(std::move(root)), stop_(stop), progress_(progress) {}

  Result<DemoReport> write() {
    RETURN_IF_ERROR(check_empty());
    if (progress_ != nullptr) {
      progress_->set_phase("episodes");
      progress_->set_totals(0, options_.episodes);
    }
    for (int64_t episode = 0; episode < options_.episodes; ++episode) {
      RETURN_IF_ERROR(add_episode(episode));
      if (progress_ != nullptr) progress_->add(0, 1);
    }
    RETURN_IF_ERROR(is_v3() ? write_v3() : write_v2());
    if (options_.version == DemoVersion::kGroot) RETURN_IF_ERROR(write_groot());
    RETURN_IF_ERROR(root_.storage->make_durable(keys_));
    RETURN_IF_ERROR(put("meta/info.json", info().dump(4) + "\n"));
    RETURN_IF_ERROR(root_.storage->make_durable(keys_));
    report_.episodes = options_.episodes;
    return report_;
  }

 private:
  bool is_v3() const { return options_.version == DemoVersion::kV30; }

  Status check_empty() {
    const std::string prefix = root_.key.empty() ? "" : root_.key + "/";
    ASSIGN_OR_RETURN(const ListPage page, root_.storage->list(prefix, {.max_keys = 1}));
    if (page.objects.empty()) return {};
    return fail(ErrorCode::kAlreadyExists, "{} is not empty: name a new folder", root_.url);
  }

  Status put(const std::string& path, std::string_view content) {
    const Location place = root_.child(path);
    auto written = write_object(*place.storage, place.key, content, {}, Durability::kVisible);
    if (!written) return tl::unexpected(std::move(written).error());
    keys_.push_back(place.key);
    report_.bytes += static_cast<int64_t>(content.size());
    return {};
  }

  Status put_table(const std::string& path, const TableToWrite& table) {
    MemorySink file;
    RETURN_IF_ERROR(formats::write_table(table, file));
    return put(path, as_text(file.bytes()));
  }

  // ---- one episode

  Status add_episode(int64_t number) {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const video::Rational fps = options_.fps;
    const DemoEpisode episode = demo_episode(options_.seed, number, (fps.num + fps.den - 1) / fps.den);
    const DemoColumns columns = columns_of(episode, number);
    DemoRecord record{
        .length = static_cast<int64_t>(episode.states.size()), .task = episode.task, .begin = report_.frames};
    record.stats = stats_of(columns);
    for (int64_t camera = 0; camera < options_.cameras; ++camera) {
      RETURN_IF_ERROR(add_video(episode, number, camera, record));
    }
    if (!is_v3()) {
      RETURN_IF_ERROR(put_table(fmt::format("data/chunk-000/episode_{:06d}.parquet", number), data_table(columns, {})));
    }
    report_.frames += record.length;
    columns_.add(columns);
    records_.push_back(std::move(record));
    return {};
  }

  DemoColumns columns_of(const DemoEpisode& episode, int64_t number) const {
    DemoColumns columns;
    for (int64_t frame = 0; frame < static_cast<int64_t>(episode.states.size()); ++frame) {
      for (const float value : demo_values(episode.states[static_cast<size_t>(frame)])) columns.state.push_back(value);
      for (const float value : demo_values(episode.actions[static_cast<size_t>(frame)]))
        columns.action.push_back(value);
      columns.timestamp.push_back(static_cast<float>(static_cast<double>(frame) / options_.fps.value()));
      columns.frame_index.push_back(frame);
      columns.episode_index.push_back(number);
      columns.index.push_back(report_.frames + frame);
      columns.task_index.push_back(episode.task);
    }
    return columns;
  }

  std::map<std::string, ExactStats> stats_of(const DemoColumns& columns) const {
    std::map<std::string, ExactStats> stats;
    const auto add = [&](std::string_view name, const auto& values, int64_t width = 1) {
      stats[std::string(name)] = number_stats(as_doubles(values), width);
    };
    add("observation.state", columns.state, kDemoJoints);
    add("action", columns.action, kDemoJoints);
    add("timestamp", columns.timestamp);
    add("frame_index", columns.frame_index);
    add("episode_index", columns.episode_index);
    add("index", columns.index);
    add("task_index", columns.task_index);
    if (options_.version == DemoVersion::kGroot) add(kAnnotation, columns.task_index);
    return stats;
  }

  Status add_video(const DemoEpisode& episode, int64_t number, int64_t camera, DemoRecord& record) {
    video::EncodeOptions encoding;
    encoding.codec = options_.codec;
    encoding.width = kDemoWidth;
    encoding.height = kDemoHeight;
    encoding.time_base = {options_.fps.den, options_.fps.num};
    ASSIGN_OR_RETURN(const auto encoder, video::new_encoder(encoding));
    PixelHistogram histogram;
    for (int64_t frame = 0; frame < record.length; ++frame) {
      const std::vector<uint8_t> rgb = demo_picture(episode, frame, camera);
      histogram.add(rgb);
      RETURN_IF_ERROR(encoder->add(video::rgb_to_yuv420p(rgb, kDemoWidth, kDemoHeight), frame, 1));
    }
    ASSIGN_OR_RETURN(std::vector<std::byte> file, encoder->finish());
    const std::string key = camera_key(camera);
    record.stats[key] = image_stats(histogram);
    histograms_[key].add(histogram);
    if (is_v3()) {
      clips_[key].push_back(std::move(file));
      return {};
    }
    ++report_.videos;
    return put(fmt::format("videos/chunk-000/{}/episode_{:06d}.mp4", key, number), as_text(file));
  }

  TableToWrite data_table(const DemoColumns& columns, std::vector<int64_t> row_groups) const {
    TableToWrite table;
    table.columns = {{.name = "observation.state", .values = columns.state, .width = kDemoJoints},
                     {.name = "action", .values = columns.action, .width = kDemoJoints},
                     {.name = "timestamp", .values = columns.timestamp},
                     {.name = "frame_index", .values = columns.frame_index},
                     {.name = "episode_index", .values = columns.episode_index},
                     {.name = "index", .values = columns.index},
                     {.name = "task_index", .values = columns.task_index}};
    if (options_.version == DemoVersion::kGroot) {
      table.columns.push_back({.name = std::string(kAnnotation), .values = columns.task_index});
    }
    table.row_groups = std::move(row_groups);
    return table;
  }

  // ---- meta

  int64_t tasks() const { return std::min<int64_t>(options_.episodes, static_cast<int64_t>(kDemoTasks.size())); }

  std::vector<std::string> task_texts() const { return {kDemoTasks.begin(), kDemoTasks.begin() + tasks()}; }

  DemoJson fps_json() const {
    if (options_.fps.den == 1) return options_.fps.num;
    return options_.fps.value();
  }

  DemoJson video_feature() const {
    return {{"dtype", "video"},
            {"shape", {kDemoHeight, kDemoWidth, 3}},
            {"names", {"height", "width", "channels"}},
            {"info",
             {{"video.height", kDemoHeight},
              {"video.width", kDemoWidth},
              {"video.codec", options_.codec},
              {"video.pix_fmt", kPixelFormat},
              {"video.is_depth_map", false},
              {"video.fps", fps_json()},
              {"video.channels", 3},
              {"has_audio", false}}}};
  }

  DemoJson features() const {
    DemoJson all;
    const auto add = [&](std::string_view name, const char* type, int64_t width, const DemoJson& names) {
      DemoJson feature = {{"dtype", type}, {"shape", DemoJson::array({width})}, {"names", names}};
      if (is_v3()) feature["fps"] = fps_json();
      all[std::string(name)] = std::move(feature);
    };
    add("observation.state", "float32", kDemoJoints, kDemoJointNames);
    add("action", "float32", kDemoJoints, kDemoJointNames);
    for (int64_t camera = 0; camera < options_.cameras; ++camera) all[camera_key(camera)] = video_feature();
    add("timestamp", "float32", 1, nullptr);
    for (const char* name : {"frame_index", "episode_index", "index", "task_index"}) add(name, "int64", 1, nullptr);
    if (options_.version == DemoVersion::kGroot) add(kAnnotation, "int64", 1, nullptr);
    return all;
  }

  DemoJson info() const {
    DemoJson info = {{"codebase_version", is_v3() ? "v3.0" : "v2.1"},
                     {"robot_type", "millrace_demo_arm"},
                     {"total_episodes", options_.episodes},
                     {"total_frames", report_.frames},
                     {"total_tasks", tasks()}};
    if (!is_v3()) {
      info["total_videos"] = report_.videos;
      info["total_chunks"] = 1;
    }
    info["chunks_size"] = kMaxEpisodes;
    if (is_v3()) {
      info["data_files_size_in_mb"] = 100;
      info["video_files_size_in_mb"] = 200;
    }
    info["fps"] = fps_json();
    info["splits"] = {{"train", fmt::format("0:{}", options_.episodes)}};
    info["data_path"] = is_v3() ? "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
                                : "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet";
    info["video_path"] = is_v3() ? "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
                                 : "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4";
    info["features"] = features();
    return info;
  }

  // Over all frames, not a mean of the episodes' numbers.
  std::map<std::string, ExactStats> whole_stats() const {
    auto stats = stats_of(columns_);
    for (const auto& [key, histogram] : histograms_) stats[key] = image_stats(histogram);
    return stats;
  }

  Status write_v2() {
    std::string episodes, stats, tasks_text;
    for (size_t i = 0; i < records_.size(); ++i) {
      const DemoRecord& record = records_[i];
      const DemoJson line = {{"episode_index", i},
                             {"tasks", DemoJson::array({kDemoTasks[static_cast<size_t>(record.task)]})},
                             {"length", record.length}};
      episodes += line.dump() + "\n";
      DemoJson features;
      constexpr size_t kNoQuantiles = 4;  // v2.1 has none
      for (const auto& [name, values] : record.stats) features[name] = stats_json(values, kNoQuantiles);
      stats += DemoJson{{"episode_index", i}, {"stats", features}}.dump() + "\n";
    }
    for (int64_t task = 0; task < tasks(); ++task) {
      tasks_text += DemoJson{{"task_index", task}, {"task", kDemoTasks[static_cast<size_t>(task)]}}.dump() + "\n";
    }
    RETURN_IF_ERROR(put("meta/episodes.jsonl", episodes));
    RETURN_IF_ERROR(put("meta/episodes_stats.jsonl", stats));
    return put("meta/tasks.jsonl", tasks_text);
  }

  // GR00T's own files: which part of a vector is what, and statistics of the float columns.
  Status write_groot() {
    const DemoJson groups = {{"arm", {{"start", 0}, {"end", 2}}}, {"gripper", {{"start", 2}, {"end", kDemoJoints}}}};
    DemoJson modality = {{"state", groups}, {"action", groups}};
    for (int64_t camera = 0; camera < options_.cameras; ++camera) {
      modality["video"][std::string(kDemoCameras[static_cast<size_t>(camera)])] = {
          {"original_key", camera_key(camera)}};
    }
    modality["annotation"]["human.task_description"] = DemoJson::object();
    RETURN_IF_ERROR(put("meta/modality.json", modality.dump(4) + "\n"));
    DemoJson stats;
    const auto whole = stats_of(columns_);
    for (const char* name : {"observation.state", "action", "timestamp"}) {
      stats[name] = groot_stats_json(whole.at(name));
    }
    return put("meta/stats.json", stats.dump(4) + "\n");
  }

  Status write_v3() {
    std::vector<int64_t> lengths;
    for (const DemoRecord& record : records_) lengths.push_back(record.length);
    RETURN_IF_ERROR(put_table("data/chunk-000/file-000.parquet", data_table(columns_, lengths)));
    for (const auto& [key, clips] : clips_) RETURN_IF_ERROR(put_joined(key, clips));
    DemoJson stats;
    for (const auto& [name, values] : whole_stats()) stats[name] = stats_json(values);
    RETURN_IF_ERROR(put("meta/stats.json", stats.dump(4) + "\n"));
    RETURN_IF_ERROR(put_table("meta/tasks.parquet", task_table(task_texts())));
    return put_table("meta/episodes/chunk-000/file-000.parquet", episodes_table());
  }

  Status put_joined(const std::string& key, const std::vector<std::vector<std::byte>>& clips) {
    std::vector<std::unique_ptr<MemoryReader>> files;
    std::vector<std::unique_ptr<video::Video>> videos;
    std::vector<video::Video*> parts;
    for (const auto& clip : clips) {
      files.push_back(std::make_unique<MemoryReader>(clip, fmt::format("{}, episode {}", key, files.size())));
      ASSIGN_OR_RETURN(videos.emplace_back(), video::open_video(*files.back()));
      parts.push_back(videos.back().get());
    }
    MemorySink file;
    const auto joined = video::join_videos(parts, file, {.stop = stop_});
    if (!joined) return tl::unexpected(joined.error());
    ++report_.videos;
    return put(fmt::format("videos/{}/chunk-000/file-000.mp4", key), as_text(file.bytes()));
  }

  template <class Value>
  ColumnToWrite per_episode(std::string name, const Value& value) const {
    std::vector<decltype(value(records_.front()))> values;
    for (const DemoRecord& record : records_) values.push_back(value(record));
    return {.name = std::move(name), .values = std::move(values)};
  }

  TableToWrite episodes_table() const {
    TableToWrite table;
    const auto zero = [](const DemoRecord&) { return int64_t{0}; };
    int64_t number = 0;
    table.columns.push_back(per_episode("episode_index", [&](const DemoRecord&) { return number++; }));
    table.columns.push_back(per_episode(
        "tasks", [](const DemoRecord& record) { return std::string(kDemoTasks[static_cast<size_t>(record.task)]); }));
    table.columns.back().offsets = {every(1)};
    table.columns.push_back(per_episode("length", [](const DemoRecord& record) { return record.length; }));
    table.columns.push_back(per_episode("data/chunk_index", zero));
    table.columns.push_back(per_episode("data/file_index", zero));
    table.columns.push_back(per_episode("dataset_from_index", [](const DemoRecord& record) { return record.begin; }));
    table.columns.push_back(
        per_episode("dataset_to_index", [](const DemoRecord& record) { return record.begin + record.length; }));
    const double fps = options_.fps.value();
    for (int64_t camera = 0; camera < options_.cameras; ++camera) {
      const std::string prefix = fmt::format("videos/{}/", camera_key(camera));
      table.columns.push_back(per_episode(prefix + "chunk_index", zero));
      table.columns.push_back(per_episode(prefix + "file_index", zero));
      table.columns.push_back(per_episode(prefix + "from_timestamp", [fps](const DemoRecord& record) {
        return static_cast<double>(record.begin) / fps;
      }));
      table.columns.push_back(per_episode(prefix + "to_timestamp", [fps](const DemoRecord& record) {
        return static_cast<double>(record.begin + record.length) / fps;
      }));
    }
    add_stats(table);
    table.columns.push_back(per_episode("meta/episodes/chunk_index", zero));
    table.columns.push_back(per_episode("meta/episodes/file_index", zero));
    return table;
  }

  void add_stats(TableToWrite& table) const {
    for (const auto& [name, first] : records_.front().stats) {
      const auto dimensions = static_cast<int32_t>(first.values[0].size());
      for (size_t i = 0; i < kStatNames.size(); ++i) {
        ColumnToWrite column{.name = fmt::format("stats/{}/{}", name, kStatNames[i])};
        std::vector<double> values;
        for (const DemoRecord& record : records_) {
          const auto& here = record.stats.at(name).values[i];
          values.insert(values.end(), here.begin(), here.end());
        }
        column.values = std::move(values);
        column.offsets = {every(dimensions)};
        if (first.is_image) column.offsets = {every(dimensions), every(1, dimensions), every(1, dimensions)};
        table.columns.push_back(std::move(column));
      }
      table.columns.push_back(
          per_episode(fmt::format("stats/{}/count", name),
                      [&, feature = name](const DemoRecord& record) { return record.stats.at(feature).count; }));
      table.columns.back().offsets = {every(1)};
    }
  }

  // Offsets of lists that all have this many elements, `lists` of them an episode.
  std::vector<int32_t> every(int32_t elements, int32_t lists = 1) const {
    std::vector<int32_t> offsets = {0};
    for (size_t i = 0; i < records_.size() * static_cast<size_t>(lists); ++i) {
      offsets.push_back(offsets.back() + elements);
    }
    return offsets;
  }

  const DemoOptions& options_;
  const Location root_;
  const std::stop_token stop_;
  Progress* const progress_;
  DemoReport report_;
  DemoColumns columns_;  // of all episodes
  std::vector<DemoRecord> records_;
  std::map<std::string, PixelHistogram> histograms_;                  // by camera
  std::map<std::string, std::vector<std::vector<std::byte>>> clips_;  // by camera, of each episode; v3.0 only
  std::vector<std::string> keys_;
};

Status check_demo(const DemoOptions& options) {
  const auto outside = [](int64_t value, int64_t most) { return value < 1 || value > most; };
  if (outside(options.episodes, kMaxEpisodes)) {
    return fail(ErrorCode::kInvalidArgument, "episodes: 1 to {}, not {}", kMaxEpisodes, options.episodes);
  }
  if (outside(options.cameras, kDemoCameras.size())) {
    return fail(ErrorCode::kInvalidArgument, "cameras: 1 to {}, not {}", kDemoCameras.size(), options.cameras);
  }
  constexpr int64_t kMostFps = 240, kMostDen = 1 << 20;
  if (outside(options.fps.den, kMostDen) || outside(options.fps.num, kMostFps * options.fps.den)) {
    return fail(ErrorCode::kInvalidArgument, "fps: more than 0, at most {}", kMostFps);
  }
  return {};
}

}  // namespace

Result<DemoReport> write_demo(const DemoOptions& options, const std::stop_token& stop, Progress* progress) {
  RETURN_IF_ERROR(check_demo(options));
  ASSIGN_OR_RETURN(Location root, open_url(options.url));
  return DemoWriter(options, std::move(root), stop, progress).write();
}

}  // namespace millrace::lerobot
