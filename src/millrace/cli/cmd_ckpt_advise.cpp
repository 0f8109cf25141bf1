// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/checkpoint_storage.h"
#include "millrace/plan/checkpoints.h"

namespace millrace::cli {

namespace {

struct AdviseArgs {
  std::string root;
  plan::CheckpointOptions options;
  double write_within_s = 0;  // 0: half of Daly's interval
  int64_t nodes = 1, keep = 2;
  PlanFlags flags;
};

// The median of the times between two commits of one attempt, in seconds; nullopt with fewer than two.
std::optional<double> usual_interval_s(const std::vector<checkpoint::StepInfo>& steps) {
  std::vector<double> seconds;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].damage || steps[i - 1].damage || steps[i].attempt != steps[i - 1].attempt) continue;
    const double between = std::chrono::duration<double>(steps[i].committed - steps[i - 1].committed).count();
    if (between > 0) seconds.push_back(between);
  }
  if (seconds.empty()) return std::nullopt;
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// The share of time that saves every `interval_s` and the work repeated after failures cost: cost/T + T/(2 mtbf).
double lost_share(double interval_s, double cost_s, double mtbf_s) {
  return cost_s / interval_s + interval_s / (2 * mtbf_s);
}

std::string lost_text(double share) {
  if (share >= 1) return "all of the time: failures come too often for it to make progress";
  return fmt::format("{:.2f} % of the time", 100 * share);
}

Json seconds_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// What carries checkpoints of this size at this interval.
Status advise_on_storage(const AdviseArgs& args, const checkpoint::StepInfo& info, double daly_s, Context& context) {
  const plan::StorageDemand demand{.bytes = static_cast<double>(info.bytes),
                                   .ranks = info.world_size,
                                   .nodes = args.nodes,
                                   .keep = args.keep,
                                   .write_s = args.write_within_s > 0 ? args.write_within_s : daly_s / 2};
  ASSIGN_OR_RETURN(const plan::StoragePlan storage, plan::plan_checkpoint_storage(demand));
  const auto duration = [](double seconds) { return duration_range_text(plan::Range::point(seconds)); };
  TextTable table({{"storage"}, {"settings"}, {"MB/s", true}, {"one write", true}, {"stripes", true}, {"note"}});
  for (const plan::StorageChoice& choice : storage.choices) {
    context.out.print_json({{"type", "ckpt_storage"},
                            {"storage", choice.name},
                            {"carries", choice.carries},
                            {"gib", choice.gib > 0 ? Json(choice.gib) : Json(nullptr)},
                            {"iops", choice.iops > 0 ? Json(choice.iops) : Json(nullptr)},
                            {"bytes_per_s", choice.bytes_per_s},
                            {"write_s", choice.write_s},
                            {"stripe_count", choice.stripe_count > 0 ? Json(choice.stripe_count) : Json(nullptr)},
                            {"stripe_bytes", choice.stripe_bytes > 0 ? Json(choice.stripe_bytes) : Json(nullptr)},
                            {"settings", choice.what},
                            {"note", choice.note}});
    table.add(
        {choice.carries ? choice.name : choice.name + " (no)", choice.what,
         fmt::format("{:.0f}", choice.bytes_per_s / 1e6), duration(choice.write_s),
         choice.stripe_count > 0 ? fmt::format("{} x {}", choice.stripe_count, format_bytes(choice.stripe_bytes)) : "",
         choice.note});
  }
  context.out.print_text(fmt::format("\nto write {} within {}, and to keep {} and one more:\n",
                                     format_bytes(info.bytes), duration(demand.write_s), args.keep) +
                         table.to_string());
  print_why(context, storage.why, args.flags);
  return {};
}

Status run_ckpt_advise(const AdviseArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(root));
  const checkpoint::StepInfo* const newest = checkpoint::newest_step(steps);
  if (newest == nullptr) return fail(ErrorCode::kNotFound, "{}: no checkpoints there", args.root);
  plan::CheckpointOptions options = args.options;
  options.bytes = static_cast<double>(newest->bytes);
  ASSIGN_OR_RETURN(const plan::CheckpointPlan plan, plan::plan_checkpoints(options));
  const double cost = options.stall_s > 0 ? options.stall_s : plan.write_s.value_or(0);
  if (cost <= 0 || !plan.daly_s || !plan.mtbf_s)
    return fail(ErrorCode::kInvalidArgument,
                "give what a save costs training (--stall, or --bandwidth) and how often the job fails (--mtbf, or "
                "--gpus)");
  const auto usual = usual_interval_s(steps);
  TextTable table({{"what"}, {"answer"}});
  const auto duration = [](double seconds) { return duration_range_text(plan::Range::point(seconds)); };
  table.add({"one checkpoint", fmt::format("{}, step {}", format_bytes(newest->bytes), newest->step)});
  table.add({"it costs training", duration(cost)});
  table.add({"a failure every", duration(*plan.mtbf_s)});
  table.add({"interval by Young", duration(*plan.young_s)});
  table.add({"interval by Daly", duration(*plan.daly_s)});
  table.add({"lost at that", lost_text(lost_share(*plan.daly_s, cost, *plan.mtbf_s))});
  std::optional<double> lost_now;
  if (usual) {
    lost_now = lost_share(*usual, cost, *plan.mtbf_s);
    table.add({"interval now", duration(*usual)});
    table.add({"lost at that", lost_text(*lost_now)});
  }
  context.out.print({{"type", "ckpt_advise"},
                     {"step", newest->step},
                     {"bytes", newest->bytes},
                     {"cost_s", cost},
                     {"mtbf_s", *plan.mtbf_s},
                     {"young_s", *plan.young_s},
                     {"daly_s", *plan.daly_s},
                     {"lost_share", lost_share(*plan.daly_s, cost, *plan.mtbf_s)},
                     {"interval_s", seconds_or_null(usual)},
                     {"interval_lost_share", seconds_or_null(lost_now)}},
                    table.to_string());
  print_why(context, plan.why, args.flags);
  return advise_on_storage(args, *newest, *plan.daly_s, context);
}

}  // namespace

void add_ckpt_advise(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<AdviseArgs>();
  CLI::App& app = verbs.add(ckpt, "advise", "Recommend a save interval and a storage from the steps of ROOT",
                            {"millrace ckpt advise run1/checkpoints --stall 400ms --mtbf 12h",
                             "millrace ckpt advise s3://b/run1 --stall 2s --gpus 512 --nodes 64 --keep 3",
                             "millrace ckpt advise run1/checkpoints --bandwidth 2GB/s --gpus 64 --explain"},
                            [args](Context& context) { return run_ckpt_advise(*args, context); });
  app.add_option("ROOT", args->root, "Folder of checkpoints")->required()->option_text(" ");
  add_parsed_flag(app, "--stall", args->options.stall_s, "TIME",
                  "Time that one save stops training: Checkpointer.stats() has it", parse_seconds);
  add_parsed_flag(app, "--bandwidth", args->options.bandwidth_bytes_per_s, "RATE",
                  "Write bandwidth, for saves that stop training until they are written", parse_positive_rate);
  add_parsed_flag(app, "--mtbf", args->options.mtbf_s, "TIME", "Mean time between failures of the whole job",
                  parse_positive_seconds);
  app.add_option("--gpus", args->options.gpus, "GPUs of the job, for a usual failure rate")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_parsed_flag(app, "--write-within", args->write_within_s, "TIME",
                  "Time limit for writing one checkpoint (default: half of Daly's interval)", parse_seconds);
  app.add_option("--nodes", args->nodes, "Nodes that write together (1)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_option("--keep", args->keep, "Checkpoints that stay (2); one more is there while it is written")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("K");
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
