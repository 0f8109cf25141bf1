// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/checkpoints.h"

namespace millrace::cli {

namespace {

struct CheckpointArgs {
  PlanFlags flags;
  plan::CheckpointOptions options;
  std::string kind = "resumable";
};

std::string bytes_text(double bytes) {
  return bytes < 9e18 ? format_bytes(std::llround(bytes)) : number_text(bytes) + " B";
}

template <class T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Status run_plan_checkpoint(const CheckpointArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const plan::CheckpointPlan plan, plan::plan_checkpoints(args.options));
  TextTable table({{"what"}, {"answer"}});
  table.add({"one checkpoint", bytes_text(plan.bytes)});
  if (args.options.models > 1) {
    table.add({fmt::format("of {} models", args.options.models),
               bytes_text(plan.bytes * static_cast<double>(args.options.models))});
  }
  if (plan.fit)
    table.add({"fit the quota", counted(*plan.fit, "checkpoint") + (args.options.models > 1 ? " of each model" : "")});
  if (plan.keep_last_safe) table.add({"keep last, safely", format_count(*plan.keep_last_safe)});
  if (plan.keep_bytes)
    table.add({fmt::format("space to keep {}", args.options.keep_last), bytes_text(*plan.keep_bytes)});
  if (plan.write_s) table.add({"writing one", duration_range_text(plan::Range::point(*plan.write_s))});
  if (plan.write_all_s && args.options.models > 1)
    table.add({"writing all at once", duration_range_text(plan::Range::point(*plan.write_all_s))});
  if (plan.mtbf_s) table.add({"a failure every", duration_range_text(plan::Range::point(*plan.mtbf_s))});
  if (plan.young_s) table.add({"interval by Young", duration_range_text(plan::Range::point(*plan.young_s))});
  if (plan.daly_s) table.add({"interval by Daly", duration_range_text(plan::Range::point(*plan.daly_s))});
  if (plan.overhead) table.add({"lost at that", fmt::format("{:.2f} % of the time", 100 * *plan.overhead)});
  context.out.print({{"type", "plan_checkpoint"},
                     {"bytes", plan.bytes},
                     {"models", args.options.models},
                     {"fit", value_or_null(plan.fit)},
                     {"keep_last_safe", value_or_null(plan.keep_last_safe)},
                     {"keep_bytes", value_or_null(plan.keep_bytes)},
                     {"write_s", value_or_null(plan.write_s)},
                     {"write_all_s", value_or_null(plan.write_all_s)},
                     {"mtbf_s", value_or_null(plan.mtbf_s)},
                     {"young_s", value_or_null(plan.young_s)},
                     {"daly_s", value_or_null(plan.daly_s)},
                     {"lost_share", value_or_null(plan.overhead)}},
                    table.to_string());
  print_why(context, plan.why, args.flags);
  return {};
}

}  // namespace

void add_plan_checkpoint(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<CheckpointArgs>();
  CLI::App& app = verbs.add(
      plan, "checkpoint", "Estimate size, space, write time and interval of checkpoints",
      {"millrace plan checkpoint --parameters 70B --models 7 --quota 7.7TB --bandwidth 7.03GB/s",
       "millrace plan checkpoint --size 5GB --quota 23.8GB --used 1GB --keep-last 5",
       "millrace plan checkpoint --parameters 7B --gpus 640 --stall 60s"},
      [args](Context& context) { return run_plan_checkpoint(*args, context); },
      [args] { args->options.kind = args->kind; });
  plan::CheckpointOptions& options = args->options;
  add_parsed_flag(app, "--parameters", options.parameters, "N", "Parameters of the model: 70B", parse_parameters);
  std::vector<std::string> kinds;
  for (const plan::CheckpointKind& kind : plan::checkpoint_kinds()) kinds.emplace_back(kind.name);
  add_choice_flag(
      app, "--kind", kinds, [args](const std::string& kind) { args->kind = kind; },
      "State to save: 14, 12, 2 or 4 bytes a parameter (default: resumable)");
  add_parsed_flag(app, "--size", options.bytes, "SIZE", "Size of one checkpoint, when it is known", parse_size);
  app.add_option("--models", options.models, "Models that share quota and bandwidth (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_parsed_flag(app, "--quota", options.quota_bytes, "SIZE", "Available space", parse_size);
  add_parsed_flag(app, "--used", options.used_bytes, "SIZE", "Space of the quota that other data use", parse_size);
  app.add_option("--keep-last", options.keep_last, "Checkpoints to keep")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_parsed_flag(app, "--bandwidth", options.bandwidth_bytes_per_s, "RATE", "Write bandwidth: 7.03GB/s",
                  parse_positive_rate);
  add_parsed_flag(app, "--stall", options.stall_s, "TIME",
                  "Time that one save stops training (default: the write time)", parse_seconds);
  add_parsed_flag(app, "--mtbf", options.mtbf_s, "TIME",
                  "Mean time between failures of the whole job (default: from --gpus)", parse_positive_seconds);
  app.add_option("--gpus", options.gpus, "GPUs of the job")->check(CLI::Range(int64_t{1}, kMaxCount))->option_text("N");
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
