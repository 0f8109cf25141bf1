// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/made_dataset.h"
#include "millrace/lerobot/edit.h"

namespace millrace::cli {

namespace {

using lerobot::MadeDataset;
using lerobot::MakeOptions;

// Both are folders; the result is on this machine.
void add_source_and_target(CLI::App& app, std::string& source, std::string& target) {
  app.add_option("SRC", source, "The dataset's folder: a path or s3://bucket/prefix")->required()->option_text(" ");
  app.add_option("DST", target, "A new folder on this machine")->required()->option_text(" ");
}

CLI::Option* add_episodes_flag(CLI::App& app, std::vector<lerobot::EpisodeRange>& ranges,
                               const std::string& description) {
  return app
      .add_option_function<std::string>(
          "--episodes",
          [&ranges](const std::string& text) { ranges = usage_value("--episodes", lerobot::parse_episode_list(text)); },
          description)
      ->option_text("LIST");
}

// ---- split

struct SplitArgs {
  std::string source, target;
  std::vector<lerobot::EpisodeRange> episodes;
  std::vector<std::string> part_texts, fraction_texts;
  std::vector<lerobot::SplitPart> parts;
  std::vector<lerobot::SplitFraction> fractions;
  bool dry_run = false;
};

double parse_fraction(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  throw CLI::ValidationError("--fraction", "'" + text + "' is not a number such as 0.8");
}

void read_split_args(SplitArgs& args) {
  const int kinds =
      (args.episodes.empty() ? 0 : 1) + (args.part_texts.empty() ? 0 : 1) + (args.fraction_texts.empty() ? 0 : 1);
  if (kinds != 1) throw CLI::ValidationError("split", "give --episodes, --part or --fraction, and one of these only");
  for (const std::string& text : args.part_texts) {
    const auto [name, list] = usage_value("--part", lerobot::parse_named(text));
    args.parts.push_back({name, usage_value("--part", lerobot::parse_episode_list(list))});
  }
  for (const std::string& text : args.fraction_texts) {
    const auto [name, fraction] = usage_value("--fraction", lerobot::parse_named(text));
    args.fractions.push_back({name, parse_fraction(fraction)});
  }
  if (!args.episodes.empty()) args.parts = {{"", args.episodes}};
}

Status run_split(const SplitArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location source, open_url(args.source));
  const auto split = [&](const MakeOptions& options) {
    return args.fractions.empty() ? lerobot::split_dataset(source, args.target, args.parts, options)
                                  : lerobot::split_dataset(source, args.target, args.fractions, options);
  };
  return print_made("lerobot split", {{"type", "lerobot_split"}, {"url", source.url}}, args.target, args.dry_run, split,
                    context);
}

void add_many(CLI::App& app, const std::string& flag, std::vector<std::string>& values, const std::string& description,
              const char* text) {
  app.add_option(flag, values, description)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text(text);
}

void add_split_verb(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<SplitArgs>();
  CLI::App& app = verbs.add(
      lerobot, "split", "Make datasets of some episodes of one",
      {"millrace lerobot split so101 some --episodes 0-9,12",
       "millrace lerobot split so101 parts --part train=0-79 --part val=80-99",
       "millrace lerobot split s3://bucket/so101 parts --fraction train=0.9 --fraction val=0.1"},
      [args](Context& context) { return run_split(*args, context); }, [args] { read_split_args(*args); });
  add_source_and_target(app, args->source, args->target);
  add_episodes_flag(app, args->episodes, "The episodes of DST: 0-9,12");
  add_many(app, "--part", args->part_texts, "A dataset DST/NAME of these episodes: train=0-79; may be given again",
           "NAME=LIST");
  add_many(app, "--fraction", args->fraction_texts,
           "A dataset DST/NAME of the next episodes: train=0.9; may be given again", "NAME=FRACTION");
  add_dry_run_flag(app, args->dry_run);
}

// ---- merge

struct MergeArgs {
  std::vector<std::string> urls;  // the last is the target
  lerobot::Version to = lerobot::Version::kUnknown;
  bool dry_run = false;
};

Status run_merge(const MergeArgs& args, Context& context) {
  std::vector<Location> sources;
  Json urls = Json::array();
  for (size_t i = 0; i + 1 < args.urls.size(); ++i) {
    ASSIGN_OR_RETURN(sources.emplace_back(), open_url(args.urls[i]));
    urls.push_back(sources.back().url);
  }
  const std::string& target = args.urls.back();
  const auto merge = [&](const MakeOptions& options) -> Result<std::vector<MadeDataset>> {
    ASSIGN_OR_RETURN(MadeDataset made, lerobot::merge_datasets(sources, target, args.to, options));
    return std::vector{std::move(made)};
  };
  return print_made("lerobot merge", {{"type", "lerobot_merge"}, {"urls", urls}}, target, args.dry_run, merge, context);
}

void add_merge_verb(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<MergeArgs>();
  CLI::App& app = verbs.add(
      lerobot, "merge", "Make one dataset of several with the same features",
      {"millrace lerobot merge monday tuesday week", "millrace lerobot merge s3://bucket/a s3://bucket/b both --to 3.0",
       "millrace lerobot merge monday tuesday week --dry-run"},
      [args](Context& context) { return run_merge(*args, context); },
      [args] {
        if (args->urls.size() < 3)
          throw CLI::ValidationError("merge", "name two datasets or more, then the new folder");
      });
  app.add_option("SRC", args->urls, "The datasets in the order of their episodes, then DST, a new folder")
      ->required()
      ->option_text(" ");
  add_choice_flag(
      app, "--to", {"2.0", "2.1", "3.0"},
      [args](const std::string& version) { args->to = lerobot::parse_version(version); },
      "The version to write (default: that of the datasets)");
  add_dry_run_flag(app, args->dry_run);
}

// ---- delete

struct DeleteArgs {
  std::string source, target;
  std::vector<lerobot::EpisodeRange> episodes;
  bool dry_run = false;
};

Status run_delete(const DeleteArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location source, open_url(args.source));
  const auto remove = [&](const MakeOptions& options) -> Result<std::vector<MadeDataset>> {
    ASSIGN_OR_RETURN(MadeDataset made, lerobot::delete_episodes(source, args.target, args.episodes, options));
    return std::vector{std::move(made)};
  };
  return print_made("lerobot delete", {{"type", "lerobot_delete"}, {"url", source.url}}, args.target, args.dry_run,
                    remove, context);
}

void add_delete_verb(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<DeleteArgs>();
  CLI::App& app = verbs.add(lerobot, "delete", "Make a dataset without some episodes of another",
                            {"millrace lerobot delete so101 so101-clean --episodes 3,7-9",
                             "millrace lerobot delete s3://bucket/so101 so101-clean --episodes 12",
                             "millrace lerobot delete so101 so101-clean --episodes 3 --dry-run"},
                            [args](Context& context) { return run_delete(*args, context); });
  add_source_and_target(app, args->source, args->target);
  add_episodes_flag(app, args->episodes, "The episodes to leave out: 3,7-9")->required();
  add_dry_run_flag(app, args->dry_run);
}

}  // namespace

void add_lerobot_edit(Verbs& verbs, CLI::App& lerobot) {
  add_split_verb(verbs, lerobot);
  add_merge_verb(verbs, lerobot);
  add_delete_verb(verbs, lerobot);
}

}  // namespace millrace::cli
