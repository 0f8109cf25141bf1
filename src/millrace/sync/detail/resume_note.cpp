// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/resume_note.h"

#include <fmt/core.h>

#include <charconv>

namespace millrace::sync {
namespace {

constexpr std::string_view kNoteBegin = "millrace-copy 1 ";
constexpr size_t kHexDigits = 32;

std::string_view cut(std::string_view& text, size_t size) {
  const std::string_view front = text.substr(0, size);
  text.remove_prefix(front.size());
  return front;
}

}  // namespace

Hash128 copy_identity(std::string_view source, std::string_view version, std::string_view target, int64_t size,
                      int64_t part_bytes) {
  std::string all;
  for (const std::string_view field : {source, version, target}) all += fmt::format("{}:{},", field.size(), field);
  return xxh3_128(all + fmt::format("{},{}", size, part_bytes));
}

std::string serialize_note(const ResumeNote& note) {
  std::string text =
      fmt::format("{}{} {} {:016x} ", kNoteBegin, to_hex(note.identity), to_hex(note.digest), note.parts);
  text += to_hex(xxh3_128(text));
  return text;
}

std::optional<ResumeNote> parse_note(std::string_view text) {
  if (text.size() < kHexDigits) return std::nullopt;
  const std::string_view signed_text = text.substr(0, text.size() - kHexDigits);
  if (hash128_from_hex(text.substr(signed_text.size())) != xxh3_128(signed_text)) return std::nullopt;
  if (!text.starts_with(kNoteBegin)) return std::nullopt;
  std::string_view rest = signed_text.substr(kNoteBegin.size());
  const auto identity = hash128_from_hex(cut(rest, kHexDigits));
  cut(rest, 1);
  const auto digest = hash128_from_hex(cut(rest, kHexDigits));
  cut(rest, 1);
  int64_t parts = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), parts, 16);
  if (!identity || !digest || parts < 0) return std::nullopt;
  return ResumeNote{.identity = *identity, .parts = parts, .digest = *digest};
}

}  // namespace millrace::sync
