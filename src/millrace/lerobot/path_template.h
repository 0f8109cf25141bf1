// SPDX-License-Identifier: Apache-2.0
#pragma once

// The path templates of info.json, formatted as Python's str.format does:
// "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet". Pure functions; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::lerobot {

using TemplateValue = std::variant<int64_t, std::string>;
using TemplateValues = std::vector<std::pair<std::string_view, TemplateValue>>;

class PathTemplate {
 public:
  PathTemplate() = default;
  // Errors: invalid_argument (an unmatched brace, a format that Python would refuse, or an unsupported format: only d
  // for numbers, s for names and widths with zeros are supported).
  [[nodiscard]] static Result<PathTemplate> parse(std::string_view text);

  const std::string& text() const { return text_; }
  bool uses(std::string_view name) const;
  std::vector<std::string> names() const;  // each name once, in order

  // Errors: not_found (a name that has no value), invalid_argument (the format d for a text).
  [[nodiscard]] Result<std::string> format(const TemplateValues& values) const;

 private:
  struct Piece {
    std::string text;  // the literal text, or the name
    bool is_name = false;
    char kind = 0;  // 'd', 's' or 0
    char fill = ' ';
    int width = 0;
  };
  [[nodiscard]] static Result<Piece> parse_field(std::string_view field);

  std::string text_;
  std::vector<Piece> pieces_;
};

}  // namespace millrace::lerobot
