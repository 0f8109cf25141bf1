// SPDX-License-Identifier: Apache-2.0
#pragma once

// Page tokens that name a key: with one, a listing of any storage but read-only ones begins behind that key, whether it
// exists or not. Values.

#include <string>
#include <string_view>

namespace millrace {

// No server's own token begins with this byte: those are texts of XML.
inline constexpr char kKeyToken = '\x01';

// For ListOptions::page_token.
inline std::string page_token_behind(std::string_view key) {
  return kKeyToken + std::string(key);
}

inline bool is_key_token(std::string_view token) {
  return token.starts_with(kKeyToken);
}

// "" for any other token.
inline std::string_view key_of_token(std::string_view token) {
  return is_key_token(token) ? token.substr(1) : std::string_view();
}

}  // namespace millrace
