// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses numbers in heads and chunks. Thread-safe.

#include <charconv>
#include <optional>
#include <string_view>

namespace millrace::http {

// Parses `text` as a whole number of 0 or more; nullopt for any other text, or when the number does not fit T.
template <class T>
std::optional<T> whole_number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace millrace::http
