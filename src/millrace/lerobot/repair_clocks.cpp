// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "millrace/base/thread/executor.h"
#include "millrace/formats/columns.h"
#include "millrace/formats/table_writer.h"
#include "millrace/lerobot/data_files.h"
#include "millrace/lerobot/repair_parts.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kMostClockRows = int64_t{1} << 31;
constexpr double kClockTolerance = 1e-4;  // LeRobot's tolerance_s

// What a data file's clock looks like.
struct Clock {
  std::string reason;  // that it cannot be mended; empty: it can
  std::optional<int64_t> wrong_row;
  double is = 0, wanted = 0;
  int64_t wrong = 0, rows = 0;
};

const EpisodeRows* episode_at(const DataFile& file, int64_t row) {
  const auto after = std::ranges::upper_bound(file.episodes, row, {}, &EpisodeRows::first_row);
  return after == file.episodes.begin() ? nullptr : &*(after - 1);
}

void compare_clock(const DataFile& file, const formats::ColumnValues& times, double fps, Clock& clock) {
  for (int64_t row = 0; row < times.rows; ++row) {
    const double wanted = frame_time(row - episode_at(file, row)->first_row, fps);
    const double is = times.is_null(row) ? std::nan("") : times.number(row);
    if (std::abs(is - wanted) <= kClockTolerance + 2.4e-7 * wanted) continue;
    if (clock.wrong++ > 0) continue;
    clock.wrong_row = row;
    clock.is = is;
    clock.wanted = wanted;
  }
}

bool counts_rows(const DataFile& file, const formats::ColumnValues& frames) {
  for (int64_t row = 0; row < frames.rows; ++row) {
    if (frames.is_null(row) || frames.integers[static_cast<size_t>(row)] != row - episode_at(file, row)->first_row) {
      return false;
    }
  }
  return true;
}

Result<Clock> read_clock(const Dataset& dataset, const DataFile& file) {
  ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(file.path));
  ASSIGN_OR_RETURN(const auto table, formats::open_columns(*reader));
  const formats::TableFooter& footer = table->footer();
  const formats::ColumnType *times = footer.find("timestamp"), *frames = footer.find("frame_index");
  Clock clock{.rows = footer.rows};
  if (times == nullptr) return clock;  // LR023, and of no loader's use
  if (times->kind != formats::ColumnKind::kFloat) {
    clock.reason = fmt::format("timestamp is stored as {}", times->arrow);
    return clock;
  }
  if (footer.rows != file.rows) {
    clock.reason = fmt::format("it has {} rows, and its episodes {}", footer.rows, file.rows);
    return clock;
  }
  std::vector<std::string> columns = {"timestamp"};
  const bool has_frames = frames != nullptr && frames->kind == formats::ColumnKind::kInteger;
  if (has_frames) columns.emplace_back("frame_index");
  ASSIGN_OR_RETURN(const auto values, formats::read_columns(*table, columns, kMostClockRows));
  compare_clock(file, values[0], dataset.info.frame_rate(), clock);
  if (clock.wrong == 0) return clock;
  if (!has_frames) {
    clock.reason = "there is no frame_index to take the times from";
  } else if (!counts_rows(file, values[1])) {
    clock.reason = "frame_index does not count the rows of each episode from 0 (LR021)";
  }
  return clock;
}

void add_clock(const DataFile& file, const Clock& clock, Repair& repair) {
  if (!clock.reason.empty()) {
    if (clock.wrong > 0 || !clock.wrong_row) {
      repair.left.push_back(fmt::format("{}: {}, so its timestamps stay", file.path, clock.reason));
    }
    return;
  }
  if (clock.wrong == 0) return;
  const EpisodeRows& episode = *episode_at(file, *clock.wrong_row);
  const int64_t frame = *clock.wrong_row - episode.first_row;
  repair.clocks.insert(file.path);
  repair.fixes.push_back({frame == 0 ? 38 : 39, file.path, "timestamp",
                          fmt::format("{:.6g} s of frame {} of episode {}, and {} of {} rows are wrong", clock.is,
                                      frame, episode.episode->index, clock.wrong, clock.rows),
                          "frame_index / fps"});
}

}  // namespace

Status plan_clocks(const RepairOptions& options, Repair& repair) {
  const Dataset& dataset = repair.dataset;
  if (dataset.info.frame_rate() == 0) return {};
  const std::vector<DataFile> files = data_files(dataset);
  std::vector<Clock> clocks(files.size());
  RETURN_IF_ERROR(parallel_try(static_cast<int64_t>(files.size()), threads_for(dataset.tree, options.threads),
                               "mr-lerobot", [&](int64_t i) -> Status {
                                 if (options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
                                 const auto place = static_cast<size_t>(i);
                                 auto clock = read_clock(dataset, files[place]);
                                 if (!clock && clock.error().code() == ErrorCode::kUnsupported)
                                   return tl::unexpected(clock.error());
                                 clocks[place] =
                                     clock ? *std::move(clock)
                                           : Clock{.reason = "it cannot be read (" + clock.error().message() + ")"};
                                 return {};
                               }));
  for (size_t i = 0; i < files.size(); ++i) add_clock(files[i], clocks[i], repair);
  return {};
}

Result<NewFile> mended_clock(const Dataset& dataset, const std::string& path) {
  const std::vector<DataFile> files = data_files(dataset);
  const DataFile& file = *std::ranges::find(files, path, &DataFile::path);
  ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(path));
  ASSIGN_OR_RETURN(const auto table, formats::open_columns(*reader));
  const formats::ColumnType* const type = table->footer().find("timestamp");
  std::vector<double> times;
  for (const EpisodeRows& each : file.episodes) {
    for (int64_t frame = 0; frame < each.episode->length; ++frame) {
      times.push_back(frame_time(frame, dataset.info.frame_rate()));
    }
  }
  formats::ColumnToWrite column{.name = "timestamp", .values = times};
  if (type != nullptr && type->bits != 64) column.values = std::vector<float>(times.begin(), times.end());
  MemorySink out;
  RETURN_IF_ERROR(formats::replace_columns(*reader, {&column, 1}, out));
  return NewFile{path, std::string(as_text(out.bytes())), std::string(reader->version())};
}

}  // namespace millrace::lerobot
