// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_memory_flags.h"
#include "millrace/cli/plan_partitions.h"
#include "millrace/plan/advise.h"

namespace millrace::cli {

namespace {

struct AdviseArgs {
  PlanFlags flags;
  PartitionFlags partitions;
  MemoryFlags memory;
  plan::AdviceJob job;
  std::pair<int64_t, int64_t> range{0, 0};
  int64_t target = 0;
  std::string measured_on;
};

void check_advise(AdviseArgs& args) {
  check_partition_flags(args.partitions, true);
  check_memory_flags(args.memory);
  if (args.range.second == 0 && args.target == 0) throw CLI::ValidationError("--target", "is required, or --range");
  if (args.range.second == 0) args.range = {args.target, args.target};
  std::tie(args.job.effective_low, args.job.effective_high) = args.range;
  if (args.target > 0) args.job.effective_target = args.target;
  if (!args.measured_on.empty())
    args.job.eta.measured_on = usage_value("--measured-on", plan::find_gpu(args.measured_on));
  if (args.job.eta.sample_s > 0 && args.measured_on.empty())
    throw CLI::ValidationError("--measured-on", "is required with --sample-time: each partition has another GPU");
  if (args.memory.options.shape.parameters > 0 && args.job.eta.parameters == 0)
    args.job.eta.parameters = args.memory.options.shape.parameters;
  const plan::ModelShape& shape = args.memory.options.shape;
  args.job.eta.tokens = static_cast<double>(shape.tokens + shape.images * shape.image_tokens);
  args.job.eta.recompute = args.memory.options.recompute == plan::Recompute::kFull;
}

// The price book lists prices by partition name.
Status add_prices(const AdviseArgs& args, KnownPartitions& known) {
  if (args.flags.prices.empty()) return {};
  ASSIGN_OR_RETURN(const plan::PriceBook book, price_book(args.flags));
  for (plan::Partition& partition : known.partitions) {
    const auto price = plan::find_price(book, partition.name);
    if (!price) continue;
    partition.usd_per_gpu_hour = price->usd_per_gpu_hour();
    known.why.terms.push_back(
        {partition.name + " price", plan::Range::point(price->usd_per_gpu_hour()), "USD a GPU-hour", book.name()});
  }
  return {};
}

std::string wait_text(const plan::Advice& advice) {
  if (advice.starts_now) return "none";
  return advice.wait_s ? "up to " + duration_range_text(plan::Range::point(advice.wait_s->high)) : "unknown";
}

void print_pick(const char* name, const std::optional<size_t>& index, const plan::AdvicePlan& plan, Context& context) {
  if (!index) {
    context.out.print_text(fmt::format("{}: none\n\n", name));
    return;
  }
  const plan::Advice& advice = plan.all[*index];
  std::string text = fmt::format(
      "{}: {}, {} x {} ({})\n  wait {}, then {}; {} GPU-hours{}\n  micro batch {}, accumulation {}: {} steps of {} "
      "samples\n  {}\n",
      name, advice.partition, advice.batch.gpus, advice.gpu.id, advice.state, wait_text(advice),
      duration_range_text(advice.eta.total_s), range_text(advice.eta.gpu_hours),
      advice.eta.usd ? fmt::format(", {} USD", range_text(*advice.eta.usd)) : "", advice.batch.micro,
      advice.batch.accumulation, number_text(advice.eta.steps), advice.batch.effective, advice.sbatch);
  for (const std::string& note : advice.notes) text += fmt::format("  mind: {}\n", note);
  context.out.print_text(text + "\n");
}

void print_all(const plan::AdvicePlan& plan, Context& context) {
  TextTable table({{"partition"},
                   {"gpus", true},
                   {"gpu"},
                   {"micro", true},
                   {"accumulation", true},
                   {"effective", true},
                   {"wait"},
                   {"time"},
                   {"GPU-hours"},
                   {"USD"}});
  for (size_t i = 0; i < plan.all.size(); ++i) {
    const plan::Advice& each = plan.all[i];
    std::vector<std::string> picks;
    if (plan.start_now == i) picks.emplace_back("start_now");
    if (plan.fastest == i) picks.emplace_back("fastest");
    if (plan.cheapest == i) picks.emplace_back("cheapest");
    context.out.print_json({{"type", "plan_advice"},
                            {"picked_as", picks},
                            {"partition", each.partition},
                            {"gpu", each.gpu.id},
                            {"nodes", each.where.nodes},
                            {"gpus", each.batch.gpus},
                            {"micro", each.batch.micro},
                            {"accumulation", each.batch.accumulation},
                            {"effective", each.batch.effective},
                            {"steps", each.eta.steps},
                            {"state", each.state},
                            {"starts_now", each.starts_now},
                            {"wait_s", each.wait_s ? range_json(*each.wait_s) : Json(nullptr)},
                            {"total_s", range_json(each.eta.total_s)},
                            {"gpu_hours", range_json(each.eta.gpu_hours)},
                            {"usd", each.eta.usd ? range_json(*each.eta.usd) : Json(nullptr)},
                            {"sbatch", each.sbatch},
                            {"notes", each.notes}});
    table.add({each.partition, format_count(each.batch.gpus), each.gpu.id, format_count(each.batch.micro),
               format_count(each.batch.accumulation), format_count(each.batch.effective), wait_text(each),
               duration_range_text(each.eta.total_s), range_text(each.eta.gpu_hours),
               each.eta.usd ? range_text(*each.eta.usd) : "-"});
  }
  context.out.print_text(table.to_string());
}

Status run_plan_advise(const AdviseArgs& args, Context& context) {
  ASSIGN_OR_RETURN(KnownPartitions known, known_partitions(args.partitions, context.stop));
  RETURN_IF_ERROR(add_prices(args, known));
  plan::AdviceJob job = args.job;
  ASSIGN_OR_RETURN(job.memory, memory_model(args.memory));
  ASSIGN_OR_RETURN(plan::AdvicePlan plan, plan::advise(job, known.partitions));
  print_pick("start now", plan.start_now, plan, context);
  print_pick("fastest", plan.fastest, plan, context);
  print_pick(plan.priced ? "cheapest" : "fewest GPU-hours", plan.cheapest, plan, context);
  print_all(plan, context);
  known.why.add(plan.why);
  print_why(context, known.why, args.flags);
  return {};
}

}  // namespace

void add_plan_advise(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<AdviseArgs>();
  CLI::App& app = verbs.add(
      plan, "advise", "Recommend where to run a job: earliest start, earliest end, least cost",
      {"millrace plan advise --from-slurm --range 120:144 --steps 10000 --sample-time 130ms --measured-on rtx4090 "
       "--preset groot-guide",
       "millrace plan advise --partitions lab.json --target 128 --steps 10000 --sample-time 130ms --measured-on l40s "
       "--max-gpus 8 --measured 4:14.8GiB --measured 8:21.3GiB --measured 12:27.7GiB",
       "millrace plan advise --from-slurm --target 256 --steps 50000 --preset full-adamw --parameters 1B --layers 24 "
       "--hidden 2048 --tokens 2048 --vocabulary 32000"},
      [args](Context& context) { return run_plan_advise(*args, context); }, [args] { check_advise(*args); });
  plan::EtaOptions& eta = args->job.eta;
  add_partition_flags(app, args->partitions);
  add_parsed_flag(app, "--range", args->range, "LOW:HIGH", "Acceptable samples an optimizer step", parse_whole_range);
  app.add_option("--target", args->target, "Wanted samples an optimizer step")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_parsed_flag(app, "--steps", eta.steps, "N", "Optimizer steps, of --target or the upper end of --range",
                  parse_amount)
      ->required();
  add_parsed_flag(app, "--sample-time", eta.sample_s, "TIME", "Measured: forward and backward of one sample on one GPU",
                  parse_seconds);
  app.add_option("--measured-on", args->measured_on, "GPU of that measurement")->option_text("NAME");
  add_parsed_flag(app, "--utilisation", eta.utilisation, "LOW:HIGH",
                  "Share of the peak, where there is no measurement (default: 0.3:0.5)", parse_range);
  app.add_option("--model-parallel", eta.model_parallel, "GPUs that hold one copy of the model")
      ->check(CLI::Range(int64_t{1}, int64_t{65'536}))
      ->option_text("N");
  add_parsed_flag(app, "--gpus", args->job.gpus, "N,N-N",
                  "Numbers of GPUs to choose from (default: powers of two, whole nodes)", parse_whole_list);
  app.add_option("--max-gpus", args->job.max_gpus, "Most GPUs to take (default: a partition)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_option("--script", args->job.script, "Script of the printed commands (default: job.sh)")->option_text("FILE");
  add_memory_flags(app, args->memory);
  add_prices_flag(app, args->flags);
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
