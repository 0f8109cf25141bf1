// SPDX-License-Identifier: Apache-2.0
#pragma once

// Page tokens that name a key. Any storage except read-only ones begins a listing with such a token after that key,
// whether the key exists or not. Values.

#include <string>
#include <string_view>

namespace millrace {

// No token of a server begins with this byte, because server tokens are XML text.
inline constexpr char kKeyToken = '\x01';

// Returns a token for ListOptions::page_token.
inline std::string page_token_behind(std::string_view key) {
  return kKeyToken + std::string(key);
}

inline bool is_key_token(std::string_view token) {
  return token.starts_with(kKeyToken);
}

// Returns the key of a token; "" for any other token.
inline std::string_view key_of_token(std::string_view token) {
  return is_key_token(token) ? token.substr(1) : std::string_view();
}

}  // namespace millrace
