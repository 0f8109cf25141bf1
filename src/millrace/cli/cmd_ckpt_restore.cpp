// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

struct RestoreArgs {
  std::string root, target;
  std::vector<std::string> tiers;
  std::optional<int64_t> step;
  bool dry_run = false;
};

Status run_ckpt_restore(const RestoreArgs& args, Context& context) {
  std::vector<Location> sources;
  for (const std::string& tier : args.tiers) {
    ASSIGN_OR_RETURN(sources.emplace_back(), open_url(tier));
  }
  ASSIGN_OR_RETURN(sources.emplace_back(), open_url(args.root));
  ASSIGN_OR_RETURN(const Location target, open_url(args.target));
  std::optional<int64_t> step = args.step;
  if (!step) {  // the newest good one of the newest line
    std::vector<checkpoint::StepInfo> steps;
    for (const Location& source : sources) {
      ASSIGN_OR_RETURN(const auto found, checkpoint::list_steps(source));
      steps.insert(steps.end(), found.begin(), found.end());
    }
    checkpoint::mark_left(steps);
    for (const checkpoint::StepInfo& info : steps) {
      if (!info.damage && !info.is_left) step = std::max(step.value_or(-1), info.step);
    }
  }
  if (!step) return fail(ErrorCode::kNotFound, "{}: no checkpoints there", args.root);
  ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::open(sources, *step));
  const checkpoint::StepInfo& info = checkpoint->info();
  checkpoint::StepCopy copied{.step = *step, .parts = info.world_size};
  if (!args.dry_run) {
    Progress progress;
    int64_t bytes = info.bytes, parts = info.world_size;
    for (const checkpoint::Ancestor& base : info.bases) {  // which are copied, too
      ASSIGN_OR_RETURN(const auto earlier, checkpoint::Checkpoint::open(sources, base.step));
      bytes += earlier->info().bytes;
      parts += earlier->info().world_size;
    }
    progress.set_totals(bytes, parts);
    const auto view = context.out.watch(progress, "ckpt restore");
    ASSIGN_OR_RETURN(copied, checkpoint::copy_step(sources, target, *step, {.progress = &progress}, context.stop));
  }
  const std::string text = args.dry_run
                               ? fmt::format("would copy step {}: {}, {}\n", *step, counted(info.world_size, "part"),
                                             format_bytes(info.bytes))
                               : fmt::format("step {} is in {}: copied {} of {}, {}\n", *step, target.url,
                                             copied.copied, counted(copied.parts, "part"), format_bytes(copied.bytes));
  context.out.print({{"type", "ckpt_restore"},
                     {"step", *step},
                     {"target", target.url},
                     {"parts", copied.parts},
                     {"copied", copied.copied},
                     {"bytes", copied.bytes},
                     {"dry_run", args.dry_run}},
                    text);
  return {};
}

}  // namespace

void add_ckpt_restore(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<RestoreArgs>();
  CLI::App& app = verbs.add(ckpt, "restore", "Copy a step into another folder, verified; mend it where it is damaged",
                            {"millrace ckpt restore s3://b/run1 /nvme/run1",
                             "millrace ckpt restore s3://b/run1 /fsx/run1 --tier /fsx/run1 --step 2000",
                             "millrace ckpt restore s3://b/run1 /nvme/run1 --tier /fsx/run1 --dry-run"},
                            [args](Context& context) { return run_ckpt_restore(*args, context); });
  app.add_option("ROOT", args->root, "Folder of checkpoints")->required()->option_text(" ");
  app.add_option("TARGET", args->target, "Folder that gets the step; parts that it has whole stay")
      ->required()
      ->option_text(" ");
  app.add_option("--tier", args->tiers, "A nearer tier of the same run to read from first; several, nearest first")
      ->allow_extra_args(false)
      ->option_text("URL");
  app.add_option("--step", args->step, "The step (default: the newest of the newest line)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  app.add_flag("--dry-run", args->dry_run, "Only print the step and its size");
}

}  // namespace millrace::cli
