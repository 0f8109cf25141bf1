// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/lerobot/diff.h"

namespace millrace::cli {

namespace {

using lerobot::DatasetDiff;

struct DatasetDiffArgs {
  std::string a, b;
  bool frames = false;
};

std::string dataset_line(std::string_view name, const DatasetDiff::Side& side) {
  return fmt::format("{}: {}, LeRobot {}: {}, {}\n", name, printable(side.url), printable(side.version),
                     counted(side.episodes, "episode"), counted(side.frames, "frame"));
}

template <class T>
std::string value_or_dash(const std::optional<T>& value) {
  return value ? printable(fmt::format("{}", *value), 100) : std::string("-");
}

std::string number_or_dash(const std::optional<double>& value) {
  return value ? fmt::format("{:.6g}", *value) : std::string("-");
}

std::string table_under(std::string_view title, const TextTable& table) {
  return table.empty() ? std::string() : fmt::format("\n{}\n{}", title, table.to_string());
}

std::string metadata_differences(const DatasetDiff& diff) {
  TextTable info({{"key"}, {"A"}, {"B"}}), tasks({{"task_index in A", true}, {"in B", true}, {"task"}});
  TextTable episodes({{"episode", true}, {"frames in A", true}, {"in B", true}, {"tasks"}});
  for (const auto& each : diff.info) info.add({each.key, value_or_dash(each.a), value_or_dash(each.b)});
  for (const auto& each : diff.tasks)
    tasks.add({value_or_dash(each.a), value_or_dash(each.b), printable(each.task, 100)});
  for (const auto& each : diff.episodes) {
    episodes.add(
        {std::to_string(each.episode), value_or_dash(each.a), value_or_dash(each.b), each.other_tasks ? "differ" : ""});
  }
  return table_under("meta/info.json", info) + table_under("Tasks", tasks) + table_under("Episodes", episodes);
}

std::string content_differences(const DatasetDiff& diff) {
  TextTable features(
      {{"feature"}, {"rows", true}, {"differ", true}, {"first: episode", true}, {"row", true}, {"largest", true}});
  TextTable stats({{"feature"}, {"statistic"}, {"differ in", true}, {"first episode", true}, {"largest", true}});
  TextTable cameras({{"camera"},
                     {"frames", true},
                     {"differ", true},
                     {"first: episode", true},
                     {"frame", true},
                     {"largest", true},
                     {"size"}});
  for (const auto& each : diff.features) {
    if (each.differ == 0) continue;
    features.add({each.name, format_count(each.rows), format_count(each.differ), std::to_string(each.first_episode),
                  std::to_string(each.first_row), number_or_dash(each.largest)});
  }
  for (const auto& each : diff.stats) {
    stats.add({each.feature, each.statistic, each.of_episodes ? counted(each.differ, "episode") : "dataset",
               each.of_episodes ? std::to_string(each.first_episode) : "", number_or_dash(each.largest)});
  }
  for (const auto& each : diff.cameras) {
    if (each.differ == 0) continue;
    const std::string sizes = each.size_a.empty() ? "" : fmt::format("{} in A, {} in B", each.size_a, each.size_b);
    cameras.add({each.name, format_count(each.frames), format_count(each.differ), std::to_string(each.first_episode),
                 std::to_string(each.first_frame), sizes.empty() ? std::to_string(each.largest) : "-", sizes});
  }
  return table_under("Rows of episodes that both have", features) + table_under("Statistics", stats) +
         table_under("Frames", cameras);
}

std::string dataset_diff_text(const DatasetDiff& diff) {
  std::string text =
      dataset_line("A", diff.a) + dataset_line("B", diff.b) + metadata_differences(diff) + content_differences(diff);
  for (const std::string& sentence : diff.not_compared) text += fmt::format("not compared: {}\n", printable(sentence));
  int64_t rows = 0, frames = 0, decoded = 0;
  for (const auto& each : diff.features) rows = std::max(rows, each.rows);
  for (const auto& each : diff.cameras) {
    frames += each.frames;
    decoded += each.decoded;
  }
  std::string compared = counted(rows, "row");
  if (!diff.cameras.empty()) {
    compared += fmt::format(", {} of videos ({} decoded, the others in files of equal bytes)", counted(frames, "frame"),
                            format_count(decoded));
  }
  const int64_t differences = diff.differences();
  return text + fmt::format("{}{}; compared: {}\n", text.back() == '\n' ? "" : "\n",
                            differences == 0 ? std::string("equal") : counted(differences, "difference"), compared);
}

Status run_dataset_diff(const DatasetDiffArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location a, open_url(args.a));
  ASSIGN_OR_RETURN(const Location b, open_url(args.b));
  Progress progress;
  auto view = context.out.watch(progress, "lerobot diff");
  const auto diff = lerobot::diff_datasets(a, b, {.frames = args.frames, .progress = &progress, .stop = context.stop});
  view.reset();
  if (!diff) return tl::unexpected(diff.error());
  for (int64_t i = 0; i < diff->differences(); ++i) context.out.count_finding();
  Json object{{"type", "lerobot_diff"}};
  object.update(Json::parse(lerobot::diff_json(*diff)));
  context.out.print(object, dataset_diff_text(*diff));
  return {};
}

}  // namespace

void add_lerobot_diff(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<DatasetDiffArgs>();
  CLI::App& app = verbs.add(lerobot, "diff", "Say what differs between two robot datasets, of any versions",
                            {"millrace lerobot diff so101 so101-v3", "millrace lerobot diff so101 so101-clean --frames",
                             "millrace lerobot diff s3://bucket/so101 so101 --json"},
                            [args](Context& context) { return run_dataset_diff(*args, context); });
  app.add_option("A", args->a, "A dataset's folder: a path or s3://bucket/prefix")->required()->option_text(" ");
  app.add_option("B", args->b, "Another one")->required()->option_text(" ");
  app.add_flag("--frames", args->frames, "Also compare decoded frames; of files with equal bytes none is decoded");
}

}  // namespace millrace::cli
