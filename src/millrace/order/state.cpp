// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <nlohmann/json.hpp>

#include "millrace/order/order.h"

namespace millrace::order {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kStateFormat = "millrace.order";
constexpr uint64_t kStateVersion = 1;

Json state_to_json(const OrderState& state) {
  const OrderOptions& options = state.options;
  return {{"format", kStateFormat},
          {"version", kStateVersion},
          {"epoch", state.epoch},
          {"position", state.position},
          {"source", state.source},
          {"options",
           {{"seed", options.seed},
            {"shuffle", options.shuffle},
            {"lanes", options.lanes},
            {"window_samples", options.window_samples},
            {"block_windows", options.block_windows},
            {"pack_seq_len", options.pack_seq_len}}}};
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

// The name of the first thing that is missing or wrong, or nothing.
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
  return {};
}

std::string_view read_state(const Json& json, OrderState& state) {
  if (!take(json, "epoch", state.epoch)) return "epoch";
  if (!take(json, "position", 0, state.position)) return "position";
  const auto source = json.find("source");
  if (source == json.end() || !source->is_string()) return "source";
  state.source = source->get<std::string>();
  const auto options = json.find("options");
  return options == json.end() ? "options" : read_options(*options, state.options);
}

}  // namespace

std::string serialize_state(const OrderState& state) {
  return state_to_json(state).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<OrderState> parse_state(std::string_view text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kInvalidArgument, "order state: not JSON: {}", error.what());
  }
  uint64_t version = 0;
  if (!json.is_object() || json.value("format", Json()) != kStateFormat || !take(json, "version", version) ||
      version == 0)
    return fail(ErrorCode::kInvalidArgument, "order state: not a state of {}", kStateFormat);
  if (version > kStateVersion)
    return fail(ErrorCode::kUnsupported, "order state: version {}; this build reads version {}", version,
                kStateVersion);
  OrderState state;
  if (const std::string_view wrong = read_state(json, state); !wrong.empty())
    return fail(ErrorCode::kInvalidArgument, "order state: {} is missing or wrong", wrong);
  // An unknown key may change the order in a way this build does not know.
  if (state_to_json(state) != json)
    return fail(ErrorCode::kInvalidArgument, "order state: a key that version 1 does not have");
  return state;
}

}  // namespace millrace::order
