// SPDX-License-Identifier: Apache-2.0
// The types of plain scalars by the rules of YAML 1.1, as in PyYAML, including octal, base 60 and "no".
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "millrace/base/text/ascii.h"
#include "millrace/formats/yaml/yaml.h"

namespace millrace::yaml {

namespace {

constexpr std::array<std::string_view, 11> kTrue = {"yes", "Yes", "YES", "true", "True", "TRUE",
                                                    "on",  "On",  "ON",  "1",    "1.0"};
constexpr std::array<std::string_view, 11> kFalse = {"no",  "No",  "NO",  "false", "False", "FALSE",
                                                     "off", "Off", "OFF", "0",     "0.0"};
constexpr size_t kPlainWords = 9;  // of these only words are bools when they stand plain

bool all(std::string_view text, bool (*is)(char)) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is);
}
bool is_digit_or_line(char c) {
  return is_digit(c) || c == '_';
}

template <size_t n>
bool one_of(const std::array<std::string_view, n>& words, std::string_view text, size_t count = n) {
  return std::find(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count), text) !=
         words.begin() + static_cast<std::ptrdiff_t>(count);
}

std::optional<int64_t> digits(std::string_view text, int base) {
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  int64_t value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (plain.empty() || error != std::errc() || end != plain.data() + plain.size() || value < 0) return std::nullopt;
  return value;
}

// "1:30:00": each part but the first below 60.
std::optional<int64_t> base_60(std::string_view text) {
  int64_t value = 0;
  for (bool first = true;; first = false) {
    const size_t colon = text.find(':');
    const std::string_view part = text.substr(0, colon);
    const std::optional<int64_t> number = digits(part, 10);
    if (!number || !is_digit(part.front()) || (first && part.front() == '0')) return std::nullopt;
    if (!first && (*number > 59 || part.size() > 2)) return std::nullopt;
    if (__builtin_mul_overflow(value, int64_t{60}, &value) || __builtin_add_overflow(value, *number, &value)) {
      return std::nullopt;
    }
    if (colon == std::string_view::npos) return value;
    text.remove_prefix(colon + 1);
  }
}

std::optional<int64_t> plain_int(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  std::optional<int64_t> value;
  if (text.starts_with("0x")) {
    value = digits(text.substr(2), 16);
  } else if (text.starts_with("0b")) {
    value = digits(text.substr(2), 2);
  } else if (text.find(':') != std::string_view::npos) {
    value = base_60(text);
  } else if (text.size() > 1 && text.front() == '0') {
    value = digits(text, 8);
  } else {
    value = digits(text, 10);
  }
  return value && negative ? std::optional(-*value) : value;
}

std::optional<double> plain_float(std::string_view text) {
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  const size_t start = plain.find_first_not_of("+-");
  if (start > 1) return std::nullopt;  // also npos
  const std::string rest = plain.substr(start);
  if (rest == ".inf" || rest == ".Inf" || rest == ".INF") return plain[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  // PyYAML wants a point, so that 1e5 is text.
  const bool shape = rest.find('.') != std::string::npos &&
                     (is_digit(rest[0]) || (rest.size() > 1 && is_digit(rest[1]))) &&
                     rest.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if (!shape) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  return *end == '\0' ? std::optional(value) : std::nullopt;
}

// "2026-01-31", with or without a time behind it.
bool is_date(std::string_view text) {
  return text.size() >= 10 && all(text.substr(0, 4), is_digit) && text[4] == '-' && all(text.substr(5, 2), is_digit) &&
         text[7] == '-' && all(text.substr(8, 2), is_digit) &&
         (text.size() == 10 ||
          ((text[10] == 'T' || text[10] == 't' || text[10] == ' ') && text.find(':') < text.size()));
}

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

}  // namespace

Type type_of(const Node& scalar) {
  if (scalar.is_null()) return Type::kNull;
  if (!scalar.plain) return Type::kText;
  const std::string_view text = scalar.text;
  if (is_null_word(text)) return Type::kNull;
  if (one_of(kTrue, text, kPlainWords) || one_of(kFalse, text, kPlainWords)) return Type::kBool;
  if (plain_int(text)) return Type::kInt;
  if (plain_float(text)) return Type::kFloat;
  return is_date(text) ? Type::kDate : Type::kText;
}

std::string_view type_name(Type type) {
  constexpr std::array<std::string_view, 6> kNames = {"nothing",        "a text",   "a yes/no value",
                                                      "a whole number", "a number", "a date"};
  return kNames[static_cast<size_t>(type)];
}

std::optional<bool> as_bool(const Node& node) {
  if (!node.is_scalar()) return std::nullopt;
  if (one_of(kTrue, node.text)) return true;
  if (one_of(kFalse, node.text)) return false;
  return std::nullopt;
}

std::optional<int64_t> as_int(const Node& node) {
  if (!node.is_scalar()) return std::nullopt;
  if (node.plain) {
    if (const auto number = plain_int(node.text)) return number;
  } else if (all(node.text, is_digit_or_line)) {
    return digits(node.text, 10);
  }
  return std::nullopt;
}

std::optional<double> as_number(const Node& node) {
  if (const auto number = as_int(node)) return static_cast<double>(*number);
  return node.is_scalar() ? plain_float(node.text) : std::nullopt;
}

std::string scalar(std::string_view text) {
  Node node{.kind = Node::Kind::kScalar, .text = std::string(text)};
  constexpr std::string_view kLeads = "!&*-?|>@`'\"%#{}[],:~ =<";
  const bool plain =
      type_of(node) == Type::kText && kLeads.find(text.front()) == std::string_view::npos &&
      text.find(": ") == std::string_view::npos && text.find(" #") == std::string_view::npos && text.back() != ':' &&
      text.back() != ' ' && text.find_first_of(",[]{}") == std::string_view::npos &&
      std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace millrace::yaml
