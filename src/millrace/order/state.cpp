// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <nlohmann/json.hpp>

#include "millrace/base/text/json_fields.h"
#include "millrace/order/mixture.h"
#include "millrace/order/order.h"

namespace millrace::order {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kOrderFormat = "millrace.order";
constexpr std::string_view kMixtureFormat = "millrace.mixture";
constexpr uint64_t kStateVersion = 1;  // of both

Json options_to_json(const OrderOptions& options) {
  Json json{{"seed", options.seed},
            {"shuffle", options.shuffle},
            {"lanes", options.lanes},
            {"window_samples", options.window_samples},
            {"block_windows", options.block_windows},
            {"pack_seq_len", options.pack_seq_len}};
  if (options.best_fit) json["packing"] = "best_fit";
  if (options.full) json["permutation"] = "full";
  return json;
}

// The key is there only when steps are skipped, so that other states stay as they were.
void add_skipped_to(Json& json, const std::vector<SkippedSteps>& skipped) {
  for (const auto& [epoch, begin, end] : skipped) {
    json["skipped"].push_back({{"epoch", epoch}, {"begin", begin}, {"end", end}});
  }
}

// As with skipped steps.
void add_quarantined_to(Json& json, const std::vector<QuarantinedUnit>& units) {
  for (const QuarantinedUnit& unit : units) {
    json["quarantined"].push_back({{"source", unit.source},
                                   {"epoch", unit.epoch},
                                   {"lane", unit.lane},
                                   {"block", unit.block},
                                   {"index", unit.index},
                                   {"reason", unit.reason}});
    if (unit.attempts != 1) json["quarantined"].back()["attempts"] = unit.attempts;
  }
}

void add_damaged_shards_to(Json& json, const std::vector<DamagedShard>& shards) {
  for (const DamagedShard& shard : shards) {
    json["damaged_shards"].push_back(
        {{"source", shard.source}, {"shard", shard.shard}, {"samples", shard.samples}, {"reason", shard.reason}});
  }
}

Json state_to_json(const OrderState& state) {
  Json json = {{"format", kOrderFormat},     {"version", kStateVersion}, {"epoch", state.epoch},
               {"position", state.position}, {"source", state.source},   {"options", options_to_json(state.options)}};
  add_skipped_to(json, state.skipped);
  add_quarantined_to(json, state.quarantined);
  add_damaged_shards_to(json, state.damaged_shards);
  return json;
}

Json state_to_json(const MixtureState& state) {
  Json cursors = Json::array(), phases = Json::array(), sources = Json::array();
  for (const MixCursor& at : state.mix.cursors) {
    cursors.push_back({{"epoch", at.epoch}, {"position", at.position}, {"debt", at.debt}});
  }
  for (const MixPhase& phase : state.mix.phases) {
    phases.push_back({{"step", phase.step}, {"weights", phase.weights}});
  }
  for (const auto& source : state.sources) {
    sources.push_back({{"source", source.identity}, {"options", options_to_json(source.options)}});
  }
  Json json = {{"format", kMixtureFormat},
               {"version", kStateVersion},
               {"pass", state.pass},
               {"step", state.mix.step},
               {"stop", mix_end_name(state.mix.end)},
               {"cursors", std::move(cursors)},
               {"weights", std::move(phases)},
               {"sources", std::move(sources)}};
  add_skipped_to(json, state.skipped);
  add_quarantined_to(json, state.quarantined);
  add_damaged_shards_to(json, state.damaged_shards);
  return json;
}

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

OrderOptions read_options(JsonFields& from) {
  return {.seed = from.natural("seed"),
          .shuffle = from.boolean("shuffle"),
          .lanes = from.integer("lanes", 1),
          .window_samples = from.integer("window_samples", 1),
          .block_windows = from.integer("block_windows", 1),
          .pack_seq_len = from.integer("pack_seq_len", 0),
          .best_fit = from.is("packing", "best_fit"),
          .full = from.is("permutation", "full")};
}

// Calls `read` with each object of a list that only some states have.
void each_if_any(JsonFields& from, std::string_view key, const std::function<void(JsonFields&)>& read) {
  if (from.has(key)) from.each(key, read);
}

// What both kinds of state have.
template <class State>
void read_history(JsonFields& from, State& state) {
  each_if_any(from, "skipped", [&](JsonFields& entry) {
    const SkippedSteps range{entry.natural("epoch"), entry.integer("begin", 0), entry.integer("end", 1)};
    entry.check(range.begin < range.end, "end", "behind its begin");
    add_skipped(state.skipped, range);
  });
  each_if_any(from, "quarantined", [&](JsonFields& entry) {
    state.quarantined.push_back({.source = entry.integer("source", 0),
                                 .epoch = entry.natural("epoch"),
                                 .lane = entry.integer("lane", 0),
                                 .block = entry.integer("block", 0),
                                 .index = entry.integer("index", 0),
                                 .attempts = entry.has("attempts") ? entry.integer("attempts", 2) : 1,
                                 .reason = entry.text("reason")});
  });
  each_if_any(from, "damaged_shards", [&](JsonFields& entry) {
    state.damaged_shards.push_back({.source = entry.integer("source", 0),
                                    .shard = entry.text("shard"),
                                    .samples = entry.integer("samples", 0),
                                    .reason = entry.text("reason")});
  });
}

void read_state(JsonFields& from, OrderState& state) {
  state.epoch = from.natural("epoch");
  state.position = from.integer("position", 0);
  state.source = from.text("source");
  read_history(from, state);
  from.object("options", [&](JsonFields& options) { state.options = read_options(options); });
}

// A pass of a mixture, or an epoch in it.
uint64_t read_pass(JsonFields& from, std::string_view key) {
  const uint64_t pass = from.natural(key);
  from.check(pass <= UINT32_MAX, key, "below 2^32");
  return pass;
}

void read_state(JsonFields& from, MixtureState& state) {
  state.pass = read_pass(from, "pass");
  state.mix.step = from.integer("step", 0);
  const auto end = parse_mix_end(from.text("stop"));
  from.check(end.has_value(), "stop", "first_empty, all_empty or endless");
  state.mix.end = end.value_or(MixEnd::kEndless);
  from.each("cursors", [&](JsonFields& entry) {
    state.mix.cursors.push_back({.epoch = read_pass(entry, "epoch"),
                                 .position = entry.integer("position", 0),
                                 .debt = entry.integer("debt", INT64_MIN)});
  });
  from.each("weights", [&](JsonFields& entry) {
    state.mix.phases.push_back({.step = entry.integer("step", 0), .weights = entry.numbers("weights")});
  });
  from.each("sources", [&](JsonFields& entry) {
    auto& source = state.sources.emplace_back();
    source.identity = entry.text("source");
    entry.object("options", [&](JsonFields& options) { source.options = read_options(options); });
  });
  read_history(from, state);
  from.check(state.sources.size() == state.mix.cursors.size(), "cursors", "one of each source");
}

template <class State>
Result<State> state_from(const JsonDocument& document, std::string_view format) {
  JsonFields fields(document);
  const uint64_t version = fields.natural("version");
  if (!fields.is("format", format) || version == 0)
    return fail(ErrorCode::kInvalidArgument, "order state: not a state of {}", format);
  if (version > kStateVersion)
    return fail(ErrorCode::kUnsupported,
                "order state: version {}; this build reads version {}, and a newer Millrace reads it", version,
                kStateVersion);
  State state;
  read_state(fields, state);
  if (!fields.ok()) return fail(ErrorCode::kInvalidArgument, "order state: {}", fields.error());
  // An unknown key may change the order in a way that this build does not know.
  if (const auto known = JsonDocument::parse(to_text(state_to_json(state))); !known || *known != document)
    return fail(ErrorCode::kInvalidArgument, "order state: a key that version 1 does not have, or one twice");
  return state;
}

Result<JsonDocument> parse_json(std::string_view text) {
  auto document = JsonDocument::parse(text);
  if (!document) return fail(ErrorCode::kInvalidArgument, "order state: {}", document.error().message());
  return document;
}

}  // namespace

std::string serialize_state(const OrderState& state) {
  return to_text(state_to_json(state));
}

Result<OrderState> parse_state(std::string_view text) {
  ASSIGN_OR_RETURN(const JsonDocument document, parse_json(text));
  return state_from<OrderState>(document, kOrderFormat);
}

std::string serialize_state(const LoaderState& state) {
  return std::visit([](const auto& kind) { return to_text(state_to_json(kind)); }, state);
}

Result<LoaderState> parse_loader_state(std::string_view text) {
  ASSIGN_OR_RETURN(const JsonDocument document, parse_json(text));
  if (!JsonFields(document).is("format", kMixtureFormat)) return state_from<OrderState>(document, kOrderFormat);
  ASSIGN_OR_RETURN(MixtureState state, state_from<MixtureState>(document, kMixtureFormat));
  RETURN_IF_ERROR(Mixture::create(state.mix, nullptr));
  return state;
}

}  // namespace millrace::order
