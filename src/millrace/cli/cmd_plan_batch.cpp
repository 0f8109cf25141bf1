// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/units.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/memory.h"

namespace millrace::cli {

namespace {

constexpr double kGib = 1073741824.0;

struct BatchArgs {
  PlanFlags flags;
  std::string gpu;
  int64_t memory_bytes = 0;
  std::string preset;  // empty: the guide's constants
  plan::PresetOptions options;
  double trainable = 0;
  int64_t per_sample_bytes = 0, fixed_bytes = -1, overhead_bytes = -1;
  std::vector<std::string> measured;
  std::vector<plan::Measured> points;
};

double gib_of(int64_t bytes) {
  return static_cast<double>(bytes) / kGib;
}

// "8:21.3GiB"
plan::Measured parse_measured(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    throw CLI::ValidationError("--measured", fmt::format("'{}' is no BATCH:SIZE, for example 8:21.3GiB", text));
  const auto [batch, end] = parse_whole_range("--measured", text.substr(0, colon));
  return {batch, gib_of(usage_value("--measured", parse_bytes(text.substr(colon + 1))))};
}

void check_batch(BatchArgs& args) {
  if (args.gpu.empty() && args.memory_bytes == 0) throw CLI::ValidationError("--gpu", "is required, or --memory");
  args.points.clear();
  for (const std::string& text : args.measured) args.points.push_back(parse_measured(text));
  if (args.trainable > 0) args.options.shape.trainable = args.trainable;
  if (args.per_sample_bytes > 0) args.options.per_sample_gib = gib_of(args.per_sample_bytes);
  if (args.overhead_bytes >= 0) args.options.overhead_gib = gib_of(args.overhead_bytes);
  if (!args.preset.empty()) args.options.preset = args.preset;
  if (args.preset.empty() && args.options.shape.parameters > 0) args.preset = "full-adamw";
}

// The guide's constants, with those that were given in their place.
plan::MemoryModel constant_model(const BatchArgs& args) {
  plan::MemoryModel model = plan::guide_model();
  const auto replace = [&](const char* name, double gib) {
    for (plan::Term& term : model.why.terms) {
      if (term.name == name) term = {name, plan::Range::point(gib), "GiB", plan::kGiven};
    }
    model.basis = "given constants";
  };
  if (args.fixed_bytes >= 0) replace("fixed", (model.fixed_gib = plan::Range::point(gib_of(args.fixed_bytes))).low);
  if (args.per_sample_bytes > 0)
    replace("per_sample", (model.per_sample_gib = plan::Range::point(gib_of(args.per_sample_bytes))).low);
  if (args.overhead_bytes >= 0) replace("overhead", model.overhead_gib = gib_of(args.overhead_bytes));
  return model;
}

Result<plan::MemoryModel> memory_model(const BatchArgs& args) {
  plan::MemoryModel model = constant_model(args);
  if (!args.preset.empty()) {
    ASSIGN_OR_RETURN(model, plan::preset_model(args.options));
  }
  if (args.points.empty()) return model;
  return plan::calibrate(model, args.points);
}

std::string batch_text(int64_t low, int64_t high) {
  return low == high ? format_count(low) : fmt::format("{} to {}", low, high);
}

Status run_batch(const BatchArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const plan::MemoryModel model, memory_model(args));
  std::string gpu_id, source = plan::kGiven;
  double usable_gib = gib_of(args.memory_bytes);
  if (!args.gpu.empty()) {
    ASSIGN_OR_RETURN(const plan::Gpu gpu, plan::find_gpu(args.gpu));
    gpu_id = gpu.id;
    if (args.memory_bytes == 0) {
      usable_gib = gpu.memory_mib.value / 1024;
      source = fmt::format("{:.0f} MiB of the {}: {}", gpu.memory_mib.value, gpu.name, gpu.memory_mib.source_text());
    }
  }
  plan::BatchPlan plan = plan::plan_batch(model, usable_gib);
  plan.why.terms.insert(plan.why.terms.begin(), {"usable", plan::Range::point(usable_gib), "GiB", source});
  if (model.basis == "guide constants") {
    for (std::string& note : plan::guide_disagreements(gpu_id)) plan.why.notes.push_back(std::move(note));
  }
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

void add_shape_flags(CLI::App& app, plan::PresetOptions& options, double& trainable) {
  plan::ModelShape& shape = options.shape;
  add_parsed_flag(app, "--parameters", shape.parameters, "N", "Of the whole model: 3B, 350M", parse_amount);
  app.add_option("--trainable", trainable, "Share of the parameters that are trained (default: the preset's)")
      ->check(CLI::Range(1e-6, 1.0))
      ->option_text("SHARE");
  const auto add_count = [&](const char* flag, int64_t& value, const char* description) {
    app.add_option(flag, value, description)->check(CLI::Range(int64_t{1}, kMaxCount))->option_text("N");
  };
  add_count("--layers", shape.layers, "Layers");
  add_count("--hidden", shape.hidden, "Hidden size");
  add_count("--tokens", shape.tokens, "Text tokens a sample");
  add_count("--images", shape.images, "Images a sample: cameras x frames");
  add_count("--image-tokens", shape.image_tokens, "Tokens an image");
  add_count("--vocabulary", shape.vocabulary, "Entries of the output layer (default: logits are not counted)");
  app.add_option("--zero", options.zero_stage, "ZeRO stage: 1 optimizer, 2 gradients too, 3 or FSDP weights too")
      ->check(CLI::Range(0, 3))
      ->option_text("0-3");
  add_count("--shards", options.shards, "Ranks that share one model's state");
  add_choice_flag(
      app, "--recompute", {"none", "full"},
      [&options](const std::string& word) {
        options.recompute = word == "full" ? plan::Recompute::kFull : plan::Recompute::kNone;
      },
      "Activations that are kept: all, or one a layer");
}

}  // namespace

void add_plan_batch(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<BatchArgs>();
  CLI::App& app = verbs.add(
      plan, "batch", "The largest batch that fits a GPU, and three careful ones",
      {"millrace plan batch --gpu l40s", "millrace plan batch --gpu rtx4090 --measured 4:14.8GiB --measured 8:21.3GiB",
       "millrace plan batch --gpu h100 --preset lora --parameters 7B --layers 32 --hidden 4096 --tokens 2048"},
      [args](Context& context) { return run_batch(*args, context); }, [args] { check_batch(*args); });
  app.add_option("--gpu", args->gpu, "Of `plan gpus`; a MIG slice is h100-nvl:1g.12gb")->option_text("NAME");
  add_size_flag(app, "--memory", args->memory_bytes, "Memory of the GPU, instead of the catalogue's");
  std::vector<std::string> names;
  for (const plan::Preset& preset : plan::presets()) names.emplace_back(preset.name);
  add_choice_flag(
      app, "--preset", names, [args](const std::string& name) { args->preset = name; },
      "Count weights, gradients and optimizer so (default: the GR00T guide's 5 + 2 + 1.2 GiB a sample)");
  add_shape_flags(app, args->options, args->trainable);
  add_size_flag(app, "--per-sample", args->per_sample_bytes, "Activations of one sample");
  add_size_flag(app, "--fixed", args->fixed_bytes, "Weights and the rest, instead of the guide's 5 GiB");
  add_size_flag(app, "--overhead", args->overhead_bytes, "Context, NCCL buffers, fragmentation (default: 2GiB)");
  app.add_option("--measured", args->measured, "A batch and its peak of allocated memory; may be repeated")
      ->option_text("BATCH:SIZE");
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
