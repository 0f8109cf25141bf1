// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/making.h"
#include "millrace/lerobot/meta_tables.h"

namespace millrace::lerobot {
namespace {

struct Written {
  std::vector<int64_t> data_files;                    // of each episode
  std::map<std::string, std::vector<NewSpan>> spans;  // by camera, of each episode
};

Status write_rows(Making& making, const EpisodeRun& run, int64_t number) {
  RETURN_IF_ERROR(making.put(numbered_path("data", number, "parquet"), [&] { return RowFiles(making).file(run); }));
  making.done(static_cast<int64_t>(run.end - run.begin));
  return {};
}

Status write_camera(Making& making, const std::string& camera, std::vector<NewSpan>& spans) {
  VideoFiles videos(making, camera);
  int64_t next = 0;
  for (const EpisodeRun& run : runs_by_size(making.assembly(), video_path_of(camera), making.options().video_file_mb)) {
    RETURN_IF_ERROR(videos.write_joined(run, next, spans));
  }
  return {};
}

// The files of a camera are numbered as they become full, so a camera is one job.
Status write_files(Making& making, Written& written) {
  std::vector<std::function<Status()>> jobs;
  for (const std::string& camera : making.cameras()) {
    jobs.emplace_back(
        [&making, &camera, &spans = written.spans[camera]] { return write_camera(making, camera, spans); });
  }
  const auto runs = runs_by_size(making.assembly(), data_path_of(), making.options().data_file_mb);
  for (size_t number = 0; number < runs.size(); ++number) {
    const EpisodeRun run = runs[number];
    written.data_files.resize(run.end, static_cast<int64_t>(number));
    jobs.emplace_back([&making, run, number] { return write_rows(making, run, static_cast<int64_t>(number)); });
  }
  return run_jobs(making, jobs);
}

// ---- meta/episodes

class EpisodesTable {
 public:
  EpisodesTable(const Making& making, const Written& written, std::span<const Json> stats)
      : making_(making), written_(written), stats_(stats) {}

  Result<formats::TableToWrite> table() const {
    formats::TableToWrite table;
    auto& columns = table.columns;
    columns.push_back(column("episode_index", [](size_t i) { return static_cast<int64_t>(i); }));
    columns.push_back(tasks());
    columns.push_back(column("length", [&](size_t i) { return making_.length(i); }));
    add_place(columns, "data/", [&](size_t i) { return written_.data_files[i]; });
    columns.push_back(column("dataset_from_index", [&](size_t i) { return making_.first_row(i); }));
    columns.push_back(column("dataset_to_index", [&](size_t i) { return making_.first_row(i + 1); }));
    for (const auto& [camera, spans] : written_.spans) {
      const std::string prefix = fmt::format("videos/{}/", camera);
      add_place(columns, prefix, [&](size_t i) { return spans[i].file; });
      columns.push_back(column(prefix + "from_timestamp", [&](size_t i) { return spans[i].from_s; }));
      columns.push_back(column(prefix + "to_timestamp", [&](size_t i) { return spans[i].to_s; }));
    }
    RETURN_IF_ERROR(add_stats(columns));
    add_place(columns, "meta/episodes/", [](size_t) { return int64_t{0}; });
    return table;
  }

 private:
  using Columns = std::vector<formats::ColumnToWrite>;

  template <class Value>
  formats::ColumnToWrite column(std::string name, const Value& value) const {
    std::vector<decltype(value(size_t{0}))> values;
    for (size_t i = 0; i < making_.episodes(); ++i) values.push_back(value(i));
    return {.name = std::move(name), .values = std::move(values)};
  }

  template <class Number>
  void add_place(Columns& columns, const std::string& prefix, const Number& number) const {
    columns.push_back(column(prefix + "chunk_index", [&](size_t i) { return number(i) / kFilesAChunk; }));
    columns.push_back(column(prefix + "file_index", [&](size_t i) { return number(i) % kFilesAChunk; }));
  }

  formats::ColumnToWrite tasks() const {
    std::vector<std::string> texts;
    std::vector<int32_t> offsets = {0};
    for (size_t i = 0; i < making_.episodes(); ++i) {
      const Episode& episode = making_.pick(i).source->episode(making_.pick(i).episode);
      texts.insert(texts.end(), episode.tasks.begin(), episode.tasks.end());
      offsets.push_back(static_cast<int32_t>(texts.size()));
    }
    return {.name = "tasks", .values = std::move(texts), .offsets = {std::move(offsets)}};
  }

  // A statistic that an episode lacks is left out.
  Status add_stats(Columns& columns) const {
    for (const auto& [feature, stats] : stats_.front().items()) {
      for (const auto& [name, unused] : stats.items()) {
        std::vector<const Json*> values;
        for (const Json& episode : stats_) {
          const Json* const here = member(episode, feature);
          const Json* const value = here == nullptr ? nullptr : member(*here, name);
          if (value != nullptr) values.push_back(value);
        }
        if (values.size() != stats_.size()) continue;
        ASSIGN_OR_RETURN(auto made, stat_column(fmt::format("stats/{}/{}", feature, name), values, name == "count"));
        columns.push_back(std::move(made));
      }
    }
    return {};
  }

  const Making& making_;
  const Written& written_;
  const std::span<const Json> stats_;
};

}  // namespace

Status write_v3(Making& making) {
  Written written;
  RETURN_IF_ERROR(write_files(making, written));
  RETURN_IF_ERROR(making.put_table(
      "meta/tasks.parquet", [&]() -> Result<formats::TableToWrite> { return task_table(making.assembly().tasks); }));
  ASSIGN_OR_RETURN(const std::span<const Json> stats, making.stats());
  return making.put_table(numbered_path("meta/episodes", 0, "parquet"),
                          [&] { return EpisodesTable(making, written, stats).table(); });
}

}  // namespace millrace::lerobot
