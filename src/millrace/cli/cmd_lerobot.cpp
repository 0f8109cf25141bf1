// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/html_report.h"
#include "millrace/cli/lint_flags.h"
#include "millrace/lerobot/inspect.h"
#include "millrace/lerobot/validate.h"
#include "millrace/lerobot/video_probe.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

Json inspection_json(const std::string& url, const lerobot::Inspection& found) {
  Json object{{"type", "lerobot_inspect"},
              {"url", url},
              {"version", found.version},
              {"robot_type", found.robot_type},
              {"groot", found.is_groot},
              {"explanation", found.explanation},
              {"fps", found.fps},
              {"episodes", found.episodes},
              {"frames", found.frames},
              {"hours", found.hours()},
              {"lengths", {{"min", found.shortest}, {"median", found.median}, {"max", found.longest}}},
              {"bytes",
               {{"data", found.data_bytes},
                {"videos", found.video_bytes},
                {"meta", found.meta_bytes},
                {"other", found.other_bytes}}},
              {"files", found.files},
              {"cameras", Json::array()},
              {"tasks", Json::array()},
              {"features", Json::array()},
              {"length_histogram", Json::array()},
              {"errors", found.findings.errors},
              {"warnings", found.findings.warnings}};
  for (const auto& camera : found.cameras) {
    object["cameras"].push_back({{"key", camera.key},
                                 {"height", camera.height},
                                 {"width", camera.width},
                                 {"codec", camera.codec},
                                 {"pixel_format", camera.pixel_format},
                                 {"depth", camera.is_depth},
                                 {"files", camera.files},
                                 {"bytes", camera.bytes}});
  }
  for (const auto& bin : found.lengths) {
    object["length_histogram"].push_back({{"from", bin.from}, {"to", bin.to}, {"episodes", bin.episodes}});
  }
  for (const auto& task : found.tasks) {
    object["tasks"].push_back({{"task_index", task.index}, {"task", task.text}, {"episodes", task.episodes}});
  }
  for (const auto& feature : found.features) {
    object["features"].push_back({{"name", feature.name},
                                  {"dtype", feature.dtype},
                                  {"shape", feature.shape},
                                  {"min", feature.min ? Json(*feature.min) : Json(nullptr)},
                                  {"max", feature.max ? Json(*feature.max) : Json(nullptr)}});
  }
  return object;
}

Json preview_json(const std::string& url, double fps, const lerobot::Preview& preview) {
  Json object{{"type", "lerobot_preview"},
              {"url", url},
              {"episode", preview.episode},
              {"length", preview.length},
              {"fps", fps},
              {"frames", Json::array()},
              {"rows", preview.rows},
              {"series", Json::array()},
              {"not_shown", preview.not_shown}};
  for (const auto& each : preview.frames) {
    object["frames"].push_back(
        {{"camera", each.camera}, {"file", each.file}, {"row", each.row}, {"frame", each.frame}});
  }
  for (const auto& each : preview.series) {
    object["series"].push_back({{"feature", each.feature}, {"names", each.names}, {"values", each.values}});
  }
  return object;
}

std::string feature_table(const lerobot::Inspection& found) {
  TextTable table({{"feature"}, {"dtype"}, {"shape"}, {"min", true}, {"max", true}});
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.6g}", *value) : std::string("-");
  };
  for (const auto& feature : found.features) {
    table.add({feature.name, feature.dtype, fmt::format("{}", fmt::join(feature.shape, " x ")), number(feature.min),
               number(feature.max)});
  }
  return table.to_string();
}

std::string camera_table(const lerobot::Inspection& found) {
  if (found.cameras.empty()) return {};
  TextTable table({{"camera"}, {"size"}, {"codec"}, {"pixels"}, {"files", true}, {"bytes", true}});
  for (const auto& camera : found.cameras) {
    table.add({camera.key, fmt::format("{} x {}", camera.height, camera.width),
               camera.codec.empty() ? "-" : camera.codec, camera.pixel_format.empty() ? "-" : camera.pixel_format,
               format_count(camera.files), format_bytes(camera.bytes)});
  }
  return "\n" + table.to_string();
}

// The first tasks; a dataset may have thousands.
std::string task_table(const lerobot::Inspection& found) {
  constexpr size_t kShown = 20;
  if (found.tasks.empty()) return {};
  TextTable table({{"task", true}, {"episodes", true}, {"text"}});
  const size_t shown = std::min(found.tasks.size(), kShown);
  for (size_t i = 0; i < shown; ++i) {
    const auto& task = found.tasks[i];
    table.add({std::to_string(task.index), format_count(task.episodes), printable(task.text, 100)});
  }
  std::string text = "\n" + table.to_string();
  if (shown < found.tasks.size()) text += fmt::format("and {} more (--json has all)\n", found.tasks.size() - shown);
  return text;
}

std::string inspection_text(const lerobot::Inspection& found) {
  std::string text = fmt::format("LeRobot {}{}, robot {}\n", printable(found.version),
                                 found.is_groot ? " with GR00T's modality.json" : "",
                                 found.robot_type.empty() ? "not named" : printable(found.robot_type));
  if (!found.explanation.empty()) {
    text += "This tree is of no one version:\n";
    for (const std::string& line : found.explanation) text += "  " + printable(line) + "\n";
  }
  const double hours = found.hours();
  text += fmt::format("{}, {}, {} at {:g} frames a second; lengths {} to {}, median {}\n",
                      counted(found.episodes, "episode"), counted(found.frames, "frame"),
                      hours < 1 ? fmt::format("{:.1f} minutes", hours * 60) : fmt::format("{:.2f} hours", hours),
                      found.fps, format_count(found.shortest), format_count(found.longest), format_count(found.median));
  text += fmt::format("{}: data {}, videos {}, metadata {}\n\n", counted(found.files, "file"),
                      format_bytes(found.data_bytes), format_bytes(found.video_bytes), format_bytes(found.meta_bytes));
  text += feature_table(found) + camera_table(found) + task_table(found);
  if (found.findings.errors + found.findings.warnings > 0) {
    text += fmt::format("\n{} and {} in the metadata alone (millrace lerobot validate)\n",
                        counted(found.findings.errors, "error"), counted(found.findings.warnings, "warning"));
  }
  return text;
}

struct InspectArgs {
  std::string url, html;
  std::optional<int64_t> episode;
};

Status run_inspect(const InspectArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.url));
  const bool preview = context.out.json() || !args.html.empty();
  ASSIGN_OR_RETURN(const lerobot::Inspection found,
                   lerobot::inspect_dataset(root, {.preview = preview, .episode = args.episode}));
  HtmlReport report(args.html, "Robot dataset " + args.url);
  const Json object = inspection_json(root.url, found);
  context.out.print(object, inspection_text(found));
  report.add(object);
  if (found.preview) {
    const Json shown = preview_json(root.url, found.fps, *found.preview);
    context.out.print_json(shown);
    report.add(shown);
  }
  return report.write(context);
}

struct ValidateArgs {
  std::string url;
  LintFlags lint;
  lerobot::ValidateOptions options;
  bool groot = false, deep = false, quick = false;
};

std::vector<Rule> all_rules() {
  const auto rules = lerobot::dataset_rules(), more = suppression_rules();
  std::vector<Rule> all(rules.begin(), rules.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void print_validation(const ValidateArgs& args, const std::string& url, lerobot::Validation found,
                      const std::vector<Rule>& rules, Context& context) {
  const Json summary{{"type", "lerobot_validate"}, {"url", url},
                     {"version", found.version},   {"episodes", found.episodes},
                     {"frames", found.frames},     {"videos", found.videos},
                     {"rows", !args.quick},        {"videos_decoded", found.videos_decoded}};
  const std::string text = fmt::format("LeRobot {}: {}, {}, {}{}\n", printable(found.version),
                                       counted(found.episodes, "episode"), counted(found.frames, "frame"),
                                       counted(found.videos, "video"), args.quick ? "; no rows were read" : "");
  print_findings(args.lint, rules, std::move(found.findings), found.files, context);
  if (!args.lint.sarif) context.out.print(summary, text);
}

Status run_validate(const ValidateArgs& args, Context& context) {
  const std::vector<Rule> rules = all_rules();
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, rules, context));
  if (answered) return {};
  ASSIGN_OR_RETURN(const Location root, open_url(args.url));
  lerobot::ValidateOptions options = args.options;
  if (args.groot && options.groot == lerobot::GrootVersion::kNone) options.groot = lerobot::GrootVersion::kN17;
  options.rows = !args.quick;
  options.stop = context.stop;
  lerobot::VideoProbe probe(context.stop);
  if (args.deep) options.frames = &probe;
  Progress progress;
  options.progress = &progress;
  auto view = context.out.watch(progress, "validate");
  auto found = lerobot::validate_dataset(root, options);
  view.reset();
  if (!found) return tl::unexpected(found.error());
  print_validation(args, root.url, *std::move(found), rules, context);
  return {};
}

void add_inspect(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<InspectArgs>();
  CLI::App& app =
      verbs.add(group, "inspect", "Say what a robot dataset holds, from its metadata",
                {"millrace lerobot inspect pick_n_place", "millrace lerobot inspect s3://bucket/datasets/so101 --json",
                 "millrace lerobot inspect pick_n_place --episode 3 --html pick_n_place.html"},
                [args](Context& context) { return run_inspect(*args, context); });
  app.add_option("URL", args->url, "The dataset's folder: a path or s3://bucket/prefix")->required()->option_text(" ");
  app.add_option("--episode", args->episode, "The episode that --json and --html show (default: the first one)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  add_html_flag(app, args->html);
}

void add_validate(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<ValidateArgs>();
  CLI::App& app = verbs.add(
      group, "validate", "Check a robot dataset of LeRobot or GR00T against 77 rules",
      {"millrace lerobot validate pick_n_place",
       "millrace lerobot validate s3://bucket/datasets/so101 --groot --policy-horizon 16",
       "millrace lerobot validate --explain LR042"},
      [args](Context& context) { return run_validate(*args, context); },
      [args] {
        const bool about_rules = args->lint.list_rules || !args->lint.explain.empty();
        if (args->url.empty() && !about_rules) throw CLI::RequiredError("URL");
      });
  app.add_option("URL", args->url, "The dataset's folder: a path or s3://bucket/prefix")->option_text(" ");
  add_rule_flags(app, args->lint);
  app.add_flag("--groot", args->groot, "Also check what GR00T requires of a dataset");
  add_choice_flag(
      app, "--groot-version", {"1.5", "1.6", "1.7"},
      [args](const std::string& version) {
        args->options.groot = version == "1.5"   ? lerobot::GrootVersion::kN15
                              : version == "1.6" ? lerobot::GrootVersion::kN16
                                                 : lerobot::GrootVersion::kN17;
      },
      "GR00T version (default: 1.7); implies --groot");
  app.add_option("--policy-horizon", args->options.policy_horizon, "Steps that the policy looks ahead")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}))
      ->option_text("STEPS");
  app.add_option("--language-key", args->options.language_key, "The language key of your GR00T modality config")
      ->option_text("KEY");
  app.add_flag("--quick", args->quick, "Read metadata, footers and video indexes, and no rows");
  app.add_flag("--deep", args->deep, "Also decode frames of each episode");
  app.add_option("--ignore", args->options.ignore, "Silence rules: \"LR013, LR047 -- why\"; may be given again")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("RULES");
  app.add_option("--max-findings", args->options.most_per_rule,
                 "Show at most N findings of each rule; 0 shows all (default: 20)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
}

}  // namespace

void add_lerobot(Verbs& verbs) {
  CLI::App& group = verbs.add_group(
      "lerobot", "Get, inspect, check, compare, convert, edit and make robot datasets of LeRobot and GR00T");
  add_inspect(verbs, group);
  add_validate(verbs, group);
  add_lerobot_diff(verbs, group);
  add_lerobot_stats(verbs, group);
  add_lerobot_repair(verbs, group);
  add_lerobot_convert(verbs, group);
  add_lerobot_modality(verbs, group);
  add_lerobot_edit(verbs, group);
  add_lerobot_demo(verbs, group);
  add_lerobot_download(verbs, group);
}

}  // namespace millrace::cli
