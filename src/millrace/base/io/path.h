// SPDX-License-Identifier: Apache-2.0
#pragma once

// The two halves of a path or key, by its last '/'. They are parts of `path`, which must outlive them. Pure functions;
// thread-safe.

#include <string_view>

namespace millrace {

// The part after the last '/'.
constexpr std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}
// The part before the last '/'; "" where there is none.
constexpr std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

}  // namespace millrace
