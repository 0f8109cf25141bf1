// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/plan_memory_flags.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::cli {

namespace {

double gib_of(double bytes) {
  return bytes / 1073741824.0;
}

// "8:21.3GiB", or with what the allocator reserved "8:21.3GiB:24GiB"
plan::Measured parse_measured(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    throw CLI::ValidationError(
        "--measured", fmt::format("'{}' is not BATCH:ALLOCATED[:RESERVED], for example 8:21.3GiB:24GiB", text));
  const auto [batch, end] = parse_whole_range("--measured", text.substr(0, colon));
  const size_t second = text.find(':', colon + 1);
  const auto size = [&](size_t begin, size_t end_of) {
    return gib_of(parse_positive_size("--measured", text.substr(begin, end_of - begin)));
  };
  plan::Measured point{.batch = batch, .gib = size(colon + 1, std::min(second, text.size()))};
  if (second != std::string::npos) point.reserved_gib = size(second + 1, text.size());
  return point;
}

bool has_shape(const plan::ModelShape& shape) {
  return shape.parameters > 0 || shape.layers > 0 || shape.hidden > 0 || shape.tokens > 0 || shape.images > 0;
}

bool same_batch(const std::vector<plan::Measured>& points) {
  return std::all_of(points.begin(), points.end(),
                     [&](const plan::Measured& point) { return point.batch == points[0].batch; });
}

// Without a preset: needs measured peaks, given values or the model's facts.
void check_given(const MemoryFlags& args) {
  const bool measured = !args.points.empty() && (!same_batch(args.points) || args.per_sample_bytes > 0);
  if (measured || (args.fixed_bytes >= 0 && args.per_sample_bytes > 0)) return;
  const char* what = !args.points.empty() ? "three batch sizes are required, or --per-sample"
                     : args.fixed_bytes >= 0 || args.per_sample_bytes > 0
                         ? "--fixed and --per-sample are required together"
                         : "what the model takes is required";
  throw CLI::ValidationError(
      args.points.empty() ? "--parameters" : "--measured",
      fmt::format("{}. Give its facts (--parameters 3B --layers 32 --hidden 4096 --tokens 2048 --vocabulary 32000), or "
                  "three measured peaks (--measured 4:14.8GiB --measured 8:21.3GiB --measured 12:27.7GiB), or --fixed "
                  "SIZE and --per-sample SIZE; the constants of the GR00T guide are --preset {}",
                  what, plan::kGrootGuidePreset));
}

// The guide's constants, or none, with given values in their place.
plan::MemoryModel constant_model(const MemoryFlags& args) {
  plan::MemoryModel model = plan::groot_guide_model();
  if (args.preset.empty()) {
    model = {.basis = "given constants", .overhead_gib = plan::kDefaultOverheadGib, .confidence = "low"};
    model.why.terms = {{"fixed", {}, "GiB", plan::kGiven},
                       {"per_sample", {}, "GiB", plan::kGiven},
                       {"overhead", plan::Range::point(model.overhead_gib), "GiB",
                        "context of 0.5 to 1 GiB, NCCL buffers and fragmentation"}};
  }
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

void add_shape_flags(CLI::App& app, plan::PresetOptions& options, double& trainable, int64_t& vocabulary) {
  plan::ModelShape& shape = options.shape;
  add_parsed_flag(app, "--parameters", shape.parameters, "N", "Parameters of the whole model: 3B, 350M",
                  parse_parameters);
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
  app.add_option("--vocabulary", vocabulary, "Entries of the output layer; 0 for a model without logits")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  app.add_flag("--fused-loss", options.fused_loss,
               "The loss is compiled, or fused with the output layer: no FP32 copy of the logits");
  app.add_option("--zero", options.zero_stage, "ZeRO stage: 1 optimizer, 2 gradients too, 3 or FSDP weights too")
      ->check(CLI::Range(0, 3))
      ->option_text("0-3");
  add_count("--shards", options.shards, "Ranks that share one model's state");
  add_choice_flag(
      app, "--recompute", {"none", "selective", "full"},
      [&options](const std::string& word) {
        options.recompute = word == "full"        ? plan::Recompute::kFull
                            : word == "selective" ? plan::Recompute::kSelective
                                                  : plan::Recompute::kNone;
      },
      "Recomputed in backward: no layer, all but attention and every other matrix product, whole layers");
}

}  // namespace

void check_memory_flags(MemoryFlags& args) {
  args.points.clear();
  for (const std::string& text : args.measured) args.points.push_back(parse_measured(text));
  if (args.trainable > 0) args.options.shape.trainable = args.trainable;
  if (args.vocabulary >= 0) args.options.shape.vocabulary = args.vocabulary;
  if (args.per_sample_bytes > 0) args.options.per_sample_gib = gib_of(args.per_sample_bytes);
  if (args.overhead_bytes >= 0) args.options.overhead_gib = gib_of(args.overhead_bytes);
  if (args.preset.empty() && has_shape(args.options.shape)) args.preset = "full-adamw";
  if (args.preset.empty()) return check_given(args);
  if (args.preset == plan::kGrootGuidePreset) return;
  if (args.fixed_bytes >= 0) {
    throw CLI::ValidationError(
        "--fixed", fmt::format("is what the preset {} counts from --parameters; leave one of them out", args.preset));
  }
  args.options.preset = args.preset;
  usage_value("--preset", plan::preset_model(args.options));
}

Result<plan::MemoryModel> memory_model(const MemoryFlags& args) {
  plan::MemoryModel model = constant_model(args);
  if (!args.preset.empty() && args.preset != plan::kGrootGuidePreset) {
    ASSIGN_OR_RETURN(model, plan::preset_model(args.options));
  }
  if (args.points.empty()) return model;
  return plan::calibrate(model, args.points);
}

void add_memory_flags(CLI::App& app, MemoryFlags& args) {
  std::vector<std::string> names;
  for (const plan::Preset& preset : plan::presets()) names.emplace_back(preset.name);
  names.emplace_back(plan::kGrootGuidePreset);
  add_choice_flag(
      app, "--preset", names, [&args](const std::string& name) { args.preset = name; },
      "How to count weights, gradients and optimizer; groot-guide is 5 + 2 + 1.2 GiB a sample (default: full-adamw)");
  add_shape_flags(app, args.options, args.trainable, args.vocabulary);
  add_parsed_flag(app, "--per-sample", args.per_sample_bytes, "SIZE", "Activations of one sample, instead of a formula",
                  parse_positive_size);
  add_parsed_flag(app, "--fixed", args.fixed_bytes, "SIZE", "Weights, gradients and optimizer, instead of a preset",
                  parse_size);
  add_parsed_flag(app, "--overhead", args.overhead_bytes, "SIZE",
                  "Context, NCCL buffers, fragmentation (default: 2GiB)", parse_size);
  app.add_option("--measured", args.measured,
                 "A batch, its peak of allocated memory and, if known, of reserved; three batches or more")
      ->option_text("BATCH:SIZE[:SIZE]");
}

}  // namespace millrace::cli
