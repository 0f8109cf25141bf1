// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/path_template.h"

#include <algorithm>
#include <cctype>

#include "millrace/base/text/ascii.h"

namespace millrace::lerobot {
namespace {

constexpr int kMostWidth = 64;

bool is_name(std::string_view text) {
  const auto part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !text.empty() && !is_digit(text[0]) && std::all_of(text.begin(), text.end(), part);
}

// As Python pads: numbers to the right, texts to the left; zeros come behind the sign.
void append_padded(std::string_view text, char fill, int width, bool right, std::string& out) {
  const size_t missing = static_cast<size_t>(width) > text.size() ? static_cast<size_t>(width) - text.size() : 0;
  if (!right) {
    out.append(text).append(missing, fill);
    return;
  }
  const size_t sign = fill == '0' && !text.empty() && text.front() == '-' ? 1 : 0;
  out.append(text.substr(0, sign)).append(missing, fill).append(text.substr(sign));
}

}  // namespace

Result<PathTemplate::Piece> PathTemplate::parse_field(std::string_view field) {
  const size_t colon = std::min(field.find(':'), field.size());
  Piece piece{.text = std::string(field.substr(0, colon)), .is_name = true};
  if (!is_name(piece.text)) return fail(ErrorCode::kInvalidArgument, "{{{}}} names no value", field);
  std::string_view format = field.substr(std::min(colon + 1, field.size()));
  if (format.ends_with('d') || format.ends_with('s')) {
    piece.kind = format.back();
    format.remove_suffix(1);
  }
  if (format.starts_with('0')) piece.fill = '0';
  for (const char c : format) {
    if (!is_digit(c) || piece.width > kMostWidth) {
      return fail(ErrorCode::kInvalidArgument, "{{{}}} has a format that is not understood", field);
    }
    piece.width = piece.width * 10 + (c - '0');
  }
  if (piece.width > kMostWidth) return fail(ErrorCode::kInvalidArgument, "{{{}}} is wider than any path", field);
  return piece;
}

Result<PathTemplate> PathTemplate::parse(std::string_view text) {
  PathTemplate out;
  out.text_ = std::string(text);
  std::string literal;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool doubled = at + 1 < text.size() && text[at + 1] == c;
    if ((c == '{' || c == '}') && doubled) {
      literal += c;
      ++at;
    } else if (c == '}') {
      return fail(ErrorCode::kInvalidArgument, "a '}}' closes nothing");
    } else if (c == '{') {
      const size_t end = text.find('}', at);
      if (end == text.npos) return fail(ErrorCode::kInvalidArgument, "a '{{' is not closed");
      ASSIGN_OR_RETURN(Piece piece, parse_field(text.substr(at + 1, end - at - 1)));
      if (!literal.empty()) out.pieces_.push_back({.text = std::exchange(literal, {})});
      out.pieces_.push_back(std::move(piece));
      at = end;
    } else {
      literal += c;
    }
  }
  if (!literal.empty()) out.pieces_.push_back({.text = std::move(literal)});
  return out;
}

bool PathTemplate::uses(std::string_view name) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return p.is_name && p.text == name; });
}

std::vector<std::string> PathTemplate::names() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_) {
    const bool is_new = piece.is_name && std::find(names.begin(), names.end(), piece.text) == names.end();
    if (is_new) names.push_back(piece.text);
  }
  return names;
}

Result<std::string> PathTemplate::format(const TemplateValues& values) const {
  std::string out;
  for (const Piece& piece : pieces_) {
    if (!piece.is_name) {
      out += piece.text;
      continue;
    }
    const auto found = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == piece.text; });
    if (found == values.end()) return fail(ErrorCode::kNotFound, "nothing is called {{{}}} here", piece.text);
    const auto* number = std::get_if<int64_t>(&found->second);
    if ((piece.kind == 'd') != (number != nullptr) && piece.kind != 0) {
      return fail(ErrorCode::kInvalidArgument, "{{{}}} cannot be formatted as '{}'", piece.text, piece.kind);
    }
    const std::string text = number != nullptr ? std::to_string(*number) : std::get<std::string>(found->second);
    append_padded(text, piece.fill, piece.width, number != nullptr, out);
  }
  return out;
}

}  // namespace millrace::lerobot
