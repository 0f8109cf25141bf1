// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/info.h"
#include "millrace/lerobot/validate.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kMostJson = 16 << 20;

bool is_open_error(const Finding& finding) {
  return finding.severity() == Severity::kError && !finding.suppressed_because;
}

Result<Json> read_json(const Tree& tree, std::string_view path) {
  ASSIGN_OR_RETURN(const std::string text, tree.read(path, kMostJson));
  return with_context(parse_python_json(text), fmt::format("{}/{}", tree.root().url, path));
}

Status check_episodes_listed(const Source& source) {
  const auto& episodes = source.dataset.episodes;
  if (episodes.empty()) return fail(ErrorCode::kCorruption, "{}: it has no episodes", source.url());
  for (size_t i = 0; i < episodes.size(); ++i) {
    if (episodes[i].index != static_cast<int64_t>(i)) {
      return fail(ErrorCode::kCorruption, "{}: episode {} is listed where {} belongs [LR015]", source.url(),
                  episodes[i].index, i);
    }
    if (episodes[i].length <= 0) {
      return fail(ErrorCode::kCorruption, "{}: episode {} has no frames [LR016]", source.url(), i);
    }
    if (source.is_v3() && episodes[i].videos.size() != source.dataset.info.cameras().size()) {
      return fail(ErrorCode::kCorruption, "{}: episode {} lacks columns of its videos", source.url(), i);
    }
  }
  return {};
}

Status number_tasks(Source& source) {
  const auto& tasks = source.dataset.tasks;
  std::vector<bool> seen(tasks.size());
  source.tasks.resize(tasks.size());
  for (const Task& task : tasks) {
    const auto place = static_cast<size_t>(task.index);
    if (task.index < 0 || place >= tasks.size() || seen[place]) {
      return fail(ErrorCode::kCorruption, "{}: the numbers of its {} tasks are not 0 to {}, each once [LR032]",
                  source.url(), tasks.size(), static_cast<int64_t>(tasks.size()) - 1);
    }
    seen[place] = true;
    source.tasks[place] = task.text;
  }
  return {};
}

void count_files(Source& source) {
  for (size_t i = 0; i < source.dataset.episodes.size(); ++i) {
    const Episode& episode = source.episode(i);
    const std::string data = source.data_path(i);
    const auto known = source.first_rows.emplace(data, episode.from_row).first;
    known->second = std::min(known->second, episode.from_row);
    source.file_frames[data] += episode.length;
    for (size_t camera = 0; camera < source.dataset.info.cameras().size(); ++camera) {
      source.file_frames[source.video_path(i, camera)] += episode.length;
    }
  }
}

}  // namespace

Result<std::unique_ptr<Source>> Source::open(const Location& root, StatsOfEpisodes stats) {
  ASSIGN_OR_RETURN(Tree tree, Tree::list(root));
  return open(std::move(tree), stats);
}

Result<std::unique_ptr<Source>> Source::open(Tree tree, StatsOfEpisodes stats) {
  auto source = std::make_unique<Source>();
  Report problems(0);
  ASSIGN_OR_RETURN(source->dataset, read_dataset(std::move(tree), problems, stats));
  RETURN_IF_ERROR(refuse_errors(problems.take(), source->url(), {}));
  ASSIGN_OR_RETURN(source->info, read_json(source->dataset.tree, kInfoFile));
  if (source->dataset.tree.find(kModalityFile) != nullptr) {
    ASSIGN_OR_RETURN(source->modality, read_json(source->dataset.tree, kModalityFile));
  }
  RETURN_IF_ERROR(check_episodes_listed(*source));
  RETURN_IF_ERROR(number_tasks(*source));
  count_files(*source);
  return source;
}

std::string Source::data_path(size_t number) const {
  return dataset.data_file(episode(number)).value_or("");
}

int64_t Source::first_row(size_t number) const {
  return is_v3() ? episode(number).from_row - first_rows.find(data_path(number))->second : 0;
}

std::string Source::video_path(size_t number, size_t camera) const {
  return dataset.video_file(episode(number), camera, dataset.info.cameras()[camera]->name).value_or("");
}

size_t Source::camera(std::string_view name) const {
  const auto cameras = dataset.info.cameras();
  const auto found = std::ranges::find_if(cameras, [&](const Feature* camera) { return camera->name == name; });
  return static_cast<size_t>(found - cameras.begin());
}

double Source::bytes_in(const std::string& path, size_t number) const {
  const TreeFile* const file = dataset.tree.find(path);
  const auto frames = file_frames.find(path);
  if (file == nullptr || frames == file_frames.end()) return 0;
  return static_cast<double>(file->size) * static_cast<double>(episode(number).length) /
         static_cast<double>(frames->second);
}

Status refuse_errors(const std::vector<Finding>& findings, std::string_view whose,
                     const std::vector<std::string>& known) {
  const auto first = std::ranges::find_if(findings, [&](const Finding& finding) {
    return is_open_error(finding) && std::ranges::find(known, finding.rule->id) == known.end();
  });
  if (first == findings.end()) return {};
  return fail(ErrorCode::kCorruption, "{}: {}: {} [{}]; `millrace lerobot validate` says more", whose,
              first->file.empty() ? "meta" : first->file, first->message, first->rule->id);
}

std::vector<std::string> rules_in_error(const std::vector<Finding>& findings) {
  std::vector<std::string> rules;
  for (const Finding& finding : findings) {
    if (is_open_error(finding)) rules.emplace_back(finding.rule->id);
  }
  std::ranges::sort(rules);
  const auto repeated = std::ranges::unique(rules);
  rules.erase(repeated.begin(), repeated.end());
  return rules;
}

}  // namespace millrace::lerobot
