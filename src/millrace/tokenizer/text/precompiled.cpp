// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/text/precompiled.h"

#include <algorithm>
#include <cstring>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/text/aligned_text.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

// A unit of the double array: the label that leads to it, whether a value follows, where its children are.
struct Unit {
  uint32_t bits;
  bool has_value() const { return bits >> 8 & 1; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & (0x80000000u | 0xFF); }
  uint64_t offset() const { return uint64_t{bits >> 10} << ((bits & 0x200) >> 6); }
};

// A grapheme cluster that grows by one character after another (Unicode Standard Annex #29, extended clusters). What
// makes clusters of at least 6 bytes only (flags) is left out, because its caller takes those apart again.
class Cluster {
 public:
  explicit Cluster(uint32_t c) { add(c); }

  bool goes_on_with(uint32_t c) const {
    const ClusterClass next = cluster_class(c);
    if (last_ == '\r' && c == '\n') return true;
    if (last_class_ == ClusterClass::kControl || next == ClusterClass::kControl) return false;
    if (is_mark(next) || last_class_ == ClusterClass::kPrepend) return true;
    if (next == ClusterClass::kPictographic) return chain_ == Chain::kJoined;
    if (next == ClusterClass::kConsonant) return chain_ == Chain::kLinked;
    return is_hangul_pair(last_class_, next);
  }

  void add(uint32_t c) {
    last_ = c;
    last_class_ = cluster_class(c);
    chain_ = chain_with(last_class_);
  }

 private:
  // What a later character may need to see: a pictographic one and then a joiner, or a consonant and then a linker.
  enum class Chain : uint8_t { kNone, kPictographic, kJoined, kConsonant, kLinked };

  static bool is_mark(ClusterClass c) {
    return c == ClusterClass::kExtend || c == ClusterClass::kExtendOnly || c == ClusterClass::kLinker ||
           c == ClusterClass::kSpacingMark || c == ClusterClass::kJoiner;
  }

  static bool is_hangul_pair(ClusterClass last, ClusterClass next) {
    using enum ClusterClass;
    if (next == kLead || next == kLeadVowel || next == kSyllable) return last == kLead;
    if (next == kVowel) return last == kLead || last == kVowel || last == kLeadVowel;
    if (next == kTrail) return last == kVowel || last == kLeadVowel || last == kSyllable || last == kTrail;
    return false;
  }

  Chain chain_with(ClusterClass next) const {
    using enum ClusterClass;
    if (next == kPictographic) return Chain::kPictographic;
    if (next == kConsonant) return Chain::kConsonant;
    if (chain_ == Chain::kPictographic && next == kJoiner) return Chain::kJoined;
    if (chain_ == Chain::kPictographic && (next == kExtend || next == kExtendOnly || next == kLinker)) return chain_;
    const bool conjunct = chain_ == Chain::kConsonant || chain_ == Chain::kLinked;
    if (conjunct && next == kLinker) return Chain::kLinked;
    if (conjunct && (next == kExtend || next == kJoiner)) return chain_;
    return Chain::kNone;
  }

  uint32_t last_ = 0;
  ClusterClass last_class_ = ClusterClass::kOther;
  Chain chain_ = Chain::kNone;
};

// End of the grapheme cluster that starts at `begin`.
size_t cluster_end(std::string_view text, size_t begin) {
  Characters c(text.substr(begin));
  Cluster cluster(c.value());
  for (c.next(); !c.at_end() && cluster.goes_on_with(c.value()); c.next()) cluster.add(c.value());
  return begin + c.begin();
}

// As `tokenizers` counts: the last characters are inserted when there are more than before; when there are fewer, the
// last stands for what is gone.
void append_replacement(std::string_view from, std::string_view to, std::vector<NormalizedChar>& out) {
  const size_t first = out.size();
  int32_t gone = 0;
  for (Characters c(from); !c.at_end(); c.next()) ++gone;
  for (Characters c(to); !c.at_end(); c.next()) out.push_back({c.value(), 0});
  const auto count = static_cast<int32_t>(out.size() - first);
  for (int32_t i = gone; i < count; ++i) out[first + static_cast<size_t>(i)].change = 1;
  if (count < gone && !out.empty()) out.back().change += count - gone;
}

}  // namespace

PrecompiledMap::PrecompiledMap(std::vector<uint32_t> units, std::string strings)
    : units_(std::move(units)), strings_(std::move(strings)) {
  for (uint32_t c = 0; c < 128; ++c) {
    const char character = static_cast<char>(c);
    ascii_stays_[c] = !find({&character, 1});
  }
  if (find("\r\n")) ascii_stays_[static_cast<size_t>('\r')] = false;
}

Result<PrecompiledMap> PrecompiledMap::parse(std::string_view bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes))
    return fail(ErrorCode::kInvalidArgument, "a precompiled map of {} bytes", bytes.size());
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  const size_t count = trie_bytes / sizeof(uint32_t);
  if (count == 0 || count * sizeof(uint32_t) > bytes.size())
    return fail(ErrorCode::kInvalidArgument, "a precompiled map with a trie of {} bytes in {}", trie_bytes,
                bytes.size());
  std::vector<uint32_t> units(count);
  std::memcpy(units.data(), bytes.data(), count * sizeof(uint32_t));
  std::string strings(bytes.substr(count * sizeof(uint32_t)));
  if (!is_utf8(strings)) return fail(ErrorCode::kInvalidArgument, "a precompiled map whose strings are not UTF-8");
  return PrecompiledMap(std::move(units), std::move(strings));
}

std::optional<std::string_view> PrecompiledMap::find(std::string_view chunk) const {
  uint64_t at = Unit{units_[0]}.offset();
  for (const char b : chunk) {
    const auto byte = static_cast<uint8_t>(b);
    if (byte == 0) return std::nullopt;
    at ^= byte;
    if (at >= units_.size()) return std::nullopt;
    const Unit unit{units_[at]};
    if (unit.label() != byte) return std::nullopt;
    at ^= unit.offset();
    if (at >= units_.size()) return std::nullopt;
    if (!unit.has_value()) continue;
    const uint32_t offset = Unit{units_[at]}.value();
    if (offset > strings_.size()) return std::nullopt;
    const auto end = std::min(strings_.find('\0', offset), strings_.size());
    return std::string_view(strings_).substr(offset, end - offset);
  }
  return std::nullopt;
}

void PrecompiledMap::append_cluster(std::string_view cluster, std::vector<NormalizedChar>& out) const {
  if (cluster.size() < 6) {
    if (const auto replacement = find(cluster)) return append_replacement(cluster, *replacement, out);
  }
  for (Characters c(cluster); !c.at_end(); c.next()) {
    const std::string_view character = cluster.substr(c.begin(), c.end() - c.begin());
    if (const auto replacement = find(character))
      append_replacement(character, *replacement, out);
    else
      out.push_back({c.value(), 0});
  }
}

void PrecompiledMap::normalize(std::string_view text, std::vector<NormalizedChar>& out) const {
  const auto is_ascii_at = [&](size_t i) { return i == text.size() || static_cast<uint8_t>(text[i]) < 128; };
  for (size_t begin = 0; begin < text.size();) {
    // An ASCII character before another is a cluster, but for CR before LF.
    const auto first = static_cast<uint8_t>(text[begin]);
    const bool alone = first < 128 && first != '\r' && is_ascii_at(begin + 1);
    const size_t end = alone ? begin + 1 : cluster_end(text, begin);
    if (alone && ascii_stays_[first])
      out.push_back({first, 0});
    else
      append_cluster(text.substr(begin, end - begin), out);
    begin = end;
  }
}

bool PrecompiledMap::is_surely_normal(std::string_view text) const {
  for (const char b : text)
    if (static_cast<uint8_t>(b) >= 128 || !ascii_stays_[static_cast<uint8_t>(b)]) return false;
  return true;
}

Result<std::string> decode_base64(std::string_view text) {
  const auto bad = [] { return fail(ErrorCode::kInvalidArgument, "not base64"); };
  const auto value = [](char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  if (text.size() % 4 != 0) return bad();
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    if (value(c) < 0) return bad();
    bits = bits << 6 | static_cast<uint32_t>(value(c));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count);
  }
  if ((bits & ((1u << count) - 1)) != 0) return bad();
  return bytes;
}

}  // namespace millrace::tokenizer
