// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/status.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace millrace {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kOutOfRange:
      return "out_of_range";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kCorruption:
      return "corruption";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

std::string Error::to_string() const {
  std::string text;
  for (auto it = context_.rbegin(); it != context_.rend(); ++it) text += *it + ": ";
  return text + message_;
}

tl::unexpected<Error> detail::vfail(ErrorCode code, fmt::string_view format, fmt::format_args args) {
  return tl::unexpected<Error>(Error(code, fmt::vformat(format, args)));
}

namespace {

ErrorCode code_of_errno(int sys_errno) {
  switch (sys_errno) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return ErrorCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return ErrorCode::kResourceExhausted;
    case EINVAL:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorCode::kInvalidArgument;
    case EAGAIN:
    case EBUSY:
    case ESTALE:
      return ErrorCode::kUnavailable;
    case ETIMEDOUT:
      return ErrorCode::kTimeout;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kUnavailable;  // EIO and the like: the device did not do it; another copy or try may
  }
}

}  // namespace

Error errno_error(int sys_errno, std::string_view what) {
  return Error(code_of_errno(sys_errno), fmt::format("{}: {}", what, std::strerror(sys_errno)), sys_errno);
}

}  // namespace millrace
