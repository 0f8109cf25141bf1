// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

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

// Each sets `value` when `object` has `key` with the right type and range.
bool take(const Json& object, const char* key, uint64_t& value) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) return false;
  value = it->get<uint64_t>();
  return true;
}
bool take(const Json& object, const char* key, int64_t lowest, int64_t& value) {
  uint64_t number = 0;
  if (!take(object, key, number) || number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  value = static_cast<int64_t>(number);
  return value >= lowest;
}

// The name of the first missing or wrong key; empty when all are right.
std::string_view read_options(const Json& json, OrderOptions& options) {
  if (!json.is_object()) return "options";
  if (!take(json, "seed", options.seed)) return "options.seed";
  const auto shuffle = json.find("shuffle");
  if (shuffle == json.end() || !shuffle->is_boolean()) return "options.shuffle";
  options.shuffle = shuffle->get<bool>();
  if (!take(json, "lanes", 1, options.lanes)) return "options.lanes";
  if (!take(json, "window_samples", 1, options.window_samples)) return "options.window_samples";
  if (!take(json, "block_windows", 1, options.block_windows)) return "options.block_windows";
  if (!take(json, "pack_seq_len", 0, options.pack_seq_len)) return "options.pack_seq_len";
  options.best_fit = json.value("packing", Json()) == "best_fit";
  options.full = json.value("permutation", Json()) == "full";
  return {};
}

bool take(const Json& object, const char* key, std::string& value) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return false;
  value = it->get<std::string>();
  return true;
}
bool take(const Json& object, const char* key, std::vector<double>& value) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return false;
  for (const Json& number : *it) {
    if (!number.is_number()) return false;
    value.push_back(number.get<double>());
  }
  return true;
}
// Calls `read` with each object of a list, which answers false for a wrong one.
bool for_each_object(const Json& object, const char* key, const std::function<bool(const Json&)>& read) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return false;
  return std::all_of(it->begin(), it->end(), [&](const Json& entry) { return entry.is_object() && read(entry); });
}

bool take_skipped(const Json& json, std::vector<SkippedSteps>& skipped) {
  if (!json.contains("skipped")) return true;
  const auto read = [&](const Json& entry) {
    SkippedSteps range;
    const bool is_whole = take(entry, "epoch", range.epoch) && take(entry, "begin", 0, range.begin) &&
                          take(entry, "end", range.begin + 1, range.end);
    add_skipped(skipped, range);
    return is_whole;
  };
  return for_each_object(json, "skipped", read);
}

bool take_quarantined(const Json& json, std::vector<QuarantinedUnit>& units) {
  if (!json.contains("quarantined")) return true;
  const auto read = [&](const Json& entry) {
    QuarantinedUnit& unit = units.emplace_back();
    return take(entry, "source", 0, unit.source) && take(entry, "epoch", unit.epoch) &&
           take(entry, "lane", 0, unit.lane) && take(entry, "block", 0, unit.block) &&
           take(entry, "index", 0, unit.index) && take(entry, "reason", unit.reason) &&
           (!entry.contains("attempts") || take(entry, "attempts", 2, unit.attempts));
  };
  return for_each_object(json, "quarantined", read);
}

bool take_damaged_shards(const Json& json, std::vector<DamagedShard>& shards) {
  if (!json.contains("damaged_shards")) return true;
  const auto read = [&](const Json& entry) {
    DamagedShard& shard = shards.emplace_back();
    return take(entry, "source", 0, shard.source) && take(entry, "shard", shard.shard) &&
           take(entry, "samples", 0, shard.samples) && take(entry, "reason", shard.reason);
  };
  return for_each_object(json, "damaged_shards", read);
}

// The name of the first missing or wrong key; empty when all are right.
std::string_view read_state(const Json& json, OrderState& state) {
  if (!take(json, "epoch", state.epoch)) return "epoch";
  if (!take(json, "position", 0, state.position)) return "position";
  if (!take(json, "source", state.source)) return "source";
  if (!take_skipped(json, state.skipped)) return "skipped";
  if (!take_quarantined(json, state.quarantined)) return "quarantined";
  if (!take_damaged_shards(json, state.damaged_shards)) return "damaged_shards";
  const auto options = json.find("options");
  return options == json.end() ? "options" : read_options(*options, state.options);
}

std::string_view read_state(const Json& json, MixtureState& state) {
  if (!take(json, "pass", state.pass) || state.pass > UINT32_MAX) return "pass";
  if (!take(json, "step", 0, state.mix.step)) return "step";
  std::string stop;
  const auto end = take(json, "stop", stop) ? parse_mix_end(stop) : Result<MixEnd>(MixEnd::kEndless);
  if (stop.empty() || !end) return "stop";
  state.mix.end = *end;
  const auto read_cursor = [&](const Json& entry) {
    MixCursor& at = state.mix.cursors.emplace_back();
    const auto debt = entry.find("debt");
    if (debt == entry.end() || !debt->is_number_integer()) return false;
    at.debt = debt->get<int64_t>();
    return take(entry, "epoch", at.epoch) && at.epoch <= UINT32_MAX && take(entry, "position", 0, at.position);
  };
  if (!for_each_object(json, "cursors", read_cursor)) return "cursors";
  const auto read_phase = [&](const Json& entry) {
    MixPhase& phase = state.mix.phases.emplace_back();
    return take(entry, "step", 0, phase.step) && take(entry, "weights", phase.weights);
  };
  if (!for_each_object(json, "weights", read_phase)) return "weights";
  const auto read_source = [&](const Json& entry) {
    auto& source = state.sources.emplace_back();
    const auto options = entry.find("options");
    return take(entry, "source", source.identity) && options != entry.end() &&
           read_options(*options, source.options).empty();
  };
  if (!for_each_object(json, "sources", read_source)) return "sources";
  if (!take_skipped(json, state.skipped)) return "skipped";
  if (!take_quarantined(json, state.quarantined)) return "quarantined";
  if (!take_damaged_shards(json, state.damaged_shards)) return "damaged_shards";
  return state.sources.size() == state.mix.cursors.size() ? "" : "cursors";
}

template <class State>
Result<State> state_from_json(const Json& json, std::string_view format) {
  uint64_t version = 0;
  if (!json.is_object() || json.value("format", Json()) != format || !take(json, "version", version) || version == 0)
    return fail(ErrorCode::kInvalidArgument, "order state: not a state of {}", format);
  if (version > kStateVersion)
    return fail(ErrorCode::kUnsupported,
                "order state: version {}; this build reads version {}, and a newer Millrace reads it", version,
                kStateVersion);
  State state;
  if (const std::string_view wrong = read_state(json, state); !wrong.empty())
    return fail(ErrorCode::kInvalidArgument, "order state: {} is missing or wrong", wrong);
  // An unknown key may change the order in a way that this build does not know.
  if (state_to_json(state) != json)
    return fail(ErrorCode::kInvalidArgument, "order state: a key that version 1 does not have");
  return state;
}

Result<Json> parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kInvalidArgument, "order state: not JSON: {}", error.what());
  }
}

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string serialize_state(const OrderState& state) {
  return to_text(state_to_json(state));
}

Result<OrderState> parse_state(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  return state_from_json<OrderState>(json, kOrderFormat);
}

std::string serialize_state(const LoaderState& state) {
  return std::visit([](const auto& kind) { return to_text(state_to_json(kind)); }, state);
}

Result<LoaderState> parse_loader_state(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  if (!json.is_object() || json.value("format", Json()) != kMixtureFormat) {
    return state_from_json<OrderState>(json, kOrderFormat);
  }
  ASSIGN_OR_RETURN(MixtureState state, state_from_json<MixtureState>(json, kMixtureFormat));
  RETURN_IF_ERROR(Mixture::create(state.mix, nullptr));
  return state;
}

}  // namespace millrace::order
