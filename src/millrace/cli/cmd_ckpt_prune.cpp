// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/units.h"
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

// A folder to prune, and the newest good step of the root, which must have something before a tier gives it up.
struct Place {
  Location root;
  bool is_tier = false;
  int64_t root_has = -1;
};

struct Removed {
  int64_t steps = 0, of = 0, bytes = 0;
};

std::vector<int64_t> good_steps(const std::vector<checkpoint::StepInfo>& steps) {
  std::vector<int64_t> good;
  for (const checkpoint::StepInfo& info : steps) {
    if (!info.damage) good.push_back(info.step);
  }
  return good;
}

Status prune(const Place& place, const PruneArgs& args, Context& context, TextTable& table, Removed& total) {
  ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(place.root));
  auto verdicts = checkpoint::judge_steps(steps, args.rules, std::chrono::system_clock::now());
  total.of += std::ssize(steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    const checkpoint::StepInfo& info = steps[i];
    checkpoint::StepVerdict& verdict = verdicts[i];
    if (!verdict.stays && place.is_tier && info.step > place.root_has) verdict = {true, "newer than the root's steps"};
    if (!verdict.stays) {
      if (context.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      if (!args.dry_run) RETURN_IF_ERROR(checkpoint::remove_step(place.root, info.step));
      ++total.steps;
      total.bytes += info.bytes;
    }
    context.out.print_json({{"type", "prune"},
                            {"root", place.root.url},
                            {"step", info.step},
                            {"removed", !verdict.stays},
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
  if (rules.last == 0 && rules.best == 0 && args.older_than_days <= 0 && rules.quota_bytes == 0)
    throw CLI::ValidationError("--keep-last", "say what stays: --keep-last, --keep-best, --older-than or --quota");
  if (rules.best > 0 && rules.monitor.empty())
    throw CLI::ValidationError("--keep-best", "needs --monitor: the metric that says which are the best");
}

Status run_ckpt_prune(PruneArgs args, Context& context) {
  checkpoint::KeepRules& rules = args.rules;
  rules.higher_is_better = args.mode == "max";
  rules.young = std::chrono::seconds(static_cast<int64_t>(args.older_than_days * 86400));
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(root));
  if (steps.empty() && args.tiers.empty()) return fail(ErrorCode::kNotFound, "{}: no checkpoints there", args.root);
  const auto good = good_steps(steps);
  TextTable table({{"step", true},
                   {"committed"},
                   {"bytes", true},
                   {args.dry_run ? "would" : "did"},
                   {"why"},
                   {args.tiers.empty() ? "" : "tier"}});
  Removed total;
  for (const std::string& url : args.tiers) {
    ASSIGN_OR_RETURN(Location tier, open_url(url));
    RETURN_IF_ERROR(prune({std::move(tier), true, good.empty() ? -1 : good.back()}, args, context, table, total));
  }
  RETURN_IF_ERROR(prune({root}, args, context, table, total));
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
  app.add_option("--tier", args->tiers, "A nearer tier of the same run, pruned by the same rules; several")
      ->allow_extra_args(false)
      ->option_text("URL");
  app.add_option("--keep-last", args->rules.last, "How many of the newest stay")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("K");
  app.add_option("--keep-every", args->rules.every, "Steps that N divides stay too")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_option("--keep-best", args->rules.best, "How many with the best value of --monitor stay too")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("K");
  app.add_option("--monitor", args->rules.monitor, "A metric that was given to save()")->option_text("NAME");
  app.add_option("--mode", args->mode, "Whether the smallest value of it is the best, or the largest (min)")
      ->check(CLI::IsMember({"min", "max"}))
      ->option_text("min|max");
  add_size_flag(app, "--quota", args->rules.quota_bytes,
                "All steps together take no more: the oldest go first, those of --keep-best last", 1);
  app.add_option("--older-than", args->older_than_days, "Only what was committed so many days ago goes")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("DAYS");
  app.add_flag("--dry-run", args->dry_run, "Only say what would be removed");
}

}  // namespace millrace::cli
