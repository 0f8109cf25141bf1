// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/text/json_writer.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <charconv>
#include <iterator>
#include <utility>

#include "millrace/base/text/utf8.h"

namespace millrace {

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  out_ += '"';
  out_ += name;
  out_ += "\":";
  fresh_ = true;
  return *this;
}

JsonWriter& JsonWriter::text_key(std::string_view name) {
  text(name);
  out_ += ':';
  fresh_ = true;
  return *this;
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  fresh_ = true;
}

void JsonWriter::close(char bracket) {
  out_ += bracket;
  fresh_ = false;
}

void JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
}

void JsonWriter::number(int64_t value) {
  separate();
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out_.append(digits, end);
}

void JsonWriter::numbers(std::span<const int64_t> values) {
  open('[');
  for (const int64_t value : values) number(value);
  close(']');
}

void JsonWriter::text(std::string_view value) {
  const auto needs_escape = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; };
  separate();
  out_ += '"';
  for (size_t at = 0; at < value.size();) {
    size_t end = at;
    while (end < value.size() && !needs_escape(value[end])) ++end;
    out_ += value.substr(at, end - at);
    if (end < value.size()) escape(value[end++]);
    at = end;
  }
  out_ += '"';
}

void JsonWriter::repaired_text(std::string_view value) {
  std::string repaired;
  append_utf8_replaced(value, repaired);
  text(repaired);
}

std::string JsonWriter::take() {
  return std::move(out_);
}

void JsonWriter::separate() {
  if (!std::exchange(fresh_, false)) out_ += ',';
}

void JsonWriter::escape(char c) {
  static constexpr std::string_view kShort = "\b\t\n\f\r\"\\", kLetters = "btnfr\"\\";
  const size_t at = kShort.find(c);
  if (at == kShort.npos) {
    fmt::format_to(std::back_inserter(out_), "\\u{:04x}", static_cast<unsigned>(c));
  } else {
    out_ += '\\';
    out_ += kLetters[at];
  }
}

std::string indented(std::string_view compact) {
  std::string out;
  out.reserve(compact.size() + compact.size() / 2);
  size_t depth = 0;
  bool in_string = false;
  const auto new_line = [&] { out.append(1, '\n').append(2 * depth, ' '); };
  for (size_t at = 0; at < compact.size(); ++at) {
    const char c = compact[at];
    const bool is_empty = (c == '{' || c == '[') && at + 1 < compact.size() && compact[at + 1] == c + 2;
    if (in_string || c == '"') {
      out += c;
      if (c == '\\') out += compact[++at];
      in_string ^= c == '"';
    } else if (is_empty) {
      out.append(1, c).append(1, compact[++at]);
    } else if (c == '{' || c == '[') {
      out += c;
      ++depth;
      new_line();
    } else if (c == '}' || c == ']') {
      --depth;
      new_line();
      out += c;
    } else {
      out += c;
      if (c == ':') out += ' ';
      if (c == ',') new_line();
    }
  }
  return out;
}

std::string compact(std::string_view text) {
  std::string out(text.size(), '\0');
  size_t size = out.size();
  if (simdjson::minify(text.data(), text.size(), out.data(), size) != simdjson::SUCCESS) return std::string(text);
  out.resize(size);
  return out;
}

}  // namespace millrace
