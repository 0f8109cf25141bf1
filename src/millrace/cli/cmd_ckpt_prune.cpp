// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

struct PruneArgs {
  std::string root;
  std::vector<std::string> tiers;
  checkpoint::KeepRules rules;
  std::string mode = "min";
  double older_than_days = 0;
  bool dry_run = false;
};

// A folder to prune, and its steps.
struct Place {
  Location root;
  bool is_tier = false;
  std::vector<checkpoint::StepInfo> steps;
};

struct Removed {
  int64_t steps = 0, of = 0, bytes = 0;
};

// The root must have something newer, or the same, before a tier gives a step up. `root_has`: the newest good step of
// the root's line; nullptr: none.
bool root_lacks(const checkpoint::StepInfo& info, const checkpoint::StepInfo* root_has) {
  return !info.is_left && (root_has == nullptr || info.step > root_has->step);
}

Status prune(const Place& place, const checkpoint::StepInfo* root_has, const PruneArgs& args, Context& context,
             TextTable& table, Removed& total) {
  const auto& steps = place.steps;
  auto verdicts = checkpoint::judge_steps(steps, args.rules, std::chrono::system_clock::now());
  total.of += std::ssize(steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!verdicts[i].stays && place.is_tier && root_lacks(steps[i], root_has))
      verdicts[i] = {true, "newer than the root's steps"};
  }
  checkpoint::hold_bases(steps, verdicts);
  for (size_t i = steps.size(); i-- > 0;) {  // a step goes before those that it refers to
    if (verdicts[i].stays) continue;
    if (context.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (!args.dry_run) RETURN_IF_ERROR(checkpoint::remove_step(place.root, steps[i].step));
    ++total.steps;
    total.bytes += steps[i].bytes;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const checkpoint::StepInfo& info = steps[i];
    const checkpoint::StepVerdict& verdict = verdicts[i];
    context.out.print_json({{"type", "prune"},
                            {"root", place.root.url},
                            {"step", info.step},
                            {"removed", !verdict.stays},
                            {"left_behind", info.is_left},
                            {"dry_run", args.dry_run},
                            {"bytes", info.bytes},
                            {"reason", verdict.why}});
    table.add({fmt::format("{}", info.step), info.damage ? "" : utc_text(info.committed), format_bytes(info.bytes),
               verdict.stays ? "keep" : "remove", verdict.why, args.tiers.empty() ? "" : place.root.url});
  }
  return {};
}

void check_prune(const PruneArgs& args) {
  const checkpoint::KeepRules& rules = args.rules;
  if (rules.last == 0 && rules.best == 0 && args.older_than_days <= 0 && rules.quota_bytes == 0 && !rules.drop_left)
    throw CLI::ValidationError("--keep-last",
                               "say what stays: --keep-last, --keep-best, --older-than, --quota or --left-behind");
  if (rules.best > 0 && rules.monitor.empty())
    throw CLI::ValidationError("--keep-best", "needs --monitor: the metric that says which are the best");
}

Status run_ckpt_prune(PruneArgs args, Context& context) {
  checkpoint::KeepRules& rules = args.rules;
  rules.higher_is_better = args.mode == "max";
  rules.young = std::chrono::seconds(static_cast<int64_t>(args.older_than_days * 86400));
  std::vector<Place> places;
  for (const std::string& url : args.tiers) {
    ASSIGN_OR_RETURN(places.emplace_back(Place{.is_tier = true}).root, open_url(url));
  }
  ASSIGN_OR_RETURN(places.emplace_back().root, open_url(args.root));
  std::vector<checkpoint::StepInfo> all;
  for (Place& place : places) {
    ASSIGN_OR_RETURN(place.steps, checkpoint::list_steps(place.root));
    all.insert(all.end(), place.steps.begin(), place.steps.end());
  }
  // Which steps the newest line has is decided over all places together.
  checkpoint::mark_left(all);
  auto marked = all.begin();
  for (Place& place : places) {
    for (checkpoint::StepInfo& info : place.steps) info = *marked++;
  }
  if (all.empty() && args.tiers.empty()) return fail(ErrorCode::kNotFound, "{}: no checkpoints there", args.root);
  TextTable table({{"step", true},
                   {"committed"},
                   {"bytes", true},
                   {args.dry_run ? "would" : "did"},
                   {"why"},
                   {args.tiers.empty() ? "" : "tier"}});
  Removed total;
  const std::vector<checkpoint::StepInfo> of_root = places.back().steps;
  const checkpoint::StepInfo* const root_has = checkpoint::newest_step(of_root);
  for (const Place& place : places) RETURN_IF_ERROR(prune(place, root_has, args, context, table, total));
  context.out.print_text(table.to_string());
  context.out.print(
      {{"type", "ckpt_prune"}, {"removed", total.steps}, {"bytes", total.bytes}, {"dry_run", args.dry_run}},
      fmt::format("{}{} of {}, {}\n", args.dry_run ? "would remove " : "removed ", counted(total.steps, "step"),
                  total.of, format_bytes(total.bytes)));
  return {};
}

}  // namespace

void add_ckpt_prune(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<PruneArgs>();
  CLI::App& app = verbs.add(
      ckpt, "prune", "Remove old steps; the newest good ones stay",
      {"millrace ckpt prune run1/checkpoints --keep-last 3 --dry-run",
       "millrace ckpt prune run1/checkpoints --keep-last 3 --keep-best 2 --monitor val_loss",
       "millrace ckpt prune s3://b/run1 --tier /nvme/run1 --keep-last 1 --older-than 30"},
      [args](Context& context) { return run_ckpt_prune(*args, context); }, [args] { check_prune(*args); });
  app.add_option("ROOT", args->root, "Folder of checkpoints")->required()->option_text(" ");
  app.add_option("--tier", args->tiers, "A nearer tier of the same run, pruned by the same rules; may be repeated")
      ->allow_extra_args(false)
      ->option_text("URL");
  app.add_option("--keep-last", args->rules.last, "Keep this many of the newest steps")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("K");
  app.add_option("--keep-every", args->rules.every, "Also keep steps divisible by N")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_option("--keep-best", args->rules.best, "Also keep this many steps with the best value of --monitor")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("K");
  app.add_option("--monitor", args->rules.monitor, "A metric that was given to save()")->option_text("NAME");
  app.add_option("--mode", args->mode, "Whether the smallest or the largest value of --monitor is best (default: min)")
      ->check(CLI::IsMember({"min", "max"}))
      ->option_text("min|max");
  add_size_flag(app, "--quota", args->rules.quota_bytes,
                "Most bytes that all steps may take; the oldest are removed first, those of --keep-best last", 1);
  app.add_option("--older-than", args->older_than_days, "Remove only steps committed more than DAYS days ago")
      ->check(CLI::Range(0.0, 1e6))
      ->check([](const std::string& days) { return lower_case(days).ends_with("nan") ? "not a number" : ""; })
      ->option_text("DAYS");
  app.add_flag("--left-behind", args->rules.drop_left,
               "Remove all steps that the newest line left behind (a run that went back or was restarted)");
  app.add_flag("--dry-run", args->dry_run, "Only print what would be removed");
}

}  // namespace millrace::cli
