// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/yaml/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/text/utf8.h"

namespace millrace::yaml {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Calls `take(code point, its bytes)` for each of well-formed UTF-8.
template <class Take>
void each_character(std::string_view text, Take&& take) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    while (end < text.size() && is_continuation(text[end])) ++end;
    const auto lead = static_cast<unsigned char>(text[at]);
    uint32_t code = lead < 0x80 ? lead : lead & (0xFFU >> (end - at + 1));
    for (size_t i = at + 1; i < end; ++i) code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
    take(code, text.substr(at, end - at));
    at = end;
  }
}

// Bytes 0x80 to 0x9F of cp1252; 0 where it has none, and a byte without a character was kept as U+0080 and so on.
constexpr std::array<uint16_t, 32> kHigh = {0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021,
                                            0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0,      0x017D, 0,
                                            0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                            0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};
// The characters of cp1254 (Turkish) that differ.
constexpr std::array<std::pair<uint16_t, uint8_t>, 6> kTurkish = {
    {{0x011E, 0xD0}, {0x0130, 0xDD}, {0x015E, 0xDE}, {0x011F, 0xF0}, {0x0131, 0xFD}, {0x015F, 0xFE}}};

// The byte that cp1254 or cp1252 read as this character; 0 for none.
uint8_t byte_of(uint32_t code) {
  for (const auto& [character, byte] : kTurkish) {
    if (character == code) return byte;
  }
  const auto found = std::find(kHigh.begin(), kHigh.end(), code);
  if (found != kHigh.end() && code != 0) return static_cast<uint8_t>(0x80 + (found - kHigh.begin()));
  return code >= 0x80 && code <= 0xFF ? static_cast<uint8_t>(code) : 0;
}

// Text that is being put right: bytes wait until the run of characters that are not ASCII has ended.
struct Repair {
  std::string out, original, bytes;
  bool found = false;

  void end_run() {
    // One letter of two bytes or more for the run, and nothing in it that is not a letter then.
    const bool repaired = bytes.size() > 1 && is_utf8(bytes);
    out += repaired ? bytes : original;
    found = found || repaired;
    original.clear();
    bytes.clear();
  }
};

bool is_forbidden(uint32_t code) {
  if (code < 0x20) return code != '\t' && code != '\n' && code != '\r';
  // U+0085, U+2028 and U+2029 would end lines for YAML 1.1, and for no editor.
  return (code >= 0x7F && code <= 0x9F) || code == 0x2028 || code == 0x2029 || code == 0xFFFE || code == 0xFFFF;
}

Place place_at(std::string_view text, size_t offset) {
  const std::vector<std::string_view> lines = split_lines(text.substr(0, offset));
  std::string line;
  append_utf8_replaced(lines.back(), line);
  return {static_cast<int64_t>(lines.size()), characters(line) + 1};
}

std::string well_formed(std::string_view text, std::vector<Problem>& problems) {
  std::string out;
  if (append_utf8_replaced(text, out) > 0) {
    problems.push_back(
        {Problem::Kind::kEncoding, place_at(text, utf8_valid_prefix(text)),
         "letters that are not UTF-8 (the file was saved in another encoding); they are read as U+FFFD"});
  }
  return out;
}

void find_mojibake(std::string_view text, std::vector<Problem>& problems) {
  int64_t lines = 0, number = 0;
  Problem problem{Problem::Kind::kEncoding, {}, {}};
  for (const std::string_view line : split_lines(text)) {
    ++number;
    const std::optional<std::string> repaired = repaired_mojibake(line);
    if (!repaired || lines++ > 0) continue;
    const auto first =
        std::find_if(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) > 127; });
    problem.at = {number, first - line.begin() + 1};
    const size_t start = std::min(repaired->find_first_not_of(" \t"), repaired->size());
    problem.message = fmt::format("UTF-8 that was read as cp1254 or cp1252 and saved again; the line was \"{}\"",
                                  std::string_view(*repaired).substr(start));
  }
  if (lines == 0) return;
  if (lines > 1) problem.message += fmt::format(", and {} more lines are like it", lines - 1);
  problems.push_back(std::move(problem));
}

std::string without_forbidden(const std::string& text, std::vector<Problem>& problems) {
  std::string out;
  bool reported = false;
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    if (!is_forbidden(code)) {
      out += bytes;
      return;
    }
    if (!reported) {
      problems.push_back({Problem::Kind::kEncoding, place_at(text, static_cast<size_t>(bytes.data() - text.data())),
                          fmt::format("the control character U+{:04X}; it is read as U+FFFD", code)});
    }
    reported = true;
    out += kReplacement;
  });
  return out;
}

}  // namespace

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for (;;) {
    const size_t end = text.find_first_of("\r\n");
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + (text.substr(end, 2) == "\r\n" ? 2 : 1));
  }
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); });
}

char character_at(std::string_view text, const Place& at) {
  const std::vector<std::string_view> lines = split_lines(text);
  if (at.line < 1 || at.line > static_cast<int64_t>(lines.size())) return 0;
  int64_t column = 1;
  for (const char c : lines[static_cast<size_t>(at.line - 1)]) {
    if (is_continuation(c)) continue;
    if (column++ == at.column) return c;
  }
  return 0;
}

std::optional<std::string> repaired_mojibake(std::string_view text) {
  if (!is_utf8(text)) return std::nullopt;
  Repair repair;
  each_character(text, [&](uint32_t code, std::string_view bytes) {
    const uint8_t byte = code < 0x80 ? uint8_t{0} : byte_of(code);
    if (byte == 0) {
      repair.end_run();
      repair.out += bytes;
      return;
    }
    repair.original += bytes;
    repair.bytes += static_cast<char>(byte);
  });
  repair.end_run();
  return repair.found ? std::optional(std::move(repair.out)) : std::nullopt;
}

std::string clean_text(std::string_view text, std::vector<Problem>& problems) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    problems.push_back({Problem::Kind::kEncoding, {1, 1}, "UTF-16; save the file as UTF-8"});
    return {};
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::string letters = well_formed(text, problems);
  find_mojibake(letters, problems);
  return without_forbidden(letters, problems);
}

}  // namespace millrace::yaml
