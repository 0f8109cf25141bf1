// SPDX-License-Identifier: Apache-2.0
#pragma once

// Splits a path or key at its last '/'. The results are parts of `path`, which must outlive them. Pure functions;
// thread-safe.

#include <string_view>

namespace millrace {

// Returns the part after the last '/'.
constexpr std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}
// Returns the part before the last '/'; "" if there is none.
constexpr std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

}  // namespace millrace
