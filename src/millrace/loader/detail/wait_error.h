// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "millrace/base/status.h"

namespace millrace::loader {

// A timeout of next() and open() means: call again, the work goes on. Work that ended because a storage's own time was
// up is therefore another error.
inline Error as_final(Error error) {
  return error.code() == ErrorCode::kTimeout ? Error(ErrorCode::kUnavailable, error.to_string()) : std::move(error);
}

}  // namespace millrace::loader
