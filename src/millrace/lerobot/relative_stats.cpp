// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/relative_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "millrace/base/thread/executor.h"
#include "millrace/formats/columns.h"
#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/data_files.h"
#include "millrace/lerobot/numbers.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kRelativeRows = 8192;

struct Chosen {
  Group action, state;
  int64_t dim() const { return action.end - action.start; }
};

// The numbers of one group, of each episode [length, dim].
using Episodes = std::vector<std::vector<double>>;
struct Values {
  Episodes actions, states;
};

const Group* find_group(const std::vector<Group>& groups, std::string_view kind, std::string_view name) {
  const auto found = std::ranges::find_if(groups, [&](const Group& g) { return g.kind == kind && g.name == name; });
  return found == groups.end() ? nullptr : &*found;
}

// Why a pair has no statistics; empty: it has.
std::string refusal(const Dataset& dataset, const Group& action, const Group& state) {
  for (const Group* group : {&action, &state}) {
    const Feature* const feature = dataset.info.find(group->column);
    if (feature == nullptr || !feature->is_numeric()) return fmt::format("there is no column {}", group->column);
    if (group->start < 0 || group->end <= group->start || group->end > feature->size()) {
      return fmt::format("[{}, {}) lies outside of {}", group->start, group->end, group->column);
    }
    if (!group->rotation.empty()) return "it is a rotation, whose differences are no subtraction";
  }
  if (action.end - action.start == state.end - state.start) return {};
  return fmt::format("it has {} numbers, and its state {}", action.end - action.start, state.end - state.start);
}

Result<std::vector<Chosen>> choose_pairs(const Dataset& dataset, const std::vector<RelativePair>& pairs) {
  const std::vector<Group> groups = read_groups(dataset.tree);
  std::vector<Chosen> chosen;
  for (const RelativePair& pair : pairs) {
    const Group* const action = find_group(groups, "action", pair.action);
    const Group* const state = find_group(groups, "state", pair.state);
    if (action == nullptr || state == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "meta/modality.json has no group {} of {}",
                  action == nullptr ? pair.action : pair.state, action == nullptr ? "actions" : "states");
    }
    const std::string reason = refusal(dataset, *action, *state);
    if (!reason.empty()) return fail(ErrorCode::kInvalidArgument, "action.{}: {}", pair.action, reason);
    chosen.push_back({*action, *state});
  }
  for (const Group& action : groups) {
    if (!pairs.empty() || action.kind != "action") continue;
    const Group* const state = find_group(groups, "state", action.name);
    if (state != nullptr && refusal(dataset, action, *state).empty()) chosen.push_back({action, *state});
  }
  if (chosen.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "meta/modality.json has no group of actions with a group of states of the same name and width");
  }
  return chosen;
}

class PairReader {
 public:
  PairReader(const Dataset& dataset, const std::vector<Chosen>& chosen, const StatsOptions& options)
      : dataset_(dataset), chosen_(chosen), options_(options), values_(chosen.size()) {
    for (Values& each : values_) {
      each.actions.resize(dataset.episodes.size());
      each.states.resize(dataset.episodes.size());
    }
    for (const Chosen& each : chosen) {
      for (const Group* group : {&each.action, &each.state}) {
        if (std::ranges::find(columns_, group->column) == columns_.end()) columns_.push_back(group->column);
      }
    }
  }

  Result<std::vector<Values>> read() {
    const std::vector<DataFile> files = data_files(dataset_);
    RETURN_IF_ERROR(parallel_try(static_cast<int64_t>(files.size()), threads_for(dataset_.tree, options_.threads),
                                 "mr-lerobot", [&](int64_t i) { return read_file(files[static_cast<size_t>(i)]); }));
    return std::move(values_);
  }

 private:
  Status read_file(const DataFile& file) {
    ASSIGN_OR_RETURN(const auto reader, dataset_.tree.open(file.path));
    ASSIGN_OR_RETURN(const auto table, formats::open_columns(*reader));
    if (table->footer().rows != file.rows) {
      return fail(ErrorCode::kCorruption, "{}: it has {} rows, and its episodes {} (LR018)", file.path,
                  table->footer().rows, file.rows);
    }
    std::vector<double> storage;
    return table->scan(columns_, kRelativeRows, [&](int64_t first_row, auto values) -> Status {
      if (options_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      for (size_t c = 0; c < columns_.size(); ++c) {
        const auto dim = static_cast<size_t>(dataset_.info.find(columns_[c])->size());
        const std::span<const double> numbers = numbers_of_rows(values[c], dim, storage);
        const bool finite = std::ranges::all_of(numbers, [](double value) { return std::isfinite(value); });
        if (numbers.size() != static_cast<size_t>(values[c].rows) * dim || !finite) {
          return fail(
              ErrorCode::kCorruption,
              "{}: rows {} to {} of {} are not all {} finite numbers; `millrace lerobot validate` names the row",
              file.path, first_row, first_row + values[c].rows - 1, columns_[c], dim);
        }
        cut(file, first_row, numbers, dim, columns_[c]);
      }
      return {};
    });
  }

  // Gives each group its part of the rows, by episode.
  void cut(const DataFile& file, int64_t first_row, std::span<const double> numbers, size_t dim,
           const std::string& column) {
    const int64_t end_row = first_row + static_cast<int64_t>(numbers.size() / dim);
    for (const EpisodeRows& each : file.episodes) {
      const int64_t begin = std::max(first_row, each.first_row);
      const int64_t end = std::min(end_row, each.first_row + each.episode->length);
      for (int64_t row = begin; row < end; ++row) {
        const double* const values = numbers.data() + static_cast<size_t>(row - first_row) * dim;
        for (size_t g = 0; g < chosen_.size(); ++g) {
          const auto position = static_cast<size_t>(each.position);
          append(chosen_[g].action, column, values, values_[g].actions[position]);
          append(chosen_[g].state, column, values, values_[g].states[position]);
        }
      }
    }
  }

  static void append(const Group& group, const std::string& column, const double* row, std::vector<double>& out) {
    if (group.column == column) out.insert(out.end(), row + group.start, row + group.end);
  }

  const Dataset& dataset_;
  const std::vector<Chosen>& chosen_;
  const StatsOptions& options_;
  std::vector<std::string> columns_;
  std::vector<Values> values_;  // of each pair; an episode's are written by the one thread that reads its file
};

// All windows' actions at one step, less the state of their first row: [windows, dim].
ExactStats stats_at(const Values& values, int64_t horizon, int64_t step, int64_t dim) {
  std::vector<double> differences;
  for (size_t e = 0; e < values.actions.size(); ++e) {
    const auto length = static_cast<int64_t>(values.actions[e].size()) / dim;
    for (int64_t begin = 0; begin + horizon <= length; ++begin) {
      for (int64_t i = 0; i < dim; ++i) {
        differences.push_back(values.actions[e][static_cast<size_t>((begin + step) * dim + i)] -
                              values.states[e][static_cast<size_t>(begin * dim + i)]);
      }
    }
  }
  return number_stats(differences, dim);
}

}  // namespace

Result<std::vector<RelativeStats>> relative_stats(const Dataset& dataset, int64_t horizon,
                                                  const std::vector<RelativePair>& pairs, const StatsOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Chosen> chosen, choose_pairs(dataset, pairs));
  int64_t windows = 0;
  for (const Episode& episode : dataset.episodes) windows += std::max<int64_t>(0, episode.length - horizon + 1);
  if (windows == 0) return fail(ErrorCode::kInvalidArgument, "no episode has {} rows", horizon);
  ASSIGN_OR_RETURN(const std::vector<Values> values, PairReader(dataset, chosen, options).read());
  std::vector<RelativeStats> all;
  for (const Chosen& each : chosen) {
    all.push_back({each.action.name, each.dim(), windows, std::vector<ExactStats>(static_cast<size_t>(horizon))});
  }
  const auto tasks = static_cast<int64_t>(chosen.size()) * horizon;
  RETURN_IF_ERROR(
      parallel_try(tasks, threads_for(dataset.tree, options.threads), "mr-lerobot", [&](int64_t i) -> Status {
        if (options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
        const auto group = static_cast<size_t>(i / horizon);
        all[group].steps[static_cast<size_t>(i % horizon)] =
            stats_at(values[group], horizon, i % horizon, all[group].dim);
        return {};
      }));
  return all;
}

std::string relative_stats_json(const std::vector<RelativeStats>& stats) {
  Json all = Json::object();
  for (const RelativeStats& group : stats) {
    Json& entry = all[group.group];
    for (const size_t i : {1, 0, 4, 8, 2, 3}) {  // GR00T's order: max, min, q01, q99, mean, std
      Json matrix = Json::array();
      for (const ExactStats& step : group.steps) matrix.push_back(step.values[i]);
      entry[std::string(kStatNames[i])] = std::move(matrix);
    }
  }
  return all.dump(4) + "\n";
}

}  // namespace millrace::lerobot
