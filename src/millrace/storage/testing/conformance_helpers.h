// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the files of the conformance suite alone.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/storage.h"

namespace millrace {

inline std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span<char>(text));
}

// Every key, page by page.
inline std::vector<std::string> keys_of(Storage& storage, std::string_view prefix = "") {
  std::vector<std::string> keys;
  const Status done = for_each_object(storage, prefix, [&](const ObjectInfo& object) -> Status {
    keys.push_back(object.key);
    return {};
  });
  if (!done) keys.push_back("<" + done.error().to_string() + ">");
  return keys;
}

}  // namespace millrace
