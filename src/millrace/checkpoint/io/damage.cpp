// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/io/damage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace millrace::checkpoint {

namespace {

// What file systems and block devices answer for bytes that are lost.
constexpr std::array<int, 6> kLostBytes = {EIO, EUCLEAN, EBADMSG, ENODATA, EREMOTEIO, ENXIO};

}  // namespace

bool is_damage(const Error& error) {
  if (error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kPermissionDenied) return true;
  return std::ranges::find(kLostBytes, error.sys_errno()) != kLostBytes.end();
}

Error as_damage(Error error, const Location& location) {
  if (error.code() != ErrorCode::kInvalidArgument) return error;
  return Error(ErrorCode::kCorruption, fmt::format("{}: not a file: {}", location.url, error.message()));
}

}  // namespace millrace::checkpoint
