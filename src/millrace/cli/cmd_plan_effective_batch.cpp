// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/effective_batch.h"

namespace millrace::cli {

namespace {

struct EffectiveBatchArgs {
  PlanFlags flags;
  plan::EffectiveBatchOptions options;
  std::pair<int64_t, int64_t> range{0, 0}, micro{1, 32};
  int64_t target = 0;
  int64_t limit = 20;
};

void check_effective_batch(EffectiveBatchArgs& args) {
  if (args.range.second == 0 && args.target == 0) throw CLI::ValidationError("--target", "is required, or --range");
  if (args.range.second == 0) args.range = {args.target, args.target};
  if (args.target != 0) args.options.target = args.target;
  std::tie(args.options.low, args.options.high) = args.range;
  std::tie(args.options.micro_low, args.options.micro_high) = args.micro;
}

void print_way(const plan::EffectiveBatch& way, std::string_view fit, TextTable& table, Context& context) {
  context.out.print_json({{"type", "plan_effective_batch"},
                          {"fit", fit},
                          {"micro", way.micro},
                          {"gpus", way.gpus},
                          {"data_parallel", way.data_parallel},
                          {"accumulation", way.accumulation},
                          {"effective", way.effective},
                          {"learning_rate_factor", way.learning_rate_factor}});
  table.add({format_count(way.effective), format_count(way.micro), format_count(way.gpus),
             format_count(way.data_parallel), format_count(way.accumulation), number_text(way.learning_rate_factor),
             std::string(fit)});
}

Status run_effective_batch(const EffectiveBatchArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const plan::EffectiveBatchPlan plan, plan::plan_effective_batch(args.options));
  TextTable table({{"effective", true},
                   {"micro", true},
                   {"gpus", true},
                   {"ranks", true},
                   {"accumulation", true},
                   {"lr factor", true},
                   {"fit"}});
  int64_t shown = 0;
  for (const plan::EffectiveBatch& way : plan.exact) {
    if (shown++ == args.limit) break;
    print_way(way, "in range", table, context);
  }
  if (plan.below) print_way(*plan.below, "nearest below", table, context);
  if (plan.above) print_way(*plan.above, "nearest above", table, context);
  context.out.print_text(table.to_string());
  const auto found = static_cast<int64_t>(plan.exact.size());
  if (found > args.limit) context.out.print_text(fmt::format("... {} more (--limit)\n", found - args.limit));
  print_why(context, plan.why, args.flags);
  return {};
}

}  // namespace

void add_plan_effective_batch(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<EffectiveBatchArgs>();
  CLI::App& app = verbs.add(
      plan, "effective-batch", "Micro batch x GPUs x accumulation that give an effective batch",
      {"millrace plan effective-batch --range 120:144 --gpus 4,6,8 --micro 4:14",
       "millrace plan effective-batch --target 256 --gpus 1-8",
       "millrace plan effective-batch --range 120:144 --gpus 88 --json"},
      [args](Context& context) { return run_effective_batch(*args, context); },
      [args] { check_effective_batch(*args); });
  plan::EffectiveBatchOptions& options = args->options;
  add_parsed_flag(app, "--range", args->range, "LOW:HIGH", "Acceptable samples an optimizer step", parse_whole_range);
  app.add_option("--target", args->target, "Wanted samples an optimizer step; within --range the nearest")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_parsed_flag(app, "--gpus", options.gpus, "N,N-N", "Numbers of GPUs to choose from", parse_whole_list)->required();
  add_parsed_flag(app, "--micro", args->micro, "LOW:HIGH",
                  "Samples per GPU and pass (default: 1:32; `plan batch` says what fits)", parse_whole_range);
  app.add_option("--max-accumulation", options.max_accumulation, "Most passes a step (default: 64)")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->option_text("N");
  const auto add_parallel = [&](const char* flag, int64_t& value, const char* description) {
    app.add_option(flag, value, description)->check(CLI::Range(int64_t{1}, int64_t{65'536}))->option_text("N");
  };
  add_parallel("--tensor-parallel", options.tensor_parallel, "GPUs that share each layer");
  add_parallel("--pipeline-parallel", options.pipeline_parallel, "Stages of layers");
  add_parallel("--context-parallel", options.context_parallel, "GPUs that share each sequence");
  app.add_option("--limit", args->limit, "Show at most this many (default: 20)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
