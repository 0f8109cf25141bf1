// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/charsmap.h"

#include <cstring>

#include "millrace/base/utf8.h"
#include "millrace/tokenizer/aligned_text.h"
#include "millrace/tokenizer/unicode_tables.h"

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

constexpr uint32_t kJoiner = 0x200D;

// End of the grapheme cluster that starts at `begin`, where that matters to a Charsmap: clusters of one character or of
// fewer than 6 bytes. Longer ones (Hangul, Indic conjuncts, flags) are taken apart again by its caller.
size_t cluster_end(std::string_view text, size_t begin) {
  Characters c(text.substr(begin));
  uint32_t last = c.value();
  bool pictographic = is_pictographic(last);
  c.next();
  if (last == '\r' && !c.at_end() && c.value() == '\n') return begin + c.end();
  if (is_cluster_control(last)) return begin + c.begin();
  for (; !c.at_end(); c.next()) {
    const uint32_t next = c.value();
    const bool joined = pictographic && last == kJoiner && is_pictographic(next);
    const bool prepended = prepends_cluster(last) && !is_cluster_control(next);
    if (!extends_cluster(next) && !joined && !prepended) break;
    if (prepended) pictographic = is_pictographic(next);
    last = next;
  }
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

Charsmap::Charsmap(std::vector<uint32_t> units, std::string strings)
    : units_(std::move(units)), strings_(std::move(strings)) {
  const Unit root{units_.empty() ? 0 : units_[0]};
  for (uint32_t c = 0; c < 128; ++c) {
    const uint64_t child = root.offset() ^ c;
    ascii_stays_[c] = c == 0 || child >= units_.size() || Unit{units_[child]}.label() != c;
  }
}

Result<Charsmap> Charsmap::parse(std::string_view bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes))
    return fail(ErrorCode::kInvalidArgument, "a charsmap of {} bytes", bytes.size());
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  const size_t count = trie_bytes / sizeof(uint32_t);
  if (count == 0 || count * sizeof(uint32_t) > bytes.size())
    return fail(ErrorCode::kInvalidArgument, "a charsmap with a trie of {} bytes in {}", trie_bytes, bytes.size());
  std::vector<uint32_t> units(count);
  std::memcpy(units.data(), bytes.data(), count * sizeof(uint32_t));
  std::string strings(bytes.substr(count * sizeof(uint32_t)));
  if (!is_utf8(strings)) return fail(ErrorCode::kInvalidArgument, "a charsmap whose strings are not UTF-8");
  return Charsmap(std::move(units), std::move(strings));
}

std::optional<std::string_view> Charsmap::find(std::string_view chunk) const {
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

void Charsmap::append_cluster(std::string_view cluster, std::vector<NormalizedChar>& out) const {
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

void Charsmap::normalize(std::string_view text, std::vector<NormalizedChar>& out) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = cluster_end(text, begin);
    append_cluster(text.substr(begin, end - begin), out);
    begin = end;
  }
}

bool Charsmap::is_surely_normal(std::string_view text) const {
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
