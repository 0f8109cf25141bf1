// SPDX-License-Identifier: Apache-2.0
#pragma once

// The state of one dataset while it is made. The writers of rows, videos and lists share it. Private to this room.

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/formats/table_writer.h"
#include "millrace/lerobot/assemble.h"
#include "millrace/lerobot/partial_folder.h"
#include "millrace/lerobot/source.h"
#include "millrace/video/edit.h"

namespace millrace::lerobot {

inline constexpr int64_t kFilesAChunk = 1000;  // for v2.x also the episodes of a chunk

// Thread-safe.
class Making {
 public:
  Making(const Assembly& assembly, const MakeOptions& options, PartialFolder& folder);

  const Assembly& assembly() const { return assembly_; }
  const MakeOptions& options() const { return options_; }
  Location root() const;
  const Pick& pick(size_t i) const { return assembly_.picks[i]; }
  size_t episodes() const { return assembly_.picks.size(); }
  int64_t length(size_t i) const { return pick(i).source->episode(pick(i).episode).length; }
  int64_t first_row(size_t i) const { return begins_[i]; }  // in the result; i == episodes(): the number of all rows
  const std::vector<std::string>& cameras() const { return cameras_; }
  // Returns the features of pick i that hold task numbers. Empty if the task numbers of its source do not change.
  std::vector<std::string> task_columns(size_t i) const;

  // Puts a file as PartialFolder::put() does. `path` is below the dataset's root.
  [[nodiscard]] Status put(const std::string& path, const PartialFolder::Make& make);
  [[nodiscard]] Status put_table(const std::string& path, const std::function<Result<formats::TableToWrite>()>& make);
  std::string path_in_folder(const std::string& path) const;
  PartialFolder& folder() const { return folder_; }

  // Returns the statistics of each episode of the result. The first call reads them. For one thread.
  [[nodiscard]] Result<std::span<const Json>> stats();

  void note_video(bool encoded, double min_psnr_db);
  void done(int64_t items);  // counts items done, of episodes() * (1 + cameras)
  MadeDataset report() const;

 private:
  [[nodiscard]] Status renumber_stats(size_t i, Json& stats) const;
  [[nodiscard]] Result<std::vector<int64_t>> new_task_numbers(size_t i, const std::string& column,
                                                              const Json& stats) const;

  const Assembly& assembly_;
  const MakeOptions& options_;
  PartialFolder& folder_;
  std::vector<int64_t> begins_;
  std::vector<std::string> cameras_;
  std::vector<Json> stats_;
  mutable Mutex mutex_;
  MadeDataset made_ GUARDED_BY(mutex_);
};

// The neighbouring episodes [begin, end) of the result.
struct EpisodeRun {
  size_t begin = 0, end = 0;
};
// Groups the episodes into v3.0 files: each file takes episodes until it is full, by their sizes in the source. `path`
// returns the source file of a pick.
using PathOf = std::function<std::string(const Pick&)>;
std::vector<EpisodeRun> runs_by_size(const Assembly& assembly, const PathOf& path, double limit_mb);
// Groups the episodes that are in the same file of the same source, in its order.
std::vector<EpisodeRun> runs_by_file(const Assembly& assembly, const PathOf& path);
PathOf data_path_of();
PathOf video_path_of(const std::string& camera);

// Returns a path such as "data/chunk-000/file-007.parquet".
std::string numbered_path(std::string_view folder, int64_t number, std::string_view suffix);

// Makes data files. For one thread.
class RowFiles {
 public:
  explicit RowFiles(const Making& making) : making_(making) {}
  // Makes a data file of these episodes, with one row group for each.
  [[nodiscard]] Result<std::vector<std::byte>> file(const EpisodeRun& run);

 private:
  [[nodiscard]] Status open(const Pick& pick);
  std::vector<formats::ColumnChange> changes(size_t i) const;

  const Making& making_;
  const Source* source_ = nullptr;  // the source of the open file path_
  std::string path_;
  std::unique_ptr<RandomReader> file_;
  std::unique_ptr<formats::RowSource> rows_;
};

// The place of a camera's frames of an episode in v3.0.
struct NewSpan {
  int64_t file = 0;
  double from_s = 0, to_s = 0;
};

// Makes videos of one camera. For one thread.
class VideoFiles {
 public:
  VideoFiles(Making& making, std::string camera) : making_(making), camera_(std::move(camera)) {}

  // Makes a video file of one episode's frames.
  [[nodiscard]] Result<std::vector<std::byte>> clip(size_t i);
  // Writes the episodes of a run to one file, or to several if a video cannot be appended to the one before by
  // copying. `next` is the number of the next file. `spans` gets an entry for each episode.
  [[nodiscard]] Status write_joined(const EpisodeRun& run, int64_t& next, std::vector<NewSpan>& spans);

 private:
  struct Opened;
  struct Part;

  [[nodiscard]] Status open(const Pick& pick);
  [[nodiscard]] Result<int64_t> first_frame(size_t i);
  [[nodiscard]] Result<size_t> end_of_stretch(size_t begin, size_t end);
  [[nodiscard]] Result<std::vector<Part>> parts_of(size_t begin, size_t end);
  [[nodiscard]] Result<Part> cut_part(size_t begin, size_t end, bool may_encode);
  [[nodiscard]] Result<size_t> write_file(const EpisodeRun& run, int64_t number);
  [[nodiscard]] Result<std::vector<std::byte>> joined(std::vector<Part>& parts);
  [[nodiscard]] Result<size_t> add_spans(size_t begin, size_t end, int64_t number, std::vector<NewSpan>& spans);

  Making& making_;
  const std::string camera_;
  std::shared_ptr<Opened> open_;  // the most recently used source file
};

// Writes all files of a version except meta/info.json, meta/stats.json and meta/modality.json: first rows and videos,
// then lists.
[[nodiscard]] Status write_v2(Making& making);
[[nodiscard]] Status write_v3(Making& making);

// Runs jobs on as many threads as the options ask for. Returns the error of the first job that failed.
[[nodiscard]] Status run_jobs(const Making& making, const std::vector<std::function<Status()>>& jobs);

}  // namespace millrace::lerobot
