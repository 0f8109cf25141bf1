// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "millrace/base/thread/sync.h"
#include "millrace/formats/columns.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/rows.h"

namespace millrace::lerobot {
namespace {

using formats::ColumnKind;
using formats::ColumnType;
using formats::TableFooter;

constexpr int64_t kRowsAtOnce = 8192;

// What many files have in common is said once, of the first of them by name. Thread-safe.
class Grouped {
 public:
  void add(int rule, const std::string& file, const std::string& column, std::string message,
           std::optional<Severity> severity = {}) {
    MutexLock lock(mutex_);
    Files& files = found_[{rule, column, std::move(message)}];
    if (files.count++ == 0 || file < files.first) files.first = file;
    files.severity = severity;
  }
  void report_all(Report& report) {
    MutexLock lock(mutex_);
    for (const auto& [key, files] : found_) {
      const auto& [rule, column, message] = key;
      const std::string more = files.count > 1 ? fmt::format(" (so are {} further files)", files.count - 1) : "";
      report.add(rule, {.file = files.first, .data = {.column = column}}, message + more, {}, files.severity);
    }
  }

 private:
  struct Files {
    std::string first;
    int64_t count = 0;
    std::optional<Severity> severity;
  };
  Mutex mutex_;
  std::map<std::tuple<int, std::string, std::string>, Files> found_ GUARDED_BY(mutex_);
};

// What is in the lists of a column, and how deep.
const ColumnType& leaf_of(const ColumnType& type, int& depth) {
  const ColumnType* leaf = &type;
  for (depth = 0; leaf->kind == ColumnKind::kList && leaf->fields.size() == 1; ++depth) leaf = &leaf->fields[0];
  return *leaf;
}

enum class Fit { kSame, kOther, kNone };

// How a stored number fits the declared dtype: as it is, by a cast, or not.
Fit number_fit(const ColumnType& leaf, std::string_view dtype) {
  const bool wants_float = dtype.starts_with("float"), is_float = leaf.kind == ColumnKind::kFloat;
  const size_t digits = dtype.find_first_of("0123456789");
  const int bits = digits == dtype.npos ? 0 : std::atoi(std::string(dtype.substr(digits)).c_str());
  if (dtype == "bool") {
    if (leaf.kind == ColumnKind::kBool) return Fit::kSame;
    return leaf.kind == ColumnKind::kInteger ? Fit::kOther : Fit::kNone;
  }
  if (wants_float) {
    if (is_float) return leaf.bits == bits ? Fit::kSame : Fit::kOther;
    return leaf.kind == ColumnKind::kInteger || leaf.kind == ColumnKind::kBool ? Fit::kOther : Fit::kNone;
  }
  if (leaf.kind == ColumnKind::kBool) return Fit::kOther;
  if (leaf.kind != ColumnKind::kInteger) return Fit::kNone;
  return leaf.bits == bits && leaf.is_unsigned == dtype.starts_with("uint") ? Fit::kSame : Fit::kOther;
}

Fit column_fit(const ColumnType& type, const Feature& feature) {
  int depth = 0;
  const ColumnType& leaf = leaf_of(type, depth);
  if (feature.dtype == "string") return depth == 0 && leaf.kind == ColumnKind::kText ? Fit::kSame : Fit::kNone;
  if (feature.dtype == "language") return depth == 1 && leaf.kind == ColumnKind::kStruct ? Fit::kSame : Fit::kNone;
  if (feature.dtype == "image") {
    const bool is_image = depth == 0 && (leaf.kind == ColumnKind::kStruct || leaf.kind == ColumnKind::kText);
    return is_image ? Fit::kSame : Fit::kNone;
  }
  const Fit fit = number_fit(leaf, feature.dtype);
  const bool is_scalar = feature.shape.size() == 1 && feature.shape[0] == 1;
  const bool right_depth = depth == static_cast<int>(feature.shape.size()) - (is_scalar ? 1 : 0);
  if (right_depth) return fit;
  // A list of one number, or a list of all numbers of several dimensions, can be reshaped.
  const bool reshapes = depth == 1 || (is_scalar && depth <= 1);
  return fit != Fit::kNone && reshapes ? Fit::kOther : Fit::kNone;
}

void check_columns(const Checking& checking, const std::string& path, const TableFooter& footer, Grouped& grouped) {
  const Info& info = checking.dataset.info;
  for (const Feature& feature : info.features) {
    if (feature.is_video()) continue;
    const ColumnType* type = footer.find(feature.name);
    if (type == nullptr) {
      grouped.add(23, path, feature.name, "the feature has no column");
      continue;
    }
    const Fit fit = column_fit(*type, feature);
    const std::string what = fmt::format("stored as {}, declared as {}", type->arrow, feature.dtype);
    if (fit != Fit::kSame) {
      grouped.add(24, path, feature.name, what, fit == Fit::kNone ? Severity::kError : Severity::kWarning);
    }
  }
  for (const ColumnType& type : footer.columns) {
    // pandas keeps its row numbers in such a column, and reads past it.
    if (type.name.starts_with("__index_level_")) continue;
    const Feature* feature = info.find(type.name);
    if (feature == nullptr) grouped.add(23, path, type.name, "no feature declares the column");
    if (feature != nullptr && feature->is_video()) {
      grouped.add(23, path, type.name, "a camera of dtype video has a column");
    }
  }
  const std::string* metadata = footer.metadata_of("huggingface");
  const bool has_list = metadata != nullptr && (metadata->find("\"_type\": \"List\"") != metadata->npos ||
                                                metadata->find("\"_type\":\"List\"") != metadata->npos);
  if (is_v2(info.version) && has_list) {
    grouped.add(27, path, "", "its huggingface metadata name the type List, which datasets before 4 does not know");
  }
}

// The files that episodes name, in the order of their first episode, and then those that none names.
std::vector<DataFile> files_of(const Checking& checking) {
  std::vector<DataFile> files = data_files(checking.dataset);
  std::erase_if(files, [&](const DataFile& file) { return checking.dataset.tree.find(file.path) == nullptr; });
  std::set<std::string_view> named;
  for (const DataFile& file : files) named.insert(file.path);
  std::vector<std::string> unnamed;
  for (const TreeFile& file : checking.dataset.tree.below("data/")) {
    if (file.path.ends_with(".parquet") && named.count(file.path) == 0) unnamed.push_back(file.path);
  }
  for (std::string& path : unnamed) files.push_back({.path = std::move(path), .episodes = {}});
  return files;
}

// LeRobot numbers the rows of all files in the order of their paths: rows behind those of the last episode harm
// nothing.
Severity severity_of_orphans(const std::string& path, std::string_view last_named) {
  return path < last_named ? Severity::kError : Severity::kWarning;
}

// LR076. The episodes of a file follow one another from its first row on, so the rows behind them are nobody's.
void report_orphans(const Checking& checking, const DataFile& file, const TableFooter& footer,
                    std::string_view last_named) {
  int64_t highest = -1;
  for (const formats::RowGroup& group : footer.groups) {
    for (const auto& range : group.ranges) {
      if (range.column == "episode_index") highest = std::max(highest, range.max);
    }
  }
  const int64_t last = file.episodes.back().episode->index;
  const std::string what = highest > last ? fmt::format("; episode_index goes to {}", highest) : std::string();
  checking.report.add(76, {.file = file.path},
                      fmt::format("{} of its {} rows belong to no episode: those that meta/ names end with row {}, of "
                                  "episode {}{}",
                                  footer.rows - file.rows, footer.rows, file.rows - 1, last, what),
                      {}, severity_of_orphans(file.path, last_named));
}

void check_row_counts(const Checking& checking, const DataFile& file, const TableFooter& footer,
                      std::string_view last_named) {
  Report& report = checking.report;
  if (file.episodes.empty()) {
    report.add(75, {.file = file.path}, fmt::format("no episode names this file of {} rows", footer.rows), {},
               severity_of_orphans(file.path, last_named));
    return;
  }
  const Episode& first = *file.episodes.front().episode;
  if (footer.rows > file.rows) return report_orphans(checking, file, footer, last_named);
  if (footer.rows != file.rows) {
    const DataPlace data{.episode = file.episodes.size() == 1 ? first.index : -1};
    report.add(18, {.file = file.path, .data = data},
               fmt::format("it has {} rows, and {} named by the metadata have {}", footer.rows,
                           file.episodes.size() == 1 ? "the episode" : "the episodes", file.rows));
  }
  const int64_t low = first.index, high = file.episodes.back().episode->index;
  for (const formats::RowGroup& group : footer.groups) {
    for (const auto& range : group.ranges) {
      if (range.column != "episode_index" || (range.min >= low && range.max <= high)) continue;
      report.add(18, {.file = file.path, .data = {.episode = range.min < low ? range.min : range.max}},
                 fmt::format("it holds rows of episodes {} to {}, and the metadata say {} to {}", range.min, range.max,
                             low, high));
      return;
    }
  }
}

}  // namespace

bool Checking::is_pointer(std::string_view path) const {
  return std::binary_search(pointers.begin(), pointers.end(), path, std::less<>());
}

std::vector<std::string_view> texts_by_index(const Dataset& dataset) {
  constexpr int64_t kMostIndex = 1 << 22;
  std::vector<std::string_view> texts;
  for (const Task& task : dataset.tasks) {
    if (task.index < 0 || task.index >= kMostIndex) continue;
    texts.resize(std::max(texts.size(), static_cast<size_t>(task.index) + 1));
    texts[static_cast<size_t>(task.index)] = task.text;
  }
  return texts;
}

Status for_all(const Checking& checking, int64_t count, const std::function<Status(int64_t)>& work) {
  return parallel_try(checking.executor, count, [&](int64_t i) -> Status {
    if (checking.options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    Status done = work(i);
    if (checking.options.progress != nullptr) checking.options.progress->add(0, 1);
    return done;
  });
}

Status check_data_files(const Checking& checking) {
  const std::vector<DataFile> files = files_of(checking);
  const std::vector<Group> groups = read_groups(checking.dataset.tree);
  std::string_view last_named;
  for (const DataFile& file : files) {
    if (!file.episodes.empty()) last_named = std::max<std::string_view>(last_named, file.path);
  }
  Grouped grouped;
  Mutex mutex;
  int64_t all_rows = 0;
  bool all_read = true, any_list = false;
  std::map<std::string, Moments, std::less<>> moments;
  std::vector<Motion> motions;
  const Status done = for_all(checking, static_cast<int64_t>(files.size()), [&](int64_t i) -> Status {
    const DataFile& file = files[static_cast<size_t>(i)];
    const auto broken = [&](const Error& error) -> Status {
      if (error.code() != ErrorCode::kCorruption) return tl::unexpected(error);
      checking.report.add(7, {.file = file.path}, error.message());
      MutexLock lock(mutex);
      all_read = false;
      return {};
    };
    if (checking.is_pointer(file.path)) {
      MutexLock lock(mutex);
      all_read = false;
      return {};
    }
    ASSIGN_OR_RETURN(const auto reader, checking.dataset.tree.open(file.path));
    auto table = formats::open_columns(*reader);
    if (!table) return broken(table.error());
    const TableFooter& footer = (*table)->footer();
    check_columns(checking, file.path, footer, grouped);
    check_row_counts(checking, file, footer, last_named);
    {
      MutexLock lock(mutex);
      all_rows += std::min(footer.rows, file.rows);  // LR075 and LR076 tell of the others
      for (const ColumnType& type : footer.columns) {
        const Feature* feature = checking.dataset.info.find(type.name);
        any_list = any_list || (feature != nullptr && feature->is_numeric() && type.kind == ColumnKind::kList &&
                                type.fixed_size < 0);
      }
    }
    if (!checking.options.rows || file.episodes.empty()) return {};
    RowCheck rows(checking, file.path, footer, file.episodes, groups);
    if (rows.columns().empty()) return {};
    const Status scanned = (*table)->scan(rows.columns(), kRowsAtOnce, [&](int64_t row, auto values) -> Status {
      if (checking.options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      rows.add(row, values);
      return {};
    });
    if (!scanned) return broken(scanned.error());
    RowResults results = rows.finish();
    MutexLock lock(mutex);
    for (const auto& [feature, counted] : results.moments) moments[feature].merge(counted);
    std::move(results.motions.begin(), results.motions.end(), std::back_inserter(motions));
    return {};
  });
  RETURN_IF_ERROR(done);
  grouped.report_all(checking.report);
  const auto& total = checking.dataset.info.total_frames;
  if (all_read && total && *total != all_rows) {
    checking.report.add(
        11, {.file = std::string(kInfoFile)},
        fmt::format("total_frames is {}, and the data files have {} rows of episodes", *total, all_rows));
  }
  if (any_list && checking.dataset.info.version == Version::kV30) {
    checking.report.add(24, {.file = "data"},
                        "vectors are stored as lists of any length, as LeRobot's converter and merge do: "
                        "their lengths are only seen in the rows",
                        {}, Severity::kNote);
  }
  if (checking.dataset.info.find("frame_index") == nullptr && !checking.dataset.info.features.empty()) {
    checking.report.add(21, {.file = std::string(kInfoFile), .data = {.column = "frame_index"}},
                        "there is no frame_index", "Add the column: 0, 1, 2 ... in each episode.", Severity::kWarning);
  }
  std::sort(motions.begin(), motions.end(), [](const Motion& a, const Motion& b) { return a.episode < b.episode; });
  check_moments(checking, moments);
  check_motions(checking, motions);
  return {};
}

}  // namespace millrace::lerobot
