// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/cli/command.h"
#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/merge_stats.h"
#include "millrace/lerobot/picture_stats.h"
#include "millrace/lerobot/relative_stats.h"
#include "millrace/lerobot/validate.h"
#include "millrace/lerobot/write_stats.h"

namespace millrace::cli {

namespace {

using lerobot::kFirstQuantile;
using lerobot::kStatNames;

struct StatsArgs {
  std::vector<std::string> urls;
  std::string out;
  std::vector<std::string> relative;
  int64_t horizon = 0, memory = 1 << 30;
  bool groot = false, images = false, write = false, merge = false, force = false;
};

std::string statistic_text(double value) {
  return fmt::format("{:.6g}", value);
}

Json stats_object(const lerobot::ComputedStats::OfFeature& feature, bool groot) {
  Json entry{{"name", feature.name}, {"dtype", feature.dtype}, {"count", feature.stats.count}};
  for (size_t i = 0; i < kStatNames.size(); ++i) {
    const std::string_view name = kStatNames[i];
    if (!groot || i < kFirstQuantile || name == "q01" || name == "q99") {
      entry[std::string(name)] = feature.stats.values[i];
    }
  }
  return entry;
}

std::string stats_text(const lerobot::ComputedStats& stats) {
  TextTable table({{"feature"},
                   {"", true},
                   {"min", true},
                   {"q01", true},
                   {"mean", true},
                   {"q99", true},
                   {"max", true},
                   {"std", true}});
  for (const auto& feature : stats.features) {
    const auto& values = feature.stats.values;
    for (size_t i = 0; i < values[0].size(); ++i) {
      table.add({i == 0 ? feature.name : "", std::to_string(i), statistic_text(values[0][i]),
                 statistic_text(values[4][i]), statistic_text(values[2][i]), statistic_text(values[8][i]),
                 statistic_text(values[1][i]), statistic_text(values[3][i])});
    }
  }
  return fmt::format("{} in {}\n\n", counted(stats.rows, "row"), counted(stats.files, "file")) + table.to_string();
}

Json relative_object(const lerobot::RelativeStats& group) {
  Json entry{{"group", group.group},
             {"horizon", static_cast<int64_t>(group.steps.size())},
             {"dim", group.dim},
             {"windows", group.windows}};
  for (size_t i = 0; i < kStatNames.size(); ++i) {
    Json matrix = Json::array();
    for (const auto& step : group.steps) matrix.push_back(step.values[i]);
    entry[std::string(kStatNames[i])] = std::move(matrix);
  }
  return entry;
}

Status write_out(const StatsArgs& args, const std::string& text) {
  if (args.out.empty()) return {};
  ASSIGN_OR_RETURN(const Location out, open_url(args.out));
  const auto condition = args.force ? WriteOptions::Condition::kReplace : WriteOptions::Condition::kIfAbsent;
  const auto written = write_object(*out.storage, out.key, text, {.condition = condition});
  if (written) return {};
  if (written.error().code() != ErrorCode::kAlreadyExists) return tl::unexpected(written.error());
  return fail(ErrorCode::kAlreadyExists, "{} is there already; --force replaces it", args.out);
}

// "arm" or "arm=left_arm"
std::vector<lerobot::RelativePair> pairs_of(const std::vector<std::string>& flags) {
  std::vector<lerobot::RelativePair> pairs;
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    pairs.push_back({flag.substr(0, equals), equals == flag.npos ? flag : flag.substr(equals + 1)});
  }
  return pairs;
}

Result<lerobot::Dataset> read(const std::string& url) {
  ASSIGN_OR_RETURN(const Location root, open_url(url));
  lerobot::Report report(0);
  return lerobot::read_dataset(root, report);
}

// The new files of --write, and where relative statistics go.
Result<std::vector<lerobot::NewFile>> files_of(const lerobot::Dataset& dataset, const lerobot::ComputedStats& stats,
                                               const std::vector<lerobot::RelativeStats>& relative) {
  constexpr const char* kRelativeFile = "meta/relative_stats.json";
  ASSIGN_OR_RETURN(std::vector<lerobot::NewFile> files, lerobot::stats_files(dataset, stats, stats));
  if (relative.empty()) return files;
  lerobot::NewFile file{kRelativeFile, lerobot::relative_stats_json(relative), {}};
  if (dataset.tree.find(kRelativeFile) != nullptr) {
    ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(kRelativeFile));
    file.version = reader->version();
  }
  files.push_back(std::move(file));
  return files;
}

Status run_compute(const StatsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const lerobot::Dataset dataset, read(args.urls.front()));
  lerobot::StatsOptions options{.groot = args.groot && !args.write,
                                .by_episode = args.write && lerobot::keeps_episode_stats(dataset),
                                .kept_bytes = args.memory};
  Progress progress;
  options.progress = &progress;
  options.stop = context.stop;
  auto view = context.out.watch(progress, "stats");
  ASSIGN_OR_RETURN(lerobot::ComputedStats stats, lerobot::compute_stats(dataset, options));
  if (args.images) RETURN_IF_ERROR(lerobot::add_picture_stats(dataset, options, stats));
  std::vector<lerobot::RelativeStats> relative;
  if (args.horizon > 0) {
    ASSIGN_OR_RETURN(relative, lerobot::relative_stats(dataset, args.horizon, pairs_of(args.relative), options));
  }
  view.reset();
  RETURN_IF_ERROR(write_out(args, lerobot::stats_json(stats, args.groot)));
  std::vector<std::string> written;
  if (args.write) {
    ASSIGN_OR_RETURN(const auto files, files_of(dataset, stats, relative));
    RETURN_IF_ERROR(lerobot::write_files(dataset.tree.root(), files));
    for (const auto& file : files) written.push_back(file.path);
  }
  Json object{{"type", "lerobot_stats"},
              {"url", dataset.tree.root().url},
              {"rows", stats.rows},
              {"files", stats.files},
              {"files_read", stats.files_read},
              {"file", args.out.empty() ? Json(nullptr) : Json(args.out)},
              {"written", written},
              {"left_out", stats.left_out},
              {"features", Json::array()},
              {"relative", Json::array()}};
  for (const auto& feature : stats.features) {
    if (!args.groot || feature.dtype.starts_with("float")) {
      object["features"].push_back(stats_object(feature, args.groot));
    }
  }
  for (const auto& group : relative) object["relative"].push_back(relative_object(group));
  std::string text = stats_text(stats);
  for (const auto& group : relative) {
    text += fmt::format("relative actions of {}: {} x {} from {}\n", printable(group.group), group.steps.size(),
                        group.dim, counted(group.windows, "window"));
  }
  for (const std::string& path : written) text += fmt::format("wrote {}\n", path);
  for (const std::string& each : stats.left_out) context.out.note("stats: left out " + printable(each));
  context.out.print(object, text);
  return {};
}

std::string merged_text(const lerobot::MergedStats& stats) {
  TextTable table(
      {{"feature"}, {"", true}, {"min", true}, {"q01"}, {"mean", true}, {"q99"}, {"max", true}, {"std", true}});
  const auto interval = [](double low, double high) {
    return low == high ? statistic_text(low) : fmt::format("{:.6g} to {:.6g}", low, high);
  };
  for (const auto& feature : stats.features) {
    for (size_t i = 0; i < feature.min.size(); ++i) {
      table.add({i == 0 ? feature.name : "", std::to_string(i), statistic_text(feature.min[i]),
                 interval(feature.low.front()[i], feature.high.front()[i]), statistic_text(feature.mean[i]),
                 interval(feature.low.back()[i], feature.high.back()[i]), statistic_text(feature.max[i]),
                 statistic_text(feature.std[i])});
    }
  }
  return table.to_string();
}

Json merged_object(const lerobot::MergedStats::OfFeature& feature) {
  Json entry{{"name", feature.name}, {"count", feature.count}, {"parts", feature.parts}, {"min", feature.min},
             {"max", feature.max},   {"mean", feature.mean},   {"std", feature.std}};
  for (size_t q = 0; q < feature.low.size(); ++q) {
    entry[std::string(kStatNames[kFirstQuantile + q])] = {{"low", feature.low[q]}, {"high", feature.high[q]}};
  }
  return entry;
}

Status run_merge(const StatsArgs& args, Context& context) {
  std::vector<lerobot::Dataset> datasets;
  for (const std::string& url : args.urls) {
    ASSIGN_OR_RETURN(datasets.emplace_back(), read(url));
  }
  ASSIGN_OR_RETURN(const lerobot::MergedStats stats, lerobot::merge_stats(datasets));
  RETURN_IF_ERROR(write_out(args, lerobot::stats_json(stats)));
  for (const std::string& each : stats.left_out) context.out.note("stats: left out " + printable(each));
  context.out.note(
      "stats: quantiles of the whole do not follow from stored statistics; these are intervals. `lerobot stats` "
      "without --merge computes them from the rows");
  Json object{{"type", "lerobot_stats_merged"},
              {"urls", args.urls},
              {"file", args.out.empty() ? Json(nullptr) : Json(args.out)},
              {"left_out", stats.left_out},
              {"features", Json::array()}};
  for (const auto& feature : stats.features) object["features"].push_back(merged_object(feature));
  context.out.print(object, merged_text(stats));
  return {};
}

void check_usage(const StatsArgs& args) {
  if (!args.merge && args.urls.size() > 1) throw CLI::ValidationError("URL", "only --merge takes several datasets");
  if (args.merge && (args.write || args.images || args.groot || args.horizon > 0)) {
    throw CLI::ValidationError("--merge",
                               "takes stored statistics as they are: without --write, --images, --groot and --horizon");
  }
  if (!args.relative.empty() && args.horizon == 0) throw CLI::ValidationError("--relative", "needs --horizon");
}

}  // namespace

void add_lerobot_stats(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<StatsArgs>();
  CLI::App& app = verbs.add(
      lerobot, "stats", "Compute exact statistics from all rows, and write them where the dataset keeps them",
      {"millrace lerobot stats so101 --images --write",
       "millrace lerobot stats pick_n_place --groot --horizon 16 --write",
       "millrace lerobot stats --merge so101 so101-b --out stats.json"},
      [args](Context& context) { return args->merge ? run_merge(*args, context) : run_compute(*args, context); },
      [args] { check_usage(*args); });
  app.add_option("URL", args->urls, "The dataset's folder: a path or s3://bucket/prefix")->required()->option_text(" ");
  app.add_flag("--images", args->images, "Also compute statistics of cameras, from frames that LeRobot's rule samples");
  app.add_flag("--write", args->write, "Replace what the dataset stores, of the dataset and of each episode");
  app.add_flag("--groot", args->groot,
               "Print and --out what GR00T's stats.json holds: float columns, and of the quantiles q01 and q99");
  app.add_option("--horizon", args->horizon, "Also compute actions less their state, as in GR00T's relative_stats.json")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->option_text("STEPS");
  app.add_option("--relative", args->relative,
                 "A group of actions for --horizon, or GROUP=STATE_GROUP; may be given again")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("GROUP");
  app.add_flag("--merge", args->merge, "Merge the stored statistics of several datasets; quantiles are intervals");
  app.add_option("--out", args->out, "Also write the statistics there as stats.json")->option_text("FILE");
  add_size_flag(app, "--memory", args->memory,
                "For numbers kept between passes; files that do not fit are read again (default: 1GiB)");
  app.add_flag("--force", args->force, "Replace the file that is there");
}

}  // namespace millrace::cli
