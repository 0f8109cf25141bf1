// SPDX-License-Identifier: Apache-2.0
#pragma once

// Variables of the environment. Thread-safe while no thread sets one.

#include <cstdlib>
#include <string>

namespace millrace {

// "" where it is not set.
inline std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace millrace
