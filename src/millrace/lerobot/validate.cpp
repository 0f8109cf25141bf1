// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/validate.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millrace/base/text/strings.h"
#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/stats.h"

namespace millrace::lerobot {
namespace {

// A statistic of a million episodes has 4 GB as text; nothing else in meta/ comes near.
constexpr int64_t kMostText = int64_t{8} << 30;
constexpr int64_t kMostInfo = 64 << 20;
constexpr std::string_view kIgnoreFile = ".millrace-ignore";

// The text of a file of meta/, if it is there and is no pointer.
Result<std::optional<std::string>> text_of(const Tree& tree, std::string_view path, int64_t limit) {
  if (tree.find(path) == nullptr) return std::nullopt;
  ASSIGN_OR_RETURN(std::string text, tree.read(path, limit));
  if (text.starts_with("version https://git-lfs")) return std::nullopt;
  return std::optional(std::move(text));
}

Status read_lines(Dataset& dataset, Report& report, std::string_view path,
                  void (*parse)(std::string_view, Dataset&, Report&)) {
  ASSIGN_OR_RETURN(const auto text, text_of(dataset.tree, path, kMostText));
  if (text) parse(*text, dataset, report);
  return {};
}

// By what is there: a tree may be another version than it says.
Status read_lists(Dataset& dataset, Report& report, StatsOfEpisodes stats) {
  const bool lines = dataset.tree.find("meta/episodes.jsonl") != nullptr;
  const bool tables = !dataset.tree.below("meta/episodes/").empty();
  if (lines && (is_v2(dataset.info.version) || !tables)) {
    RETURN_IF_ERROR(read_lines(dataset, report, "meta/episodes.jsonl", parse_episodes));
    if (stats == StatsOfEpisodes::kRead) {
      RETURN_IF_ERROR(read_lines(dataset, report, "meta/episodes_stats.jsonl", parse_episode_stats));
    }
  } else if (tables) {
    RETURN_IF_ERROR(read_episode_tables(dataset, report, stats));
  }
  const bool task_lines = dataset.tree.find("meta/tasks.jsonl") != nullptr;
  const bool task_table = dataset.tree.find("meta/tasks.parquet") != nullptr;
  if (task_lines && (is_v2(dataset.info.version) || !task_table))
    return read_lines(dataset, report, "meta/tasks.jsonl", parse_tasks);
  if (task_table) return read_task_table(dataset, report);
  report.add(34, {.file = "meta"}, "neither tasks.jsonl nor tasks.parquet is there", {}, Severity::kError);
  return {};
}

Status read_stats(Dataset& dataset, Report& report) {
  const Place place{.file = "meta/stats.json"};
  ASSIGN_OR_RETURN(const auto text, text_of(dataset.tree, place.file, kMostInfo));
  if (!text) return {};
  const Result<Json> json = parse_python_json(*text);
  if (!json) {
    report.add(55, place, json.error().message());
  } else {
    dataset.stats = parse_stats(*json, place, report);
  }
  return {};
}

// "LR013, LR047 -- why" in each line of .millrace-ignore, for the whole dataset.
Result<std::vector<Suppression>> read_suppressions(const Tree& tree, const std::vector<std::string>& flags) {
  std::vector<Suppression> all;
  const auto add = [&](std::string_view text, int64_t line) {
    const size_t begin = text.find_first_not_of(" \t#");
    if (begin == text.npos) return;
    auto parsed = parse_suppression("# millrace: ignore-file " + std::string(text.substr(begin)), line, 1, true);
    if (parsed) all.push_back(*std::move(parsed));
  };
  for (const std::string& flag : flags) add(flag, 0);
  ASSIGN_OR_RETURN(const auto text, text_of(tree, kIgnoreFile, 1 << 20));
  if (text) for_each_line(*text, [&](int64_t number, std::string_view line) { add(line, number); });
  return all;
}

// Such a set has LeRobot's meta/, and its frames in tables of Lance.
Status refuse_lance(const Info& info, const std::string& url) {
  if (!equal_ignoring_case(info.storage_format, "lance")) return {};
  return fail(
      ErrorCode::kUnsupported,
      "{}: its frames are stored in Lance tables (\"storage_format\": \"{}\" in meta/info.json), which Millrace "
      "does not read; use the Parquet and MP4 dataset that it was converted from, or read it with LeRobot's own "
      "class and record it again from there",
      url, info.storage_format);
}

Status run_checks(Checking& checking, Validation& result) {
  const Dataset& dataset = checking.dataset;
  RETURN_IF_ERROR(check_tree(dataset.tree, checking.report, checking.pointers));
  check_episodes(checking);
  check_stats(checking);
  RETURN_IF_ERROR(check_groot(checking));
  VideoCounts videos;
  RETURN_IF_ERROR(check_videos(checking, videos));
  result.videos = videos.read;
  result.videos_decoded = videos.decoded;
  return check_data_files(checking);
}

}  // namespace

Result<Dataset> read_dataset(const Location& root, Report& report, StatsOfEpisodes stats) {
  ASSIGN_OR_RETURN(Tree tree, Tree::list(root));
  return read_dataset(std::move(tree), report, stats);
}

Result<Dataset> read_dataset(Tree tree, Report& report, StatsOfEpisodes stats) {
  Dataset dataset;
  dataset.tree = std::move(tree);
  ASSIGN_OR_RETURN(const auto text, text_of(dataset.tree, kInfoFile, kMostInfo));
  if (!text) {
    const bool old = dataset.tree.find("meta_data/info.json") != nullptr;
    report.add(1, {.file = std::string(kInfoFile)},
               old ? "the file is missing; meta_data/info.json is that of v1.6, which LeRobot's converter of November "
                     "2024 reads"
                   : "the file is missing, or a Git LFS pointer");
    return dataset;
  }
  dataset.info = parse_info(*text, report);
  RETURN_IF_ERROR(refuse_lance(dataset.info, dataset.tree.root().url));
  if (dataset.info.version == Version::kUnknown) {
    dataset.info.version = dataset.tree.find("meta/episodes.jsonl") != nullptr ? Version::kV21 : Version::kV30;
  }
  RETURN_IF_ERROR(read_lists(dataset, report, stats));
  RETURN_IF_ERROR(read_stats(dataset, report));
  return dataset;
}

Result<Validation> validate_dataset(const Location& root, const ValidateOptions& options) {
  Report report(options.most_per_rule);
  ASSIGN_OR_RETURN(const Dataset dataset, read_dataset(root, report));
  Executor executor(threads_for(dataset.tree, options.threads), "mr-lerobot");
  Checking checking{dataset, options, report, executor, {}, texts_by_index(dataset)};
  Validation result;
  if (options.progress != nullptr) options.progress->set_totals(0, static_cast<int64_t>(dataset.tree.files().size()));
  if (dataset.tree.find(kInfoFile) != nullptr) {
    RETURN_IF_ERROR(run_checks(checking, result));
  } else {
    RETURN_IF_ERROR(check_tree(dataset.tree, report, checking.pointers));
  }
  result.version = dataset.info.version_text;
  result.episodes = static_cast<int64_t>(dataset.episodes.size());
  result.frames = dataset.frames();
  result.files = static_cast<int64_t>(dataset.tree.files().size());
  result.findings = report.take();
  ASSIGN_OR_RETURN(const std::vector<Suppression> suppressions, read_suppressions(dataset.tree, options.ignore));
  apply_suppressions(result.findings, suppressions, dataset_rules(), kIgnoreFile);
  return result;
}

}  // namespace millrace::lerobot
