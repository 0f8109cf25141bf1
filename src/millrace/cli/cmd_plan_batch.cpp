// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_memory_flags.h"
#include "millrace/plan/catalogue.h"

namespace millrace::cli {

namespace {

constexpr double kGib = 1073741824.0;

struct BatchArgs {
  PlanFlags flags;
  std::string gpu_name;
  std::optional<plan::Gpu> gpu;
  double memory_bytes = 0;
  MemoryFlags memory;
};

void check_batch(BatchArgs& args) {
  if (args.gpu_name.empty() && args.memory_bytes == 0) throw CLI::ValidationError("--gpu", "is required, or --memory");
  if (!args.gpu_name.empty()) args.gpu = usage_value("--gpu", plan::find_gpu(args.gpu_name));
  check_memory_flags(args.memory);
}

std::string batch_text(int64_t low, int64_t high) {
  return low == high ? format_count(low) : fmt::format("{} to {}", low, high);
}

Json points_json(const plan::MemoryModel& model) {
  Json points = Json::array();
  for (const auto& [point, bound] : model.points) {
    const char* const line = bound == plan::Bound::kStep          ? "step"
                             : bound == plan::Bound::kActivations ? "activations"
                                                                  : "open";
    points.push_back({{"batch", point.batch},
                      {"gib", point.gib},
                      {"reserved_gib", point.reserved_gib ? Json(*point.reserved_gib) : Json(nullptr)},
                      {"line", line}});
  }
  return points;
}

Status run_batch(const BatchArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const plan::MemoryModel model, memory_model(args.memory));
  std::string gpu_id, source = plan::kGiven;
  double usable_gib = args.memory_bytes / kGib;
  if (args.gpu) gpu_id = args.gpu->id;
  if (args.gpu && args.memory_bytes == 0) {
    usable_gib = args.gpu->memory_mib.value / 1024;
    source = fmt::format("{:.0f} MiB of the {}: {}", args.gpu->memory_mib.value, args.gpu->name,
                         args.gpu->memory_mib.source_text());
  }
  ASSIGN_OR_RETURN(plan::BatchPlan plan, plan::plan_batch(model, usable_gib));
  plan.why.terms.insert(plan.why.terms.begin(), {"usable", plan::Range::point(usable_gib), "GiB", source});
  Json levels = Json::array();
  TextTable table({{"level"}, {"of memory", true}, {"batch", true}, {"used GiB", true}});
  for (const plan::Level& level : plan.levels) {
    levels.push_back({{"level", level.name},
                      {"utilisation", level.utilisation},
                      {"batch_low", level.batch_low},
                      {"batch_high", level.batch_high},
                      {"used_gib", range_json(level.used_gib)}});
    table.add({std::string(level.name), fmt::format("{:.0f} %", 100 * level.utilisation),
               batch_text(level.batch_low, level.batch_high), range_text(level.used_gib)});
  }
  table.add({"maximum", "100 %", batch_text(plan.max_low, plan.max_high), ""});
  context.out.print(
      {{"type", "plan_batch"},
       {"gpu", gpu_id},
       {"usable_gib", usable_gib},
       {"basis", model.basis},
       {"confidence", model.confidence},
       {"residual_gib", model.residual_gib ? Json(*model.residual_gib) : Json(nullptr)},
       {"fixed_gib", range_json(model.fixed_gib)},
       {"per_sample_gib", range_json(model.per_sample_gib)},
       {"overhead_gib", model.overhead_gib},
       {"floor_gib", model.floor_gib},
       {"measured", points_json(model)},
       {"max_low", plan.max_low},
       {"max_high", plan.max_high},
       {"levels", std::move(levels)}},
      fmt::format("{}{} GiB, by {}; confidence {}{}\n\n{}", gpu_id.empty() ? "" : gpu_id + ": ",
                  number_text(usable_gib), model.basis, model.confidence,
                  model.residual_gib ? fmt::format(", residual {} GiB", number_text(*model.residual_gib)) : "",
                  table.to_string()));
  print_why(context, plan.why, args.flags);
  return {};
}

}  // namespace

void add_plan_batch(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<BatchArgs>();
  CLI::App& app = verbs.add(
      plan, "batch", "Find the largest batch that fits a GPU, and three safer ones",
      {"millrace plan batch --gpu l40s --preset groot-guide",
       "millrace plan batch --gpu rtx4090 --measured 4:14.8GiB --measured 8:21.3GiB --measured 12:27.7GiB",
       "millrace plan batch --gpu h100 --preset lora --parameters 7B --layers 32 --hidden 4096 --tokens 2048 "
       "--vocabulary 32000"},
      [args](Context& context) { return run_batch(*args, context); }, [args] { check_batch(*args); });
  app.add_option("--gpu", args->gpu_name, "A GPU of `plan gpus`; a MIG slice is h100-nvl:1g.12gb")->option_text("NAME");
  add_parsed_flag(app, "--memory", args->memory_bytes, "SIZE", "Memory of the GPU, instead of the catalogue's",
                  parse_positive_size);
  add_memory_flags(app, args->memory);
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
