// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "millrace/plan/memory.h"

namespace millrace::plan {

namespace {

constexpr double kGib = 1073741824.0;
// A smaller number is a forgotten unit: 7 for 7B.
constexpr double kLeastParameters = 1e5;
// An activation formula leaves out other memory that frameworks keep: its upper end is this much more.
constexpr double kPriorMargin = 1.25;
// Bytes a token, layer and hidden unit: all that one layer's backward needs, and its input alone.
constexpr double kWholeLayer = 34, kLayerInput = 2;
// The input, the query, the attention's output and two of the four larger products: with Llama's shapes 15.5.
constexpr double kSelectedOfLayer = 16;
constexpr const char* kActivations =
    "activation memory of a transformer layer with fused attention, Korthikanti et al. 2022 (arXiv 2205.05198)";

double shard_of(int stage, int from_stage, int64_t shards) {
  return stage >= from_stage ? 1.0 / static_cast<double>(shards) : 1.0;
}

bool gathers(const PresetOptions& options) {
  return options.zero_stage == 3 && options.shards > 1;
}

// The required facts of the model, as flags.
std::vector<std::string_view> missing_facts(const PresetOptions& options) {
  const ModelShape& shape = options.shape;
  const bool formula = !options.per_sample_gib;
  std::vector<std::string_view> missing;
  if (shape.parameters <= 0) missing.emplace_back("--parameters 3B");
  if ((formula || gathers(options)) && shape.layers < 1) missing.emplace_back("--layers 32");
  if (formula && shape.hidden < 1) missing.emplace_back("--hidden 4096");
  if (formula && shape.tokens + shape.images * shape.image_tokens < 1)
    missing.emplace_back("--tokens 2048 (or --images 3 --image-tokens 256)");
  if (formula && !shape.vocabulary) missing.emplace_back("--vocabulary 32000 (0: no logits)");
  return missing;
}

Status check_options(const PresetOptions& options, const Preset* preset) {
  if (preset == nullptr) {
    std::string names;
    for (const Preset& each : presets()) names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
    return fail(ErrorCode::kInvalidArgument, "no preset is called '{}'; there are {}", options.preset, names);
  }
  if (options.zero_stage < 0 || options.zero_stage > 3 || options.shards < 1) {
    return fail(ErrorCode::kInvalidArgument, "a ZeRO stage is 0 to 3, and 1 or more ranks share the state");
  }
  if (const auto missing = missing_facts(options); !missing.empty()) {
    std::string flags;
    for (const std::string_view each : missing) flags += fmt::format("{}{}", flags.empty() ? "" : ", ", each);
    return fail(ErrorCode::kInvalidArgument, "the preset {} needs facts of the model that were not given: {}{}",
                preset->name, flags, options.per_sample_gib ? "" : "; --per-sample 1.2GiB replaces the shape");
  }
  if (options.shape.parameters < kLeastParameters) {
    return fail(ErrorCode::kInvalidArgument, "{:.6g} parameters are not a model: write for example 7B or 350M",
                options.shape.parameters);
  }
  const double trainable = options.shape.trainable.value_or(preset->trainable);
  if (!(trainable > 0 && trainable <= 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "the preset {} needs the share of parameters that are trained (--trainable 0.3)", preset->name);
  }
  return {};
}

Range count(int64_t value) {
  return Range::point(static_cast<double>(value));
}

double kept_of_layer(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return kWholeLayer;
    case Recompute::kSelective:
      return kSelectedOfLayer;
    case Recompute::kFull:
      return kLayerInput;
  }
  return kWholeLayer;
}

// Bytes a token and entry of the vocabulary, at the loss.
Range logit_bytes(bool fused) {
  return fused ? Range{4, 6} : Range{12, 16};
}

void explain_activations(const PresetOptions& options, double kept, Why& why) {
  const ModelShape& shape = options.shape;
  why.formulas.emplace_back(
      "per_sample = tokens x (kept x layers x hidden + max(logits x vocabulary, (34 - kept) x hidden)) bytes: the "
      "loss, "
      "and a layer that is computed again, are not there at once");
  why.formulas.emplace_back("tokens = text tokens + images x image tokens");
  why.terms.push_back({"text tokens", count(shape.tokens), "", kGiven});
  if (shape.images > 0) {
    why.terms.push_back({"images", count(shape.images), "", kGiven});
    why.terms.push_back({"image tokens", count(shape.image_tokens), "", kGiven});
  }
  why.terms.push_back({"layers", count(shape.layers), "", kGiven});
  why.terms.push_back({"hidden", count(shape.hidden), "", kGiven});
  why.terms.push_back({"vocabulary", count(*shape.vocabulary), "", kGiven});
  why.terms.push_back(
      {"kept", Range::point(kept), "B a token, layer and hidden unit",
       options.recompute == Recompute::kNone ? kActivations
       : options.recompute == Recompute::kFull
           ? "a layer's input in 16 bits"
           : "a layer's input, attention and every other matrix product in 16 bits, with Llama's shapes"});
  if (*shape.vocabulary > 0) {
    why.terms.push_back({"logits", logit_bytes(options.fused_loss), "B a token and entry of the vocabulary",
                         options.fused_loss ? "a fused loss: 16-bit logits and their gradient"
                                            : "16-bit logits 2, FP32 copy 4, its log-softmax 4, gradient 2 to 6"});
  }
  why.terms.push_back({"margin",
                       {1, kPriorMargin},
                       "x what layers keep",
                       "Millrace's own choice for an activation formula that was not measured"});
}

Range activation_gib(const PresetOptions& options, Why& why) {
  const ModelShape& shape = options.shape;
  const auto hidden = static_cast<double>(shape.hidden), layers = static_cast<double>(shape.layers);
  const auto tokens = static_cast<double>(shape.tokens + shape.images * shape.image_tokens);
  const double kept = kept_of_layer(options.recompute);
  const Range margin{1, kPriorMargin};
  const Range logits = logit_bytes(options.fused_loss) * static_cast<double>(*shape.vocabulary);
  const double again = (kWholeLayer - kept) * hidden;
  explain_activations(options, kept, why);
  const auto bytes = [&](double factor, double loss) {
    return tokens * (kept * layers * hidden * factor + std::max(loss, again * factor));
  };
  return Range{bytes(margin.low, logits.low), bytes(margin.high, logits.high)} * (1 / kGib);
}

// The parts that ZeRO-3 holds whole, in addition to its shards: the layer that computes and the next, the output layer
// (with the embedding at the upper end, which share a group in FSDP), and the gradients of one such group in FP32
// before they are scattered.
Range gathered_gib(const PresetOptions& options, const Preset& preset, double trainable, Why& why) {
  if (!gathers(options)) return {};
  const ModelShape& shape = options.shape;
  const double embedding = static_cast<double>(shape.vocabulary.value_or(0)) * static_cast<double>(shape.hidden);
  const double layer = std::max(0.0, shape.parameters - 2 * embedding) / static_cast<double>(shape.layers);
  const double gradients = 4 * trainable * std::max(layer, 2 * embedding);
  const Range gathered = Range{preset.weight_bytes * (2 * layer + embedding),
                               preset.weight_bytes * (2 * layer + 2 * embedding) + gradients} *
                         (1 / kGib);
  why.formulas.emplace_back(
      "gathered = weight bytes x (2 layers + vocabulary x hidden [x 2]) [+ 4 x trainable x the largest group]; a layer "
      "= "
      "(parameters - 2 x vocabulary x hidden) / layers");
  why.terms.push_back({"a layer", Range::point(layer), "parameters", "by the formula"});
  why.terms.push_back(
      {"gathered", gathered, "GiB", "by the formula: stage 3 gathers a layer at a time, and the next one"});
  return gathered;
}

void explain_state(const PresetOptions& options, const Preset& preset, double trainable, Why& why) {
  why.formulas.push_back(fmt::format(
      "fixed = parameters x (weight bytes / s3 + trainable x (gradient bytes / s2 + optimizer bytes / s1)){}; "
      "s1, s2, s3 = shards from ZeRO stage 1, 2, 3 on",
      gathers(options) ? " + gathered" : ""));
  const std::string source = fmt::format("preset {}: {}", preset.name, preset.what);
  why.terms.push_back({"parameters", Range::point(options.shape.parameters), "", kGiven});
  why.terms.push_back(
      {"trainable", Range::point(trainable), "of the parameters", options.shape.trainable ? kGiven : source});
  why.terms.push_back({"weight bytes", Range::point(preset.weight_bytes), "B a parameter", source});
  why.terms.push_back(
      {"gradient bytes", preset.gradient_bytes, "B a trained parameter", source + "; 2 in bf16, 4 in FP32"});
  why.terms.push_back(
      {"optimizer bytes", Range::point(preset.master_bytes + preset.moment_bytes), "B a trained parameter",
       fmt::format("{}; {} of the master copy, {} of the moments", source, preset.master_bytes, preset.moment_bytes)});
  why.terms.push_back({"ZeRO stage", Range::point(options.zero_stage), "", kGiven});
  why.terms.push_back({"shards", count(options.shards), "ranks", kGiven});
  why.terms.push_back({"overhead", Range::point(options.overhead_gib), "GiB",
                       "context of 0.5 to 1 GiB, NCCL buffers and fragmentation; the guide's 2"});
}

}  // namespace

std::span<const Preset> presets() {
  static constexpr std::array<Preset, 4> kPresets{{
      {"full-adamw", "every parameter, bf16 with FP32 master copy and moments", 2, {2, 4}, 4, 8, 1},
      {"lora", "frozen bf16 weights, adapters of 1 % trained as full-adamw", 2, {2, 4}, 4, 8, 0.01},
      {"frozen-backbone", "frozen bf16 weights, a given share trained as full-adamw", 2, {2, 4}, 4, 8, 0},
      {"adamw-8bit", "every parameter, FP32 master copy, moments of 8 bits", 2, {2, 4}, 4, 2, 1},
  }};
  return kPresets;
}

Result<MemoryModel> preset_model(const PresetOptions& options) {
  const auto found =
      std::find_if(presets().begin(), presets().end(), [&](const Preset& each) { return each.name == options.preset; });
  const Preset* preset = found == presets().end() ? nullptr : &*found;
  RETURN_IF_ERROR(check_options(options, preset));
  const double trainable = options.shape.trainable.value_or(preset->trainable);

  MemoryModel model{.basis = std::string(preset->name), .overhead_gib = options.overhead_gib, .confidence = "low"};
  const Range weights = Range::point(preset->weight_bytes * shard_of(options.zero_stage, 3, options.shards));
  const Range gradients = preset->gradient_bytes * (trainable * shard_of(options.zero_stage, 2, options.shards));
  const Range optimizer = Range::point((preset->master_bytes + preset->moment_bytes) * trainable *
                                       shard_of(options.zero_stage, 1, options.shards));
  model.fixed_gib = (weights + gradients + optimizer) * (options.shape.parameters / kGib);
  Why& why = model.why;
  explain_state(options, *preset, trainable, why);
  model.fixed_gib = model.fixed_gib + gathered_gib(options, *preset, trainable, why);
  model.per_sample_gib = options.per_sample_gib ? Range::point(*options.per_sample_gib) : activation_gib(options, why);
  why.terms.push_back({"per_sample", model.per_sample_gib, "GiB", options.per_sample_gib ? kGiven : "by the formula"});
  why.terms.push_back({"fixed", model.fixed_gib, "GiB", "by the formula"});
  why.notes.emplace_back(
      "no peak was measured: run three batch sizes for some steps and give their peaks with --measured");
  return model;
}

}  // namespace millrace::plan
