// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "millrace/base/hash/hash.h"
#include "millrace/lerobot/rows.h"
#include "millrace/lerobot/stats.h"

namespace millrace::lerobot {

namespace {

using formats::ColumnKind;
using formats::ColumnType;
using formats::ColumnValues;

// LeRobot's default of tolerance_s.
constexpr double kTolerance = 1e-4;
// More numbers in a row than this are pictures or maps: they are not looked through.
constexpr int64_t kMostInRow = 1 << 16;

// What a float32 of this size may be off.
double single_slack(double value) {
  return std::abs(value) * 1.2e-7;
}

bool is_numbers(const ColumnType& type) {
  if (type.kind == ColumnKind::kList) return type.fields.size() == 1 && is_numbers(type.fields[0]);
  return type.kind == ColumnKind::kFloat || type.kind == ColumnKind::kInteger || type.kind == ColumnKind::kBool;
}

}  // namespace

struct RowCheck::Column {
  enum class Kind { kNumbers, kTime, kInteger, kTask, kLanguage } kind = Kind::kNumbers;
  const Feature* feature = nullptr;  // null: undeclared, or of another kind
  std::string name;
  std::vector<std::string> fields;  // of a language column: role, style, camera, ...
  std::vector<Group> rotations;
};

RowCheck::RowCheck(const Checking& checking, std::string path, const formats::TableFooter& footer,
                   std::vector<EpisodeRows> episodes, std::span<const Group> groups)
    : checking_(checking),
      path_(std::move(path)),
      episodes_(std::move(episodes)),
      groups_(groups.begin(), groups.end()) {
  choose_columns(footer);
  if (!episodes_.empty()) begin_episode();
}

RowCheck::~RowCheck() = default;

void RowCheck::choose_columns(const formats::TableFooter& footer) {
  for (const ColumnType& type : footer.columns) {
    Column column{.feature = checking_.dataset.info.find(type.name), .name = type.name};
    const bool is_integer = type.kind == ColumnKind::kInteger;
    if (type.name == "timestamp") {
      if (type.kind != ColumnKind::kFloat) continue;
      column.kind = Column::Kind::kTime;
    } else if (type.name == "language_persistent" || type.name == "language_events") {
      if (type.kind != ColumnKind::kList || type.fields[0].kind != ColumnKind::kStruct) continue;
      column.kind = Column::Kind::kLanguage;
      for (const ColumnType& field : type.fields[0].fields) column.fields.push_back(field.name);
    } else if (is_integer && (type.name == "task_index" || type.name.starts_with("annotation."))) {
      column.kind = Column::Kind::kTask;
    } else if (is_integer && column.feature != nullptr && column.feature->is_bookkeeping()) {
      column.kind = Column::Kind::kInteger;
    } else if (!is_numbers(type) || column.feature == nullptr || column.feature->size() > kMostInRow) {
      continue;
    }
    for (const Group& group : groups_) {
      if (group.column == type.name && !group.rotation.empty()) column.rotations.push_back(group);
    }
    columns_.push_back(type.name);
    kinds_.push_back(std::move(column));
  }
}

void RowCheck::trouble(int rule, const std::string& column, std::string message) {
  Trouble& here = troubles_[{rule, column}];
  if (here.rows++ > 0) return;
  here.first_row = row_;
  here.message = std::move(message);
}

void RowCheck::begin_episode() {
  row_ = 0;
  troubles_.clear();
  moments_.clear();
  tasks_seen_.clear();
  motion_ = {.episode = episodes_[at_].episode->index};
  still_idle_ = true;
  action_before_.clear();
}

void RowCheck::end_episode() {
  const Episode& episode = *episodes_[at_].episode;
  const double rate = checking_.dataset.info.frame_rate();
  if (rate > 0 && row_ > 0 && !checking_.dataset.info.cameras().empty() && std::abs(first_time_) > kTolerance &&
      std::llround(last_time_ * rate) >= episode.length) {
    checking_.report.add(38, {.file = path_, .data = {episode.index, row_ - 1, "timestamp"}},
                         fmt::format("the last timestamp is {:.6g} s, frame {} of {}", last_time_,
                                     std::llround(last_time_ * rate), episode.length),
                         {}, Severity::kError);
    troubles_.erase({38, "timestamp"});
  }
  if (troubles_.count({37, "timestamp"}) > 0) troubles_.erase({39, "timestamp"});
  check_tasks_of_episode();
  for (auto& [key, found] : troubles_) {
    const auto& [rule, column] = key;
    if (found.rows > 1) found.message += fmt::format(" (and {} further rows)", found.rows - 1);
    const Feature* feature = checking_.dataset.info.find(column);
    std::optional<Severity> severity;
    if (rule == 26 && (feature == nullptr || !feature->is_learned())) severity = Severity::kWarning;
    checking_.report.add(rule, {.file = path_, .data = {episode.index, found.first_row, column}}, found.message, {},
                         severity);
  }
  for (const auto& [feature, moments] : moments_) {
    compare_with_stored(feature, moments);
    results_.moments[feature].merge(moments);
  }
  if (!motion_.min.empty()) results_.motions.push_back(std::move(motion_));
}

void RowCheck::add(int64_t first_row, std::span<const ColumnValues> values) {
  const int64_t rows = values.empty() ? 0 : values[0].rows;
  for (int64_t row = 0; row < rows && at_ < episodes_.size();) {
    const int64_t left = episodes_[at_].first_row + episodes_[at_].episode->length - (first_row + row);
    const int64_t here = std::min(rows - row, std::max<int64_t>(left, 0));
    add_segment(row, here, values);
    row += here;
    if (here < left) return;
    end_episode();
    if (++at_ < episodes_.size()) begin_episode();
  }
}

RowResults RowCheck::finish() {
  if (at_ < episodes_.size() && row_ > 0) end_episode();
  return std::move(results_);
}

void RowCheck::add_segment(int64_t batch_row, int64_t rows, std::span<const ColumnValues> values) {
  const int64_t first = row_;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    Column& column = kinds_[i];
    for (int64_t row = batch_row; row < batch_row + rows; ++row) {
      row_ = first + (row - batch_row);
      if (column.kind == Column::Kind::kLanguage) {
        check_language(column, values[i], row);
      } else if (values[i].is_null(row)) {
        trouble(25, column.name, "the row is null");
      } else if (column.kind == Column::Kind::kTime) {
        check_timestamp(values[i].reals[static_cast<size_t>(row)]);
      } else if (column.kind == Column::Kind::kNumbers) {
        check_vector(column, values[i], row);
      } else {
        check_integer(column, values[i].integers[static_cast<size_t>(row)]);
      }
    }
  }
  row_ = first + rows;
}

void RowCheck::check_vector(Column& column, const ColumnValues& values, int64_t row) {
  const int64_t size = column.feature->size();
  if (values.kind == ColumnKind::kList && values.fields[0].kind == ColumnKind::kFloat &&
      values.fields[0].nulls.empty()) {
    const int64_t begin = values.offsets[static_cast<size_t>(row)];
    const int64_t count = values.offsets[static_cast<size_t>(row) + 1] - begin;
    if (count == size) return check_numbers(column, values.fields[0].reals.data() + begin, static_cast<size_t>(count));
  }
  flat_.clear();
  append_numbers(values, row, flat_);
  if (static_cast<int64_t>(flat_.size()) != size) {
    return trouble(25, column.name, fmt::format("it has {} numbers, and {} are declared", flat_.size(), size));
  }
  check_numbers(column, flat_.data(), flat_.size());
}

void RowCheck::check_numbers(Column& column, const double* values, size_t count) {
  if (column.feature->is_float()) {
    const auto* bad = std::find_if(values, values + count, [](double value) { return !std::isfinite(value); });
    if (bad != values + count) {
      return trouble(26, column.name, fmt::format("dimension {} is {}", bad - values, *bad));
    }
  }
  if (!column.rotations.empty()) check_rotations(column, values, count);
  if (!column.feature->is_learned()) return;
  const auto found = moments_.find(column.name);
  (found == moments_.end() ? moments_[column.name] : found->second).add(values, count);
  if (column.name == "action") add_motion(values, count);
}

void RowCheck::check_rotations(const Column& column, const double* values, size_t count) {
  constexpr double kNear = 0.02;  // of length 1: what a network or a recorder may leave
  for (const Group& group : column.rotations) {
    if (group.end > static_cast<int64_t>(count) || group.start < 0) continue;
    const double* begin = values + group.start;
    const auto norm = [](const double* v, size_t n) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += v[i] * v[i];
      return std::sqrt(sum);
    };
    if (group.rotation == "quaternion" && group.end - group.start == 4 && std::abs(norm(begin, 4) - 1) > kNear) {
      trouble(70, column.name, fmt::format("the quaternion {} has the length {:.3g}", group.name, norm(begin, 4)));
    }
    if (group.rotation != "rotation_6d" || group.end - group.start != 6) continue;
    const double dot = begin[0] * begin[3] + begin[1] * begin[4] + begin[2] * begin[5];
    if (std::abs(norm(begin, 3) - 1) > kNear || std::abs(norm(begin + 3, 3) - 1) > kNear || std::abs(dot) > kNear) {
      trouble(70, column.name, fmt::format("the two halves of {} are no orthogonal vectors of length 1", group.name));
    }
  }
}

void RowCheck::check_integer(const Column& column, int64_t value) {
  const EpisodeRows& here = episodes_[at_];
  if (column.kind == Column::Kind::kTask) {
    tasks_seen_.insert(value);
    const bool known = value >= 0 && value < static_cast<int64_t>(checking_.task_texts.size());
    if (!known) trouble(33, column.name, fmt::format("there is no task {}", value));
    return;
  }
  const int64_t expected = column.name == "index"           ? here.first_index + row_
                           : column.name == "frame_index"   ? row_
                           : column.name == "episode_index" ? here.episode->index
                                                            : value;
  if (value != expected) trouble(21, column.name, fmt::format("it is {}, and {} was expected", value, expected));
}

void RowCheck::check_timestamp(double value) {
  const double rate = checking_.dataset.info.frame_rate();
  if (rate == 0) return;
  if (!std::isfinite(value)) return trouble(37, "timestamp", fmt::format("it is {}", value));
  if (row_ == 0) {
    first_time_ = value;
    if (std::abs(value) > kTolerance) trouble(38, "timestamp", fmt::format("the first one is {:.6g} s", value));
  } else {
    const double step = value - last_time_;
    if (std::abs(step - 1 / rate) > kTolerance + single_slack(value)) {
      trouble(37, "timestamp",
              fmt::format("the step to {:.6g} s is {:.6g} s, and a frame takes {:.6g} s", value, step, 1 / rate));
    }
  }
  last_time_ = value;
  const double expected = static_cast<double>(row_) / rate;
  if (std::abs(value - first_time_ - expected) > kTolerance + 2 * single_slack(value)) {
    trouble(39, "timestamp",
            fmt::format("it is {:.6g} s, and frame {} is at {:.6g} s", value, row_, first_time_ + expected));
  }
}

void RowCheck::check_language(const Column& column, const ColumnValues& values, int64_t row) {
  const ColumnValues& rows = values.fields[0];
  const auto field = [&](std::string_view name) -> const ColumnValues* {
    const auto found = std::find(column.fields.begin(), column.fields.end(), name);
    if (found == column.fields.end()) return nullptr;
    const ColumnValues& texts = rows.fields[static_cast<size_t>(found - column.fields.begin())];
    return texts.kind == ColumnKind::kText ? &texts : nullptr;
  };
  const ColumnValues *styles = field("style"), *cameras = field("camera");
  if (styles == nullptr || cameras == nullptr) return;
  for (int64_t i = values.offsets[static_cast<size_t>(row)]; i < values.offsets[static_cast<size_t>(row) + 1]; ++i) {
    const std::string &style = styles->texts[static_cast<size_t>(i)], &camera = cameras->texts[static_cast<size_t>(i)];
    const bool needs = style == "vqa" || style == "trace";
    const Feature* feature = checking_.dataset.info.find(camera);
    if (needs && (camera.empty() || feature == nullptr || !feature->is_picture())) {
      trouble(74, column.name,
              fmt::format("a row of the style {} names no camera of the dataset (\"{}\")", style, camera));
    } else if (!needs && !camera.empty()) {
      trouble(74, column.name, fmt::format("a row of the style \"{}\" names the camera {}", style, camera));
    }
  }
}

void RowCheck::add_motion(const double* values, size_t dim) {
  Motion& motion = motion_;
  if (motion.min.empty()) {
    motion.min.assign(values, values + dim);
    motion.max = motion.min;
    motion.at_min.assign(dim, 0);
    motion.at_max.assign(dim, 0);
    motion.is_binary.assign(dim, 1);
  }
  if (motion.min.size() != dim) return;
  // Chained, so that it depends on the order.
  motion.hash = xxh3_64(std::as_bytes(std::span(values, dim))) ^ (motion.hash * 0x9E3779B97F4A7C15ULL);
  if (still_idle_) {
    const bool moved = !action_before_.empty() && std::memcmp(action_before_.data(), values, dim * sizeof(double)) != 0;
    still_idle_ = !moved;
    if (still_idle_) ++motion.idle_rows;
    if (action_before_.empty()) action_before_.assign(values, values + dim);
  }
  for (size_t i = 0; i < dim; ++i) {
    const auto value = static_cast<float>(values[i]);
    // A third value in between, or beyond what two values spanned before, is no gripper's.
    const bool inside = value > motion.min[i] && value < motion.max[i];
    const bool beyond = (value < motion.min[i] || value > motion.max[i]) && motion.min[i] != motion.max[i];
    if (inside || beyond) motion.is_binary[i] = 0;
    if (value < motion.min[i]) motion.at_min[i] = 0;
    if (value > motion.max[i]) motion.at_max[i] = 0;
    motion.min[i] = std::min(motion.min[i], value);
    motion.max[i] = std::max(motion.max[i], value);
    motion.at_min[i] += value == motion.min[i] ? 1 : 0;
    motion.at_max[i] += value == motion.max[i] ? 1 : 0;
  }
}

void RowCheck::compare_with_stored(const std::string& feature, const Moments& moments) {
  const auto found = checking_.dataset.by_episode.find(feature);
  if (found == checking_.dataset.by_episode.end()) return;
  const EpisodeStats& stored = found->second;
  const auto dim = static_cast<size_t>(stored.dim);
  const size_t begin = static_cast<size_t>(episodes_[at_].position) * dim;
  if (moments.shift.size() != dim || begin + dim > stored.mean.size()) return;
  for (size_t i = 0; i < dim; ++i) {
    const double near = stat_slack(moments.min[i], moments.max[i]);
    for (const auto& [name, have, want] : {std::tuple("min", stored.min[begin + i], moments.min[i]),
                                           std::tuple("max", stored.max[begin + i], moments.max[i]),
                                           std::tuple("mean", stored.mean[begin + i], moments.mean(i))}) {
      if (std::isnan(have) || std::abs(have - want) <= near) continue;
      checking_.report.add(
          58, {.file = path_, .data = {episodes_[at_].episode->index, -1, feature}},
          fmt::format("the stored {} of dimension {} is {:.6g}, that of the rows {:.6g}", name, i, have, want));
      return;
    }
  }
}

void RowCheck::check_tasks_of_episode() {
  const Episode& episode = *episodes_[at_].episode;
  if (tasks_seen_.empty()) return;
  std::set<std::string_view> in_rows;
  for (const int64_t index : tasks_seen_) {
    const bool known = index >= 0 && index < static_cast<int64_t>(checking_.task_texts.size());
    if (known) in_rows.insert(checking_.task_texts[static_cast<size_t>(index)]);
  }
  const std::set<std::string_view> listed(episode.tasks.begin(), episode.tasks.end());
  for (const std::string_view task : listed) {
    if (in_rows.count(task) > 0) continue;
    checking_.report.add(35, episode.place, fmt::format("no row of the episode has the task \"{}\"", task));
    return;
  }
  for (const std::string_view task : in_rows) {
    if (listed.count(task) > 0) continue;
    checking_.report.add(35, episode.place, fmt::format("its rows have the task \"{}\", which its list has not", task));
    return;
  }
}

void check_moments(const Checking& checking, const std::map<std::string, Moments, std::less<>>& moments) {
  if (!checking.dataset.stats) return;
  for (const auto& [feature, counted] : moments) {
    const auto found = checking.dataset.stats->find(feature);
    if (found == checking.dataset.stats->end() || counted.rows == 0) continue;
    const Place place{.file = "meta/stats.json", .data = {.column = feature}};
    for (size_t i = 0; i < counted.shift.size(); ++i) {
      const double near = stat_slack(counted.min[i], counted.max[i]);
      bool told = false;
      for (const auto& [name, want, slack] :
           {std::tuple("min", counted.min[i], near), std::tuple("max", counted.max[i], near),
            std::tuple("mean", counted.mean(i), near),
            std::tuple("std", counted.deviation(i),
                       deviation_slack(counted.min[i], counted.max[i], counted.deviation(i)))}) {
        const auto* stored = found->second.find(name);
        if (stored == nullptr || stored->size() != counted.shift.size() || std::isnan((*stored)[i])) continue;
        if (std::abs((*stored)[i] - want) <= slack) continue;
        checking.report.add(
            58, place,
            fmt::format("the {} of dimension {} is {:.6g}, that of the rows {:.6g}", name, i, (*stored)[i], want));
        told = true;
        break;
      }
      if (told) break;
    }
  }
}

namespace {

// What LR062 says of each episode beside the others.
class MotionCheck {
 public:
  MotionCheck(const Checking& checking, const std::vector<Motion>& motions)
      : checking_(checking), motions_(motions), rate_(checking.dataset.info.frame_rate()) {
    for (const Motion& motion : motions) widen(motion);
  }

  void run() {
    for (const Motion& motion : motions_) {
      const int64_t length = rows_of(motion);
      const auto [first, is_new] = first_with_.emplace(motion.hash, motion.episode);
      if (length <= 1) continue;
      if (!is_new) {
        say(motion, fmt::format("its actions are those of episode {}", first->second));
        continue;
      }
      check_idle(motion, length);
      const size_t dims = length < kFewRows ? 0 : std::min(low_.size(), motion.min.size());
      for (size_t i = 0; i < dims; ++i) check_dimension(motion, i, length);
    }
  }

 private:
  void widen(const Motion& motion) {
    if (low_.empty()) {
      low_ = motion.min;
      high_ = motion.max;
    }
    for (size_t i = 0; i < low_.size() && i < motion.min.size(); ++i) {
      low_[i] = std::min(low_[i], motion.min[i]);
      high_[i] = std::max(high_[i], motion.max[i]);
    }
  }

  int64_t rows_of(const Motion& motion) const {
    const auto position = static_cast<size_t>(motion.episode);
    return position < checking_.dataset.episodes.size() ? checking_.dataset.episodes[position].length : 0;
  }

  void say(const Motion& motion, std::string message) const {
    checking_.report.add(62, {.file = ".", .data = {.episode = motion.episode, .column = "action"}},
                         std::move(message));
  }

  // A second of rest, and a tenth of the episode.
  void check_idle(const Motion& motion, int64_t length) const {
    const double seconds = rate_ > 0 ? static_cast<double>(motion.idle_rows) / rate_ : 0;
    if (seconds < 1 || motion.idle_rows * 10 < length) return;
    say(motion, fmt::format("no action changes in its first {:.1f} s", seconds));
  }

  void check_dimension(const Motion& motion, size_t i, int64_t length) const {
    const float range = high_[i] - low_[i];
    if (range <= 0) return;
    if (motion.min[i] == motion.max[i]) {
      if (motion.idle_rows < length && moves_elsewhere(motion, i, range)) {
        say(motion, fmt::format("dimension {} does not move, and in other episodes it does", i));
      }
      return;
    }
    if (motion.is_binary[i] != 0) return;
    const int64_t clipped =
        (motion.min[i] == low_[i] ? motion.at_min[i] : 0) + (motion.max[i] == high_[i] ? motion.at_max[i] : 0);
    if (clipped * 5 > length) {
      say(motion, fmt::format("dimension {} is at the end of its range in {} of {} rows: clipped", i, clipped, length));
    }
  }

  // A joint that rests in several episodes rests by the task; one that moves in nearly all others is stuck.
  bool moves_elsewhere(const Motion& here, size_t i, float range) const {
    int64_t others = 0, moving = 0;
    for (const Motion& other : motions_) {
      if (&other == &here || i >= other.min.size() || rows_of(other) < kFewRows) continue;
      ++others;
      moving += other.max[i] - other.min[i] > 0.05F * range ? 1 : 0;
    }
    return others >= 2 && moving * 10 >= others * 8;
  }

  static constexpr int64_t kFewRows = 20;  // of which nothing can be said
  const Checking& checking_;
  const std::vector<Motion>& motions_;
  const double rate_;
  std::vector<float> low_, high_;
  std::map<uint64_t, int64_t> first_with_;
};

}  // namespace

void check_motions(const Checking& checking, const std::vector<Motion>& motions) {
  MotionCheck(checking, motions).run();
}

}  // namespace millrace::lerobot
