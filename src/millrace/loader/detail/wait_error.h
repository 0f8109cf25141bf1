// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "millrace/base/status.h"

namespace millrace::loader {

// Turns a timeout of work that has ended into unavailable. A timeout of next() and open() means that the work goes on
// and the caller should call again, so work that ended by a storage's timeout needs another error.
inline Error as_final(Error error) {
  return error.code() == ErrorCode::kTimeout ? Error(ErrorCode::kUnavailable, error.to_string()) : std::move(error);
}

}  // namespace millrace::loader
