// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/formats/columns.h"
#include "millrace/images/images.h"
#include "millrace/lerobot/diff_parts.h"

namespace millrace::lerobot {
namespace {

using formats::ColumnKind;
using formats::ColumnType;
using formats::ColumnValues;

constexpr int64_t kMostRows = int64_t{1} << 32;

// The compared columns of one data file.
struct FileRows {
  std::string path;
  std::vector<ColumnValues> columns;
  std::vector<ColumnType> types;
};

bool is_number(const ColumnValues& values) {
  return values.kind == ColumnKind::kBool || values.kind == ColumnKind::kInteger || values.kind == ColumnKind::kFloat;
}

// Compares values of rows; keeps the largest difference of two numbers.
class Values {
 public:
  explicit Values(bool pixels) : pixels_(pixels) {}

  bool equal(const ColumnValues& a, int64_t i, const ColumnValues& b, int64_t j) {
    if (a.is_null(i) || b.is_null(j)) return a.is_null(i) == b.is_null(j);
    if (is_number(a) && is_number(b)) return equal_numbers(a, i, b, j);
    // A number may lie in a list of one.
    if (a.kind == ColumnKind::kList && is_number(b)) return is_one(a, i) && equal(a.fields[0], begin(a, i), b, j);
    if (b.kind == ColumnKind::kList && is_number(a)) return is_one(b, j) && equal(a, i, b.fields[0], begin(b, j));
    if (a.kind != b.kind) return false;
    switch (a.kind) {
      case ColumnKind::kText:
        return a.texts[static_cast<size_t>(i)] == b.texts[static_cast<size_t>(j)];
      case ColumnKind::kList:
        return equal_lists(a, i, b, j);
      case ColumnKind::kStruct: {
        bool all = a.fields.size() == b.fields.size();
        for (size_t field = 0; all && field < a.fields.size(); ++field) {
          all = equal(a.fields[field], i, b.fields[field], j);
        }
        return all;
      }
      default:
        return true;  // kOther: no values were read
    }
  }

  // The files of two pictures. A picture that does not decode differs.
  bool equal_pictures(const std::string& a, const std::string& b) {
    if (a == b) return true;
    if (!pixels_) return false;
    const auto in_a = images::decode(std::as_bytes(std::span(a)), {.colour = images::Colour::kRgba}, "A");
    const auto in_b = images::decode(std::as_bytes(std::span(b)), {.colour = images::Colour::kRgba}, "B");
    if (!in_a || !in_b || in_a->height != in_b->height) return false;
    const auto far = largest_difference(std::as_bytes(std::span(in_a->pixels)), std::as_bytes(std::span(in_b->pixels)));
    if (far) add(static_cast<double>(*far));
    return far == 0;
  }

  const std::optional<double>& largest() const { return largest_; }

 private:
  static int64_t begin(const ColumnValues& list, int64_t row) { return list.offsets[static_cast<size_t>(row)]; }
  static int64_t size(const ColumnValues& list, int64_t row) { return begin(list, row + 1) - begin(list, row); }
  static bool is_one(const ColumnValues& list, int64_t row) { return size(list, row) == 1; }

  void add(double far) {
    if (std::isfinite(far) && far > 0) largest_ = std::max(largest_.value_or(0), far);
  }

  bool equal_numbers(const ColumnValues& a, int64_t i, const ColumnValues& b, int64_t j) {
    if (a.kind != ColumnKind::kFloat && b.kind != ColumnKind::kFloat) {
      const int64_t x = a.integers[static_cast<size_t>(i)], y = b.integers[static_cast<size_t>(j)];
      if (x != y) add(std::abs(static_cast<double>(x) - static_cast<double>(y)));
      return x == y;
    }
    const double x = a.number(i), y = b.number(j);
    if (x == y || (std::isnan(x) && std::isnan(y))) return true;
    add(std::abs(x - y));
    return false;
  }

  bool equal_lists(const ColumnValues& a, int64_t i, const ColumnValues& b, int64_t j) {
    const int64_t count = size(a, i);
    if (count != size(b, j)) return false;
    bool all = true;
    for (int64_t at = 0; at < count; ++at) {
      all = equal(a.fields[0], begin(a, i) + at, b.fields[0], begin(b, j) + at) && all;
    }
    return all;
  }

  const bool pixels_;
  std::optional<double> largest_;
};

const ColumnValues* bytes_of(const ColumnType& type, const ColumnValues& values) {
  if (values.kind == ColumnKind::kText) return &values;
  for (size_t i = 0; i < type.fields.size() && i < values.fields.size(); ++i) {
    if (type.fields[i].name == "bytes" && values.fields[i].kind == ColumnKind::kText) return &values.fields[i];
  }
  return nullptr;
}

class RowsDiff {
 public:
  RowsDiff(const DiffSides& sides, DatasetDiff& diff) : sides_(sides), diff_(diff) {
    for (const Feature& feature : sides.a.dataset.info.features) {
      const Feature* const other = sides.b.dataset.info.find(feature.name);
      if (feature.is_video() || other == nullptr || other->is_video()) continue;
      names_.push_back(feature.name);
      is_image_.push_back(feature.dtype == "image" && other->dtype == "image");
      diff.features.push_back({.name = feature.name});
    }
    begins_a_ = begins_of(sides.a);
    begins_b_ = begins_of(sides.b);
  }

  Status run() {
    const auto works = works_of();
    Progress* const progress = sides_.options.progress;
    if (progress != nullptr) progress->set_totals(0, std::ssize(works));
    const int threads = std::max(threads_for(sides_.a.dataset.tree, sides_.options.threads),
                                 threads_for(sides_.b.dataset.tree, sides_.options.threads));
    return parallel_try(std::ssize(works), threads, "mr-lerobot", [&](int64_t i) {
      Status done = compare(works[static_cast<size_t>(i)]);
      if (progress != nullptr) progress->add(0, 1);
      return done;
    });
  }

 private:
  using Work = std::vector<size_t>;  // places in sides_.episodes

  static std::vector<int64_t> begins_of(const Source& source) {
    std::vector<int64_t> begins = {0};
    for (const Episode& episode : source.dataset.episodes) begins.push_back(begins.back() + episode.length);
    return begins;
  }

  // The episodes of a file of that side which has fewer; so that few files are read twice.
  std::vector<Work> works_of() const {
    std::map<std::string, Work> by_a, by_b;
    for (size_t i = 0; i < sides_.episodes.size(); ++i) {
      by_a[sides_.a.data_path(sides_.episodes[i].first)].push_back(i);
      by_b[sides_.b.data_path(sides_.episodes[i].second)].push_back(i);
    }
    std::vector<Work> works;
    for (auto& [path, work] : by_a.size() < by_b.size() ? by_a : by_b) works.push_back(std::move(work));
    return works;
  }

  Status load(const Source& source, const std::string& path, FileRows& rows) const {
    if (rows.path == path) return {};
    rows = {};
    const std::string shown = fmt::format("{}/{}", source.url(), path);
    ASSIGN_OR_RETURN(const auto file, source.dataset.tree.open(path));
    ASSIGN_OR_RETURN(const auto table, with_context(formats::open_columns(*file), shown));
    for (const std::string& name : names_) {
      const ColumnType* const type = table->footer().find(name);
      if (type == nullptr) {
        return fail(ErrorCode::kCorruption, "{}: it has no column {}, which meta/info.json declares [LR023]", shown,
                    name);
      }
      rows.types.push_back(*type);
    }
    ASSIGN_OR_RETURN(rows.columns, with_context(formats::read_columns(*table, names_, kMostRows), shown));
    rows.path = path;
    return {};
  }

  Status compare(const Work& work) {
    FileRows a, b;
    for (const size_t i : work) {
      if (sides_.options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      const auto [place_a, place_b] = sides_.episodes[i];
      RETURN_IF_ERROR(load(sides_.a, sides_.a.data_path(place_a), a));
      RETURN_IF_ERROR(load(sides_.b, sides_.b.data_path(place_b), b));
      const int64_t first_a = sides_.a.first_row(place_a), first_b = sides_.b.first_row(place_b);
      RETURN_IF_ERROR(check_rows(sides_.a, place_a, a, first_a));
      RETURN_IF_ERROR(check_rows(sides_.b, place_b, b, first_b));
      for (size_t column = 0; column < names_.size(); ++column) compare_column(i, column, a, first_a, b, first_b);
    }
    return {};
  }

  static Status check_rows(const Source& source, size_t place, const FileRows& rows, int64_t first) {
    const int64_t length = source.episode(place).length;
    if (rows.columns.empty() || first + length <= rows.columns[0].rows) return {};
    return fail(ErrorCode::kCorruption, "{}/{}: it has {} rows, and those of episode {} are {} to {} [LR018]",
                source.url(), rows.path, rows.columns[0].rows, source.episode(place).index, first, first + length - 1);
  }

  void compare_column(size_t i, size_t column, const FileRows& in_a, int64_t first_a, const FileRows& in_b,
                      int64_t first_b) {
    const ColumnValues &a = in_a.columns[column], &b = in_b.columns[column];
    Values values(sides_.options.frames);
    DatasetDiff::Feature found{.name = names_[column], .rows = sides_.length(i)};
    const auto* const bytes_a = is_image_[column] ? bytes_of(in_a.types[column], a) : nullptr;
    const auto* const bytes_b = is_image_[column] ? bytes_of(in_b.types[column], b) : nullptr;
    for (int64_t row = 0; row < found.rows; ++row) {
      const int64_t at_a = first_a + row, at_b = first_b + row;
      const bool same = bytes_a != nullptr && bytes_b != nullptr
                            ? values.equal_pictures(bytes_a->texts[static_cast<size_t>(at_a)],
                                                    bytes_b->texts[static_cast<size_t>(at_b)])
                        : is_plain(column, a, b) ? values.equal(a, at_a, b, at_b)
                                                 : equal_meaning(i, column, a, at_a, b, at_b);
      if (!same && found.differ++ == 0) keep_first(sides_.number(i), row, found.first_episode, found.first_row);
    }
    found.largest = values.largest();
    MutexLock lock(mutex_);
    DatasetDiff::Feature& all = diff_.features[column];
    all.rows += found.rows;
    all.differ += found.differ;
    if (found.differ > 0) keep_first(found.first_episode, found.first_row, all.first_episode, all.first_row);
    if (found.largest) all.largest = std::max(all.largest.value_or(0), *found.largest);
  }

  bool is_plain(size_t column, const ColumnValues& a, const ColumnValues& b) const {
    const bool integers = a.kind == ColumnKind::kInteger && b.kind == ColumnKind::kInteger;
    return !integers || (names_[column] != "task_index" && names_[column] != "index");
  }

  // A task by its text. `index` by how far it is from the row's place in its dataset, so that an episode that one has
  // longer does not make all later rows differ.
  bool equal_meaning(size_t i, size_t column, const ColumnValues& a, int64_t at_a, const ColumnValues& b,
                     int64_t at_b) const {
    const int64_t x = a.integers[static_cast<size_t>(at_a)], y = b.integers[static_cast<size_t>(at_b)];
    const auto [place_a, place_b] = sides_.episodes[i];
    if (names_[column] == "index") return x - begins_a_[place_a] == y - begins_b_[place_b];
    const auto text = [](const Source& source, int64_t task) {
      return task >= 0 && task < std::ssize(source.tasks) ? source.tasks[static_cast<size_t>(task)]
                                                          : fmt::format("no task {}", task);
    };
    return text(sides_.a, x) == text(sides_.b, y);
  }

  const DiffSides& sides_;
  DatasetDiff& diff_;
  std::vector<std::string> names_;
  std::vector<bool> is_image_;
  std::vector<int64_t> begins_a_, begins_b_;
  Mutex mutex_;
};

}  // namespace

Status diff_rows(const DiffSides& sides, DatasetDiff& diff) {
  return RowsDiff(sides, diff).run();
}

}  // namespace millrace::lerobot
