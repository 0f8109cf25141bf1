// SPDX-License-Identifier: Apache-2.0
// Dumps of PyTorch's flight recorder: a pickle of dicts, lists, tuples, texts and numbers, or the same as JSON
// (torch/csrc/distributed/c10d/FlightRecorder.hpp). The reader of pickles knows no other objects, so that a file can
// name no code.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/base/text/json_members.h"
#include "millrace/base/text/units.h"
#include "millrace/doctor/facts.h"
#include "millrace/storage/url.h"

namespace millrace::doctor {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMostFlightBytes = 256 << 20;
constexpr int kMostDepth = 64;

// A value of a pickle; lists and dicts are filled after others have got hold of them, and may hold themselves.
struct Pickled {
  enum class Kind { kScalar, kList, kDict, kMark };

  Kind kind = Kind::kScalar;
  Json scalar;
  std::vector<const Pickled*> items;  // of a list; of a dict key, value, key, value
};

class PickleReader {
 public:
  explicit PickleReader(std::string_view text) : text_(text) {}

  Result<Json> read() {
    while (at_ < text_.size()) {
      const auto code = static_cast<unsigned char>(text_[at_++]);
      if (code == '.') {
        if (stack_.empty()) return bad("it ends without a value");
        return to_json(*stack_.back(), 0);
      }
      RETURN_IF_ERROR(step(code));
    }
    return bad("it ends in the middle");
  }

 private:
  static tl::unexpected<Error> bad(std::string_view reason) {
    return fail(ErrorCode::kCorruption, "no dump of a flight recorder: {}", reason);
  }

  Status step(unsigned char code) {
    switch (code) {
      case 0x80:
        return skip(1);
      case 0x95:  // FRAME
        return skip(8);
      case '(':
        return push(Pickled::Kind::kMark);
      case 'N':
        return push_scalar(nullptr);
      case 0x88:
        return push_scalar(true);
      case 0x89:
        return push_scalar(false);
      case 'K':
        return push_number(1, false);
      case 'M':
        return push_number(2, false);
      case 'J':
        return push_number(4, true);
      case 0x8A:
        return push_long();
      case 'G':
        return push_double();
      case 'X':
        return push_text(4);
      case 0x8C:
        return push_text(1);
      case 0x8D:
        return push_text(8);
      case '}':
        return push(Pickled::Kind::kDict);
      case ']':
      case ')':
        return push(Pickled::Kind::kList);
      case 't':
        return gather_tuple();
      case 0x85:
      case 0x86:
      case 0x87:
        return make_tuple(code - 0x84U);
      case 'a':
        return fill(1);
      case 's':
        return fill(2);
      case 'e':
      case 'u':
        return fill_to_mark();
      case 'q':
        return remember(1);
      case 'r':
        return remember(4);
      case 0x94:
        return keep(memo_.size());
      case 'h':
        return recall(1);
      case 'j':
        return recall(4);
      default:
        return bad(fmt::format("it holds other objects than dicts, lists, texts and numbers (opcode {:#x})", code));
    }
  }

  Result<std::string_view> take(uint64_t size) {
    if (size > text_.size() - at_) return bad("it ends in the middle");
    const std::string_view bytes = text_.substr(at_, size);
    at_ += size;
    return bytes;
  }
  Status skip(uint64_t size) {
    return take(size).map([](std::string_view) {});
  }
  // Little-endian.
  Result<uint64_t> number(uint64_t size) {
    ASSIGN_OR_RETURN(const std::string_view bytes, take(size));
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return value;
  }

  Status push(Pickled::Kind kind) {
    stack_.push_back(&nodes_.emplace_back(Pickled{.kind = kind}));
    return {};
  }
  Status push_scalar(Json value) {
    stack_.push_back(&nodes_.emplace_back(Pickled{.scalar = std::move(value)}));
    return {};
  }
  Status push_number(uint64_t size, bool is_signed) {
    ASSIGN_OR_RETURN(const uint64_t value, number(size));
    return is_signed ? push_scalar(static_cast<int32_t>(value)) : push_scalar(value);
  }
  Status push_long() {
    ASSIGN_OR_RETURN(const uint64_t size, number(1));
    if (size > 8) return bad("a number of more than 64 bits");
    ASSIGN_OR_RETURN(uint64_t value, number(size));
    const bool negative = size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0;
    if (negative) value |= ~uint64_t{0} << (8 * size);
    return push_scalar(static_cast<int64_t>(value));
  }
  Status push_double() {
    ASSIGN_OR_RETURN(const uint64_t swapped, number(8));
    const uint64_t bits = __builtin_bswap64(swapped);
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return push_scalar(value);
  }
  Status push_text(uint64_t size_bytes) {
    ASSIGN_OR_RETURN(const uint64_t size, number(size_bytes));
    ASSIGN_OR_RETURN(const std::string_view text, take(size));
    return push_scalar(std::string(text));
  }

  // What lies behind the last mark, which goes.
  Result<std::vector<const Pickled*>> pop_mark() {
    std::vector<const Pickled*> items;
    while (!stack_.empty() && stack_.back()->kind != Pickled::Kind::kMark) {
      items.push_back(stack_.back());
      stack_.pop_back();
    }
    if (stack_.empty()) return bad("a list without its begin");
    stack_.pop_back();
    std::reverse(items.begin(), items.end());
    return items;
  }
  Status push_list(std::vector<const Pickled*> items) {
    RETURN_IF_ERROR(push(Pickled::Kind::kList));
    stack_.back()->items = std::move(items);
    return {};
  }
  Status gather_tuple() {
    ASSIGN_OR_RETURN(auto items, pop_mark());
    return push_list(std::move(items));
  }
  Status make_tuple(size_t size) {
    if (stack_.size() < size) return bad("a tuple without its values");
    std::vector<const Pickled*> items(stack_.end() - static_cast<ptrdiff_t>(size), stack_.end());
    stack_.resize(stack_.size() - size);
    return push_list(std::move(items));
  }
  Status append(std::vector<const Pickled*> items) {
    if (stack_.empty() || (stack_.back()->kind != Pickled::Kind::kList && stack_.back()->kind != Pickled::Kind::kDict))
      return bad("values that belong to nothing");
    if (stack_.back()->kind == Pickled::Kind::kDict && items.size() % 2 != 0) return bad("a key without a value");
    auto& into = stack_.back()->items;
    into.insert(into.end(), items.begin(), items.end());
    return {};
  }
  Status fill_to_mark() {
    ASSIGN_OR_RETURN(auto items, pop_mark());
    return append(std::move(items));
  }
  Status fill(size_t count) {
    if (stack_.size() < count) return bad("values that belong to nothing");
    std::vector<const Pickled*> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return append(std::move(items));
  }

  Status keep(uint64_t place) {
    if (stack_.empty()) return bad("nothing to remember");
    memo_[place] = stack_.back();
    return {};
  }
  Status remember(uint64_t size) {
    ASSIGN_OR_RETURN(const uint64_t place, number(size));
    return keep(place);
  }
  Status recall(uint64_t size) {
    ASSIGN_OR_RETURN(const uint64_t place, number(size));
    const auto found = memo_.find(place);
    if (found == memo_.end()) return bad("a value that was not remembered");
    stack_.push_back(found->second);
    return {};
  }

  // A value that is used many times may stand for more than memory holds, or for itself.
  Result<Json> to_json(const Pickled& node, int depth) {
    if (depth > kMostDepth || ++values_ > text_.size()) return bad("its values hold each other");
    if (node.kind == Pickled::Kind::kMark) return bad("a list without its end");
    if (node.kind == Pickled::Kind::kScalar) return node.scalar;
    Json out = node.kind == Pickled::Kind::kList ? Json::array() : Json::object();
    for (size_t i = 0; i < node.items.size(); ++i) {
      ASSIGN_OR_RETURN(Json value, to_json(*node.items[i], depth + 1));
      if (node.kind == Pickled::Kind::kList) {
        out.push_back(std::move(value));
        continue;
      }
      ASSIGN_OR_RETURN(out[value.is_string() ? value.get<std::string>() : value.dump()],
                       to_json(*node.items[++i], depth + 1));
    }
    return out;
  }

  const std::string_view text_;
  size_t at_ = 0;
  size_t values_ = 0;
  std::deque<Pickled> nodes_;  // owns every value
  std::vector<Pickled*> stack_;
  std::map<uint64_t, Pickled*> memo_;
};

// The program's own frames, the innermost first.
std::string frames_text(const Json& entry) {
  constexpr int kMost = 4;
  std::string text;
  int shown = 0;
  const auto frames = entry.find("frames");
  if (frames == entry.end() || !frames->is_array()) return text;
  for (const Json& frame : *frames) {
    if (!frame.is_object() || shown == kMost) break;
    const std::string file = text_or_empty(frame, "filename");
    if (file.find("/torch/") != std::string::npos || file.find("multiprocessing/") != std::string::npos ||
        file.starts_with("<"))
      continue;
    text += fmt::format("{}{} ({}:{})", shown++ == 0 ? "" : " < ", text_or_empty(frame, "name"),
                        file.substr(file.rfind('/') + 1), integer_at(frame, "line").value_or(0));
  }
  return text;
}

std::string sizes_text(const Json& entry) {
  const auto sizes = entry.find("input_sizes"), types = entry.find("input_dtypes");
  if (sizes == entry.end() || !sizes->is_array() || sizes->empty()) return "";
  std::string text = sizes->size() > 1 ? fmt::format("{} tensors, the first ", sizes->size()) : "";
  text += (*sizes)[0].dump();
  if (types != entry.end() && types->is_array() && !types->empty() && (*types)[0].is_string())
    text += " " + (*types)[0].get<std::string>();
  return text;
}

FlightCall call_of(const Json& entry) {
  FlightCall call;
  std::string name = text_or_empty(entry, "profiling_name");
  call.name = name.substr(name.find(':') + 1);
  call.sizes = sizes_text(entry);
  call.frames = frames_text(entry);
  call.created = static_cast<double>(integer_at(entry, "time_created_ns").value_or(0)) * 1e-9;
  call.is_done = text_or_empty(entry, "state") == "completed" || bool_at(entry, "retired").value_or(false);
  return call;
}

void add_entries(const Json& dump, FlightDump& flight) {
  std::map<std::string, std::string> names;  // of groups, by this rank's number for them
  const auto entries = dump.find("entries");
  if (entries != dump.end() && entries->is_array()) {
    for (const Json& entry : *entries) {
      if (!entry.is_object()) continue;
      const auto group = entry.find("process_group");
      const bool named = group != entry.end() && group->is_array() && !group->empty() && (*group)[0].is_string();
      const std::string number = std::to_string(integer_at(entry, "pg_id").value_or(0));
      const std::string name = named ? (*group)[0].get<std::string>() : number;
      names[number] = name;
      FlightGroup& of = flight.groups[name];
      if (named && group->size() > 1 && (*group)[1].is_string()) of.title = (*group)[1].get<std::string>();
      if (bool_at(entry, "is_p2p").value_or(false)) continue;  // counted apart, and by pairs
      const int64_t number_of_call = integer_at(entry, "collective_seq_id").value_or(0);
      of.calls[number_of_call] = call_of(entry);
      of.last = std::max(of.last, number_of_call);
    }
  }
  const auto status = dump.find("pg_status");
  if (status == dump.end() || !status->is_object()) return;
  for (const auto& [number, values] : status->items()) {
    const auto name = names.find(number);
    if (!values.is_object()) continue;
    FlightGroup& of = flight.groups[name == names.end() ? number : name->second];
    of.last = std::max(of.last, integer_at(values, "last_enqueued_collective").value_or(-1));
  }
}

}  // namespace

Result<FlightDump> parse_flight_dump(std::string_view text, const std::string& file) {
  Json dump;
  if (text.starts_with("{")) {
    dump = Json::parse(text, nullptr, false);
    if (dump.is_discarded()) return fail(ErrorCode::kCorruption, "{}: no JSON", file);
  } else {
    ASSIGN_OR_RETURN(dump, with_context(PickleReader(text).read(), file));
  }
  if (!dump.is_object() || !dump.contains("version") || !(dump.contains("entries") || dump.contains("pg_status")))
    return fail(ErrorCode::kInvalidArgument, "{} is no dump of PyTorch's flight recorder", file);
  FlightDump flight;
  flight.file = file;
  const size_t digits = file.find_last_not_of("0123456789");
  const auto rank = parse_whole(std::string_view(file).substr(digits == std::string::npos ? 0 : digits + 1));
  if (rank && *rank < (1 << 30)) flight.rank = static_cast<int>(*rank);
  if (const auto config = dump.find("pg_config"); config != dump.end() && config->is_object()) {
    for (const auto& [name, values] : config->items()) {
      const std::string ranks = text_or_empty(values, "ranks");
      if (ranks.size() > 2) flight.world = std::max(flight.world, std::ranges::count(ranks, ',') + 1);
    }
  }
  add_entries(dump, flight);
  return flight;
}

Result<FlightDump> read_flight_dump(const std::string& path) {
  ASSIGN_OR_RETURN(const Location at, open_url(path));
  ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key, kMostFlightBytes));
  return parse_flight_dump(text, path);
}

bool is_flight_name(const std::string& name) {
  for (const char* const prefix : {"nccl_trace_rank_", "comm_lib_trace_rank_"}) {
    const size_t at = name.find(prefix);
    if (at != std::string::npos && parse_whole(std::string_view(name).substr(at + std::strlen(prefix)))) return true;
  }
  return false;
}

}  // namespace millrace::doctor
