// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/making.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "millrace/base/thread/executor.h"
#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/episode_stats.h"

namespace millrace::lerobot {
namespace {

constexpr double kMegabyte = 1 << 20;

bool holds_task_numbers(const Feature& feature) {
  return feature.name == "task_index" ||
         (feature.name.starts_with("annotation.") && feature.dtype.find("int") != std::string::npos);
}

// Where minimum and maximum are one integer.
std::optional<int64_t> only_value(const Json& stats, const std::string& feature) {
  std::vector<int64_t> shape;
  const Json* const of = member(stats, feature);
  const Json *const min = of == nullptr ? nullptr : member(*of, "min"), *const max = of == nullptr ? nullptr
                                                                                                   : member(*of, "max");
  if (min == nullptr || max == nullptr || *min != *max) return std::nullopt;
  const auto numbers = numbers_of(*min, shape);
  if (!numbers || numbers->size() != 1 || !numbers->front()) return std::nullopt;
  const double value = *numbers->front();
  const bool is_whole = value == std::floor(value) && std::abs(value) < 1e9;
  return is_whole ? std::optional(static_cast<int64_t>(value)) : std::nullopt;
}

void replace_stats(Json& stats, const std::string& feature, std::span<const int64_t> values) {
  const Json* const old = member(stats, feature);
  if (old != nullptr && old->is_object()) stats[feature] = integer_stats(values, *old);
}

}  // namespace

Making::Making(const Assembly& assembly, const MakeOptions& options, PartialFolder& folder)
    : assembly_(assembly), options_(options), folder_(folder), begins_{0} {
  for (size_t i = 0; i < episodes(); ++i) begins_.push_back(begins_.back() + length(i));
  for (const Feature* camera : pick(0).source->dataset.info.cameras()) cameras_.push_back(camera->name);
  MutexLock lock(mutex_);
  made_.name = assembly.name;
  made_.version = version_text(assembly.to);
  made_.episodes = static_cast<int64_t>(episodes());
  made_.frames = begins_.back();
}

std::string Making::path_in_folder(const std::string& path) const {
  return assembly_.name.empty() ? path : assembly_.name + "/" + path;
}

Location Making::root() const {
  return assembly_.name.empty() ? folder_.root() : folder_.root().child(assembly_.name);
}

std::vector<std::string> Making::task_columns(size_t i) const {
  std::vector<std::string> columns;
  const auto numbers = assembly_.task_numbers.find(pick(i).source);
  if (numbers == assembly_.task_numbers.end()) return columns;
  for (const Feature& feature : pick(i).source->dataset.info.features) {
    if (holds_task_numbers(feature)) columns.push_back(feature.name);
  }
  return columns;
}

Status Making::put(const std::string& path, const PartialFolder::Make& make) {
  if (options_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  const auto written = folder_.put(path_in_folder(path), make);
  if (!written) return tl::unexpected(written.error());
  MutexLock lock(mutex_);
  ++made_.files;
  if (!*written) ++made_.reused;
  return {};
}

Status Making::put_table(const std::string& path, const std::function<Result<formats::TableToWrite>()>& make) {
  return put(path, [&]() -> Result<std::vector<std::byte>> {
    ASSIGN_OR_RETURN(const formats::TableToWrite table, make());
    MemorySink out;
    RETURN_IF_ERROR(formats::write_table(table, out));
    return out.take();
  });
}

// Those of the sources, but for the columns whose numbers change.
Result<std::span<const Json>> Making::stats() {
  if (!stats_.empty()) return stats_;
  std::map<const Source*, std::vector<Json>> given;
  std::vector<Json> all;
  for (size_t i = 0; i < episodes(); ++i) {
    auto known = given.find(pick(i).source);
    if (known == given.end()) {
      ASSIGN_OR_RETURN(std::vector<Json> read, episode_stats(*pick(i).source, options_));
      known = given.emplace(pick(i).source, std::move(read)).first;
    }
    all.push_back(known->second[pick(i).episode]);
    if (assembly_.renumber) RETURN_IF_ERROR(renumber_stats(i, all.back()));
  }
  stats_ = std::move(all);
  return stats_;
}

Status Making::renumber_stats(size_t i, Json& stats) const {
  std::vector<int64_t> values(static_cast<size_t>(length(i)), static_cast<int64_t>(i));
  replace_stats(stats, "episode_index", values);
  std::iota(values.begin(), values.end(), first_row(i));
  replace_stats(stats, "index", values);
  const std::vector<std::string> columns = task_columns(i);
  if (columns.empty()) return {};
  for (const std::string& column : columns) {
    ASSIGN_OR_RETURN(values, new_task_numbers(i, column, stats));
    replace_stats(stats, column, values);
  }
  return {};
}

// The column's values in the result. Most episodes have one task, and then the statistics tell which.
Result<std::vector<int64_t>> Making::new_task_numbers(size_t i, const std::string& column, const Json& stats) const {
  const Source& source = *pick(i).source;
  std::vector<int64_t> values;
  if (const auto task = only_value(stats, column)) {
    values.assign(static_cast<size_t>(length(i)), *task);
  } else {
    ASSIGN_OR_RETURN(values, read_integers(source, pick(i).episode, column));
  }
  const std::vector<int64_t>& numbers = assembly_.task_numbers.at(&source);
  for (int64_t& value : values) {
    if (value < 0 || value >= static_cast<int64_t>(numbers.size())) {
      return fail(ErrorCode::kCorruption, "{}/{}: episode {} has the task {}, which is not there [LR033]", source.url(),
                  source.data_path(pick(i).episode), pick(i).episode, value);
    }
    value = numbers[static_cast<size_t>(value)];
  }
  return values;
}

void Making::note_video(bool encoded, double min_psnr_db) {
  MutexLock lock(mutex_);
  if (!encoded) {
    ++made_.copied_videos;
    return;
  }
  ++made_.encoded_videos;
  double& worst = made_.min_psnr_db;
  worst = worst == 0 ? min_psnr_db : std::min(worst, min_psnr_db);
}

void Making::done(int64_t items) {
  if (options_.progress != nullptr) options_.progress->add(0, items);
}

MadeDataset Making::report() const {
  MutexLock lock(mutex_);
  return made_;
}

std::vector<EpisodeRun> runs_by_size(const Assembly& assembly, const PathOf& path, double limit_mb) {
  std::vector<EpisodeRun> runs;
  double bytes = 0;
  for (size_t i = 0; i < assembly.picks.size(); ++i) {
    const Pick& pick = assembly.picks[i];
    const double size = pick.source->bytes_in(path(pick), pick.episode);
    if (runs.empty() || bytes + size >= limit_mb * kMegabyte) {
      runs.push_back({i, i});
      bytes = 0;
    }
    bytes += size;
    runs.back().end = i + 1;
  }
  return runs;
}

std::vector<EpisodeRun> runs_by_file(const Assembly& assembly, const PathOf& path) {
  std::vector<EpisodeRun> runs;
  std::string before;
  for (size_t i = 0; i < assembly.picks.size(); ++i) {
    std::string here = path(assembly.picks[i]);
    if (i == 0 || assembly.picks[i].source != assembly.picks[i - 1].source || here != before) runs.push_back({i, i});
    runs.back().end = i + 1;
    before = std::move(here);
  }
  return runs;
}

PathOf data_path_of() {
  return [](const Pick& pick) { return pick.source->data_path(pick.episode); };
}

PathOf video_path_of(const std::string& camera) {
  return [camera](const Pick& pick) { return pick.source->video_path(pick.episode, pick.source->camera(camera)); };
}

std::string numbered_path(std::string_view folder, int64_t number, std::string_view suffix) {
  return fmt::format("{}/chunk-{:03d}/file-{:03d}.{}", folder, number / kFilesAChunk, number % kFilesAChunk, suffix);
}

Status run_jobs(const Making& making, const std::vector<std::function<Status()>>& jobs) {
  constexpr int kForService = 16;
  const bool is_local = std::ranges::all_of(making.assembly().picks,
                                            [](const Pick& pick) { return pick.source->dataset.tree.is_local(); });
  const int wanted = making.options().threads;
  const int threads = wanted > 0 ? wanted : is_local ? available_cpus() : kForService;
  return parallel_try(static_cast<int64_t>(jobs.size()), threads, "mr-lerobot",
                      [&](int64_t i) { return jobs[static_cast<size_t>(i)](); });
}

// ---- rows

Status RowFiles::open(const Pick& pick) {
  std::string path = pick.source->data_path(pick.episode);
  if (pick.source == source_ && path == path_) return {};
  rows_.reset();
  source_ = nullptr;
  ASSIGN_OR_RETURN(file_, pick.source->dataset.tree.open(path));
  ASSIGN_OR_RETURN(rows_, formats::open_rows(*file_));
  source_ = pick.source;
  path_ = std::move(path);
  return {};
}

std::vector<formats::ColumnChange> RowFiles::changes(size_t i) const {
  if (!making_.assembly().renumber) return {};
  std::vector<formats::ColumnChange> changes = {{.column = "episode_index", .first = static_cast<int64_t>(i)},
                                                {.column = "index", .first = making_.first_row(i), .step = 1}};
  for (std::string& column : making_.task_columns(i)) {
    changes.push_back(
        {.column = std::move(column), .for_values = making_.assembly().task_numbers.at(making_.pick(i).source)});
  }
  return changes;
}

Result<std::vector<std::byte>> RowFiles::file(const EpisodeRun& run) {
  MemorySink out;
  ASSIGN_OR_RETURN(const auto copier, formats::new_row_copier(out));
  for (size_t i = run.begin; i < run.end; ++i) {
    if (making_.options().stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    RETURN_IF_ERROR(open(making_.pick(i)));
    const Source& source = *making_.pick(i).source;
    if (!source.is_v3() && rows_->rows() != making_.length(i)) {
      return fail(ErrorCode::kCorruption, "{}/{}: it has {} rows, and meta/episodes.jsonl says {} [LR011]",
                  source.url(), path_, rows_->rows(), making_.length(i));
    }
    const int64_t begin = source.first_row(making_.pick(i).episode);
    RETURN_IF_ERROR(copier->add(*rows_, begin, begin + making_.length(i), changes(i)));
  }
  RETURN_IF_ERROR(copier->finish());
  return out.take();
}

}  // namespace millrace::lerobot
