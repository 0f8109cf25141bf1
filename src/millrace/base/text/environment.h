// SPDX-License-Identifier: Apache-2.0
#pragma once

// Environment variables. Thread-safe while no thread sets one.

#include <cstdlib>
#include <string>

namespace millrace {

// Returns the value of a variable; "" if it is not set.
inline std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace millrace
