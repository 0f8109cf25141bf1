// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millrace/lerobot/making.h"

namespace millrace::lerobot {
namespace {

std::string episode_path(std::string_view folder, size_t episode, std::string_view suffix) {
  return fmt::format("{}/episode_{:06d}.{}", folder, episode, suffix);
}

std::string chunk_of(size_t episode) {
  return fmt::format("chunk-{:03d}", static_cast<int64_t>(episode) / kFilesAChunk);
}

// The episodes of one file of a source after each other, so that it is opened once.
Status write_rows(Making& making, const EpisodeRun& run) {
  RowFiles rows(making);
  for (size_t i = run.begin; i < run.end; ++i) {
    RETURN_IF_ERROR(
        making.put(episode_path("data/" + chunk_of(i), i, "parquet"), [&] { return rows.file({i, i + 1}); }));
    making.done(1);
  }
  return {};
}

Status write_clips(Making& making, const std::string& camera, const EpisodeRun& run) {
  VideoFiles videos(making, camera);
  for (size_t i = run.begin; i < run.end; ++i) {
    const std::string folder = fmt::format("videos/{}/{}", chunk_of(i), camera);
    RETURN_IF_ERROR(making.put(episode_path(folder, i, "mp4"), [&] { return videos.clip(i); }));
    making.done(1);
  }
  return {};
}

// meta/episodes_stats.jsonl; v2.1 has no quantiles.
Status write_stat_lines(Making& making) {
  return making.put(kEpisodeStatsFile, [&]() -> Result<std::vector<std::byte>> {
    ASSIGN_OR_RETURN(const std::span<const Json> stats, making.stats());
    std::string text;
    for (size_t i = 0; i < stats.size(); ++i) {
      Json line = stats[i];
      for (auto& [feature, of] : line.items()) {
        for (const char* quantile : {"q01", "q10", "q50", "q90", "q99"}) of.erase(quantile);
      }
      text += Json{{"episode_index", i}, {"stats", std::move(line)}}.dump() + "\n";
    }
    return bytes_of(text);
  });
}

Status write_lists(Making& making) {
  RETURN_IF_ERROR(making.put("meta/episodes.jsonl", [&]() -> Result<std::vector<std::byte>> {
    std::string text;
    for (size_t i = 0; i < making.episodes(); ++i) {
      const Episode& episode = making.pick(i).source->episode(making.pick(i).episode);
      text += Json{{"episode_index", i}, {"tasks", episode.tasks}, {"length", episode.length}}.dump() + "\n";
    }
    return bytes_of(text);
  }));
  return making.put("meta/tasks.jsonl", [&]() -> Result<std::vector<std::byte>> {
    std::string text;
    const auto& tasks = making.assembly().tasks;
    for (size_t i = 0; i < tasks.size(); ++i) text += Json{{"task_index", i}, {"task", tasks[i]}}.dump() + "\n";
    return bytes_of(text);
  });
}

}  // namespace

Status write_v2(Making& making) {
  using Job = std::function<Status()>;
  std::vector<Job> jobs;
  for (const EpisodeRun& run : runs_by_file(making.assembly(), data_path_of())) {
    jobs.emplace_back([&making, run] { return write_rows(making, run); });
  }
  for (const std::string& camera : making.cameras()) {
    for (const EpisodeRun& run : runs_by_file(making.assembly(), video_path_of(camera))) {
      jobs.emplace_back([&making, &camera, run] { return write_clips(making, camera, run); });
    }
  }
  RETURN_IF_ERROR(run_jobs(making, jobs));
  if (making.assembly().to == Version::kV21) RETURN_IF_ERROR(write_stat_lines(making));
  return write_lists(making);
}

}  // namespace millrace::lerobot
