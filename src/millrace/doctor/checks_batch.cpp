// SPDX-License-Identifier: Apache-2.0
// The batch that fits, where a GPU ran out of memory: what the record and the log tell fills the planner's flags.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "millrace/base/text/units.h"
#include "millrace/doctor/checks.h"
#include "millrace/plan/memory.h"

namespace millrace::doctor {

namespace {

using jobs::TrainingRecord;

// The first of these settings of the run that is a number; 0 without one.
int64_t setting(const TrainingRecord& record, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const std::string text = record.fact("config/" + std::string(name));
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= 1) return static_cast<int64_t>(value);
  }
  return 0;
}

// "GPU 0 has a total capacity of 79.11 GiB", as PyTorch writes it, else what the monitor saw; 0: nobody told.
double capacity_gib(const Facts& facts) {
  constexpr std::string_view kWords = "total capacity of ";
  constexpr double kGibBytes = 1073741824.0;
  for (const LogFacts& log : facts.logs) {
    for (const LogHit& hit : log.hits) {
      const size_t at = hit.text.find(kWords);
      if (hit.rule != "DR01" || at == std::string::npos) continue;
      double value = 0;
      const char* begin = hit.text.data() + at + kWords.size();
      const auto [end, error] = std::from_chars(begin, hit.text.data() + hit.text.size(), value);
      if (error == std::errc() && std::string_view(end).starts_with(" GiB")) return value;
    }
  }
  for (const NodeSamples& node : facts.nodes) {
    const auto size = node.series.lower_bound("millrace_gpu_memory_size_bytes");
    const bool is_size = size != node.series.end() && size->first.starts_with("millrace_gpu_memory_size_bytes");
    if (is_size && !size->second.empty()) return size->second.back().value / kGibBytes;
  }
  return 0;
}

struct KnownModel {
  double memory_gib = 0;
  plan::ModelShape shape;
};

KnownModel known_model(const Facts& facts) {
  const TrainingRecord& record = *facts.record;
  KnownModel known{.memory_gib = capacity_gib(facts), .shape = {}};
  known.shape.parameters = static_cast<double>(setting(record, {"parameters", "num_parameters", "n_params"}));
  known.shape.layers = setting(record, {"layers", "num_layers", "n_layers", "n_layer", "num_hidden_layers"});
  known.shape.hidden = setting(record, {"hidden", "hidden_size", "dim", "d_model", "n_embd"});
  known.shape.tokens = setting(record, {"seq_len", "sequence_length", "max_seq_len", "block_size", "max_length"});
  const int64_t vocabulary = setting(record, {"vocabulary", "vocab_size", "vocabulary_size"});
  if (vocabulary > 0) known.shape.vocabulary = vocabulary;
  return known;
}

// With a placeholder for what nobody told.
std::string command_of(const KnownModel& known) {
  const auto value = [](int64_t number) { return number > 0 ? std::to_string(number) : std::string("N"); };
  std::string command = "millrace plan batch";
  command += known.memory_gib > 0 ? fmt::format(" --memory {:g}GiB", known.memory_gib) : " --gpu NAME";
  command += " --parameters " + value(static_cast<int64_t>(known.shape.parameters));
  command += " --layers " + value(known.shape.layers) + " --hidden " + value(known.shape.hidden);
  command += " --tokens " + value(known.shape.tokens);
  return command + " --vocabulary " + value(known.shape.vocabulary.value_or(0));
}

// What the planner answers; "" where something is not known.
std::string answer_of(const KnownModel& known) {
  const plan::ModelShape& shape = known.shape;
  const bool all = known.memory_gib > 0 && shape.parameters > 0 && shape.layers > 0 && shape.hidden > 0 &&
                   shape.tokens > 0 && shape.vocabulary;
  if (!all) return {};
  plan::PresetOptions options;
  options.shape = shape;
  const auto model = plan::preset_model(options);
  if (!model) return {};
  const auto plan = plan::plan_batch(*model, known.memory_gib);
  if (!plan) return {};
  if (plan->max_high < 1)
    return " By the plan not even one sample fits beside weights and optimizer: shard them (FSDP).";
  const std::string count = plan->max_low == plan->max_high ? std::to_string(plan->max_low)
                                                            : fmt::format("{} to {}", plan->max_low, plan->max_high);
  return fmt::format(" By the plan {} samples a GPU fit at most, with AdamW and no recomputation.", count);
}

}  // namespace

void advise_batch(const Facts& facts, Verdicts& verdicts) {
  if (!facts.record) return;
  const std::string batch = facts.record->fact("config/batch_size");
  const KnownModel known = known_model(facts);
  if (batch.empty() && known.shape.layers == 0) return;
  verdicts.advise(
      "DR01", fmt::format("{}{} `{}` says more. A smaller batch with gradient accumulation trains the same. Where much "
                          "is reserved but unallocated: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
                          batch.empty() ? "" : fmt::format("This run had batch_size {}.", batch), answer_of(known),
                          command_of(known)));
}

}  // namespace millrace::doctor
