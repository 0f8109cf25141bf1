// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/compute_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/formats/columns.h"
#include "millrace/lerobot/data_files.h"
#include "millrace/lerobot/kept_numbers.h"
#include "millrace/lerobot/numbers.h"
#include "millrace/lerobot/python_json.h"
#include "millrace/lerobot/quantiles.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kRowsOfPass = 8192;
// More numbers in a row are no vector, and would take more memory than the rows.
constexpr int64_t kMostInVector = 4096;

// One feature: its numbers are given by any thread that holds the lock. Most numbers are float32 whatever their dtype
// says, integers up to 16 million among them; where one is not, the passes begin again with 64 bits.
struct Summary {
  const Feature* feature = nullptr;
  size_t dim = 0;
  bool singles = true;
  bool done = false;                 // changed between passes only
  int passes = 0;                    // that were made
  std::vector<ExactStats> episodes;  // each is written by the one thread that reads its file
  Mutex mutex;
  std::vector<QuantileSelect> selects GUARDED_BY(mutex);  // [dim]

  template <class Number>
  void add(const Number* values, size_t rows) {
    MutexLock lock(mutex);
    for (size_t i = 0; i < dim; ++i) selects[i].add(values + i, rows, dim);
  }
};
using Summaries = std::vector<std::unique_ptr<Summary>>;

// Merges the moments of files in the order of the files, so that threads do not show; keeps only those that came early.
// Thread-safe.
class OrderedMoments {
 public:
  explicit OrderedMoments(size_t features) : all_(features) {}

  void put(int64_t file, std::vector<Moments> moments) {
    MutexLock lock(mutex_);
    early_.emplace(file, std::move(moments));
    for (auto first = early_.begin(); first != early_.end() && first->first == next_;
         first = early_.erase(first), ++next_) {
      for (size_t i = 0; i < all_.size(); ++i) all_[i].merge(first->second[i]);
    }
  }
  std::vector<Moments> take() {
    MutexLock lock(mutex_);
    return std::move(all_);
  }

 private:
  Mutex mutex_;
  int64_t next_ GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::vector<Moments>> early_ GUARDED_BY(mutex_);
  std::vector<Moments> all_ GUARDED_BY(mutex_);
};

// The rows of one feature of one file, cut into episodes as they come.
class EpisodeCutter {
 public:
  EpisodeCutter(const DataFile& file, Summary& summary) : file_(file), summary_(summary) {}

  void add(std::span<const double> numbers) {
    const size_t dim = summary_.dim;
    while (!numbers.empty() && at_ < file_.episodes.size()) {
      const EpisodeRows& here = file_.episodes[at_];
      const auto wanted = static_cast<size_t>(here.episode->length) * dim - held_.size();
      const size_t taken = std::min(wanted, numbers.size());
      held_.insert(held_.end(), numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(taken));
      numbers = numbers.subspan(taken);
      if (taken < wanted) return;
      summary_.episodes[static_cast<size_t>(here.position)] = number_stats(held_, static_cast<int64_t>(dim));
      held_.clear();
      ++at_;
    }
  }

 private:
  const DataFile& file_;
  Summary& summary_;
  size_t at_ = 0;
  std::vector<double> held_;  // of the episode at_
};

class StatPasses {
 public:
  StatPasses(const Dataset& dataset, const StatsOptions& options, Summaries& summaries)
      : dataset_(dataset),
        options_(options),
        files_(data_files(dataset)),
        summaries_(summaries),
        budget_(options.kept_bytes),
        kept_(files_.size()) {}

  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  int64_t files_read() const { return files_read_.load(); }

  // Goes over all files for the features that are not done; `moments` are for the first pass, null in others.
  Status run(Executor& executor, OrderedMoments* moments) {
    return parallel_try(executor, files(), [&](int64_t i) -> Status {
      Status done = moments != nullptr ? first_pass(i, *moments) : later_pass(static_cast<size_t>(i));
      if (options_.progress != nullptr) options_.progress->add(0, 1);
      return done;
    });
  }

 private:
  using Visit = std::function<Status(size_t feature, std::span<const double> numbers)>;

  Status first_pass(int64_t number, OrderedMoments& moments) {
    const DataFile& file = files_[static_cast<size_t>(number)];
    std::vector<Moments> of_file(summaries_.size());
    KeptNumbers kept(summaries_.size(), budget_);
    std::vector<EpisodeCutter> cutters;
    if (options_.by_episode) {
      for (const auto& summary : summaries_) cutters.emplace_back(file, *summary);
    }
    RETURN_IF_ERROR(scan(file, [&](size_t feature, std::span<const double> numbers) -> Status {
      Summary& summary = *summaries_[feature];
      const size_t rows = numbers.size() / summary.dim;
      of_file[feature].add(numbers.data(), summary.dim, rows);
      if (!cutters.empty()) cutters[feature].add(numbers);
      summary.add(numbers.data(), rows);
      kept.add(feature, numbers);
      return {};
    }));
    if (options_.by_episode && of_file.front().rows != file.rows) {
      return fail(ErrorCode::kCorruption, "{}: it has {} rows, and its episodes {} (LR018)", file.path,
                  of_file.front().rows, file.rows);
    }
    moments.put(number, std::move(of_file));
    kept_[static_cast<size_t>(number)] = std::move(kept);
    return {};
  }

  Status later_pass(size_t number) {
    const KeptNumbers& kept = kept_[number];
    if (!kept.is_whole()) {
      return scan(files_[number], [&](size_t feature, std::span<const double> numbers) -> Status {
        summaries_[feature]->add(numbers.data(), numbers.size() / summaries_[feature]->dim);
        return {};
      });
    }
    for (size_t i = 0; i < summaries_.size(); ++i) {
      if (options_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      Summary& summary = *summaries_[i];
      if (summary.done) continue;
      kept.visit(i, [&](const auto* values, size_t count) { summary.add(values, count / summary.dim); });
    }
    return {};
  }

  // Gives all rows of the features that are not done, some thousands at a time.
  Status scan(const DataFile& file, const Visit& visit) {
    ++files_read_;
    ASSIGN_OR_RETURN(const auto reader, dataset_.tree.open(file.path));
    ASSIGN_OR_RETURN(const auto table, formats::open_columns(*reader));
    std::vector<std::string> columns;
    std::vector<size_t> which;
    for (size_t i = 0; i < summaries_.size(); ++i) {
      if (summaries_[i]->done) continue;
      columns.push_back(summaries_[i]->feature->name);
      which.push_back(i);
    }
    std::vector<double> storage;
    return table->scan(columns, kRowsOfPass, [&](int64_t row, auto values) -> Status {
      if (options_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      for (size_t i = 0; i < which.size(); ++i) {
        const Summary& summary = *summaries_[which[i]];
        const bool is_mended = summary.feature->name == "timestamp" && options_.mended_clocks != nullptr &&
                               options_.mended_clocks->contains(file.path);
        const std::span<const double> numbers = is_mended ? mended_times(file, row, values[i].rows, storage)
                                                          : numbers_of_rows(values[i], summary.dim, storage);
        const bool whole = numbers.size() == static_cast<size_t>(values[i].rows) * summary.dim;
        const bool finite = std::all_of(numbers.begin(), numbers.end(), [](double v) { return std::isfinite(v); });
        if (!whole || !finite) return explain(summary, values[i], file.path, row);
        RETURN_IF_ERROR(visit(which[i], numbers));
      }
      return {};
    });
  }

  std::span<const double> mended_times(const DataFile& file, int64_t first_row, int64_t rows,
                                       std::vector<double>& storage) const {
    storage.clear();
    for (const EpisodeRows& each : file.episodes) {
      const int64_t end = std::min(first_row + rows, each.first_row + each.episode->length);
      for (int64_t row = std::max(first_row, each.first_row); row < end; ++row) {
        storage.push_back(frame_time(row - each.first_row, dataset_.info.frame_rate()));
      }
    }
    return storage;
  }

  // The error of the first row that cannot be counted. REQUIRES: there is one.
  static Status explain(const Summary& summary, const formats::ColumnValues& values, const std::string& path,
                        int64_t first_row) {
    std::vector<double> numbers;
    int64_t row = 0;
    bool finite = true;
    for (; row < values.rows; ++row) {
      numbers.clear();
      append_numbers(values, row, numbers);
      finite = std::all_of(numbers.begin(), numbers.end(), [](double value) { return std::isfinite(value); });
      if (numbers.size() != summary.dim || !finite) break;
    }
    return fail(
        ErrorCode::kCorruption, "{}: row {} of {} {}; `millrace lerobot validate` finds all such rows", path,
        first_row + row, summary.feature->name,
        finite ? fmt::format("has {} numbers and not {}", numbers.size(), summary.dim) : "is null, or not finite");
  }

  const Dataset& dataset_;
  const StatsOptions& options_;
  const std::vector<DataFile> files_;
  Summaries& summaries_;
  std::atomic<int64_t> budget_;
  std::vector<KeptNumbers> kept_;  // of each file; written in the first pass by the thread that reads the file
  std::atomic<int64_t> files_read_ = 0;
};

void start_selects(Summary& summary) REQUIRES_LOCK(summary.mutex) {
  summary.passes = 0;
  summary.selects.clear();
  summary.selects.reserve(summary.dim);
  for (size_t i = 0; i < summary.dim; ++i) summary.selects.emplace_back(kStatQuantiles, summary.singles);
}

Summaries summaries_of(const Dataset& dataset, const StatsOptions& options, std::vector<std::string>& left_out) {
  Summaries summaries;
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_numeric() || (options.groot && !feature.is_float())) continue;
    if (feature.size() <= 0 || feature.size() > kMostInVector) {
      left_out.push_back(fmt::format("{}: {} numbers in a row", feature.name, feature.size()));
      continue;
    }
    Summary& summary = *summaries.emplace_back(std::make_unique<Summary>());
    summary.feature = &feature;
    summary.dim = static_cast<size_t>(feature.size());
    if (options.by_episode) summary.episodes.resize(dataset.episodes.size());
    MutexLock lock(summary.mutex);
    start_selects(summary);
  }
  return summaries;
}

// Behind a pass.
void advance(Summary& summary) {
  if (summary.done) return;
  MutexLock lock(summary.mutex);
  const bool exact =
      std::all_of(summary.selects.begin(), summary.selects.end(), [](const auto& s) { return s.exact(); });
  if (!exact) {
    summary.singles = false;
    return start_selects(summary);
  }
  for (QuantileSelect& select : summary.selects) select.end_pass();
  summary.done = ++summary.passes == summary.selects.front().passes();
}

bool all_done(const Summaries& summaries) {
  return std::all_of(summaries.begin(), summaries.end(), [](const auto& summary) { return summary->done; });
}

ComputedStats::OfFeature finished(Summary& summary, const Moments& moments) {
  ComputedStats::OfFeature out{.name = summary.feature->name, .dtype = summary.feature->dtype, .stats = {}};
  out.episodes = std::move(summary.episodes);
  out.stats.count = moments.rows;
  out.stats.values[0] = moments.min;
  out.stats.values[1] = moments.max;
  MutexLock lock(summary.mutex);
  for (size_t i = 0; i < summary.dim; ++i) {
    out.stats.values[2].push_back(moments.mean(i));
    out.stats.values[3].push_back(moments.deviation(i));
    const std::vector<double> results = summary.selects[i].results();
    for (size_t q = 0; q < results.size(); ++q) out.stats.values[kFirstQuantile + q].push_back(results[q]);
  }
  return out;
}

Status check_lengths(const Dataset& dataset) {
  for (const Episode& episode : dataset.episodes) {
    if (episode.length > 0) continue;
    return fail(ErrorCode::kCorruption, "{}: episode {} has {} rows (LR016)", dataset.tree.root().url, episode.index,
                episode.length);
  }
  return {};
}

}  // namespace

const ComputedStats::OfFeature* ComputedStats::find(std::string_view name) const {
  const auto found = std::ranges::find(features, name, &OfFeature::name);
  return found == features.end() ? nullptr : &*found;
}

Result<ComputedStats> compute_stats(const Dataset& dataset, const StatsOptions& options) {
  const std::string& url = dataset.tree.root().url;
  ComputedStats out;
  Summaries summaries = summaries_of(dataset, options, out.left_out);
  StatPasses passes(dataset, options, summaries);
  out.files = passes.files();
  if (out.files == 0 || summaries.empty()) {
    return fail(ErrorCode::kCorruption,
                "{}: no table of numbers is named by its metadata; `millrace lerobot validate` says why", url);
  }
  if (options.by_episode) RETURN_IF_ERROR(check_lengths(dataset));
  OrderedMoments moments(summaries.size());
  if (options.progress != nullptr) options.progress->set_totals(0, 2 * out.files);
  Executor executor(threads_for(dataset.tree, options.threads), "mr-lerobot");
  for (bool first = true; !all_done(summaries); first = false) {
    RETURN_IF_ERROR(with_context(passes.run(executor, first ? &moments : nullptr), url));
    for (const auto& summary : summaries) advance(*summary);
    const bool longer = std::any_of(summaries.begin(), summaries.end(), [](const auto& s) { return !s->singles; });
    if (options.progress != nullptr && longer) options.progress->set_totals(0, 5 * out.files);
  }
  out.files_read = passes.files_read();
  const std::vector<Moments> all = moments.take();
  for (size_t i = 0; i < summaries.size(); ++i) {
    if (all[i].rows == 0) return fail(ErrorCode::kCorruption, "{}: its tables have no rows", url);
    out.rows = all[i].rows;
    out.features.push_back(finished(*summaries[i], all[i]));
  }
  return out;
}

std::string stats_json(const ComputedStats& stats, bool groot) {
  Json all = Json::object();
  for (const auto& feature : stats.features) {
    if (groot && !feature.dtype.starts_with("float")) continue;
    all[feature.name] = groot ? groot_stats_json(feature.stats) : stats_json(feature.stats);
  }
  return all.dump(4) + "\n";
}

}  // namespace millrace::lerobot
