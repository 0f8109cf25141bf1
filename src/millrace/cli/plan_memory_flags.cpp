// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/plan_memory_flags.h"

#include <fmt/format.h>

#include "millrace/base/units.h"

namespace millrace::cli {

namespace {

double gib_of(int64_t bytes) {
  return static_cast<double>(bytes) / 1073741824.0;
}

// "8:21.3GiB"
plan::Measured parse_measured(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    throw CLI::ValidationError("--measured", fmt::format("'{}' is no BATCH:SIZE, for example 8:21.3GiB", text));
  const auto [batch, end] = parse_whole_range("--measured", text.substr(0, colon));
  return {batch, gib_of(usage_value("--measured", parse_bytes(text.substr(colon + 1))))};
}

// The guide's constants, with those that were given in their place.
plan::MemoryModel constant_model(const MemoryFlags& args) {
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

void check_memory_flags(MemoryFlags& args) {
  args.points.clear();
  for (const std::string& text : args.measured) args.points.push_back(parse_measured(text));
  if (args.trainable > 0) args.options.shape.trainable = args.trainable;
  if (args.per_sample_bytes > 0) args.options.per_sample_gib = gib_of(args.per_sample_bytes);
  if (args.overhead_bytes >= 0) args.options.overhead_gib = gib_of(args.overhead_bytes);
  if (args.preset.empty() && args.options.shape.parameters > 0) args.preset = "full-adamw";
  if (!args.preset.empty()) args.options.preset = args.preset;
}

Result<plan::MemoryModel> memory_model(const MemoryFlags& args) {
  plan::MemoryModel model = constant_model(args);
  if (!args.preset.empty()) {
    ASSIGN_OR_RETURN(model, plan::preset_model(args.options));
  }
  if (args.points.empty()) return model;
  return plan::calibrate(model, args.points);
}

void add_memory_flags(CLI::App& app, MemoryFlags& args) {
  std::vector<std::string> names;
  for (const plan::Preset& preset : plan::presets()) names.emplace_back(preset.name);
  add_choice_flag(
      app, "--preset", names, [&args](const std::string& name) { args.preset = name; },
      "Count weights, gradients and optimizer so (default: the GR00T guide's 5 + 2 + 1.2 GiB a sample)");
  add_shape_flags(app, args.options, args.trainable);
  add_size_flag(app, "--per-sample", args.per_sample_bytes, "Activations of one sample");
  add_size_flag(app, "--fixed", args.fixed_bytes, "Weights and the rest, instead of the guide's 5 GiB");
  add_size_flag(app, "--overhead", args.overhead_bytes, "Context, NCCL buffers, fragmentation (default: 2GiB)");
  app.add_option("--measured", args.measured, "A batch and its peak of allocated memory; may be repeated")
      ->option_text("BATCH:SIZE");
}

}  // namespace millrace::cli
