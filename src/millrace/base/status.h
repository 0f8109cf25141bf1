// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every function of Millrace that can fail returns a Result<T> or a Status. No exception crosses a module boundary;
// only `python/` raises for an Error, and only `cli/` prints one. Error is a value: copyable, movable between
// threads, not synchronised.

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace millrace {

// The error codes. The set is small and closed: each code exists because some caller treats it differently.
enum class ErrorCode {
  kCancelled,          // a stop token was set
  kInvalidArgument,    // the caller's input is wrong; trying again cannot help
  kNotFound,           // no such key, file, member or tensor
  kAlreadyExists,      // a conditional write lost, or the target already exists
  kPermissionDenied,   // the system or the service said no
  kOutOfRange,         // past the end
  kResourceExhausted,  // no space, no memory under the cap, no descriptors
  kUnavailable,        // the other side did not answer properly; may be tried again
  kTimeout,            // a deadline passed; may be tried again
  kCorruption,         // bytes differ from their declared content
  kUnsupported,        // understood, but deliberately not supported
  kInternal,           // a defect in Millrace
};

// Returns the code's name in --json output and in the docs: "not_found", "corruption", ...
std::string_view error_code_name(ErrorCode code);

class [[nodiscard]] Error {
 public:
  // `sys_errno` is the errno that caused the error, 0 when there is none.
  Error(ErrorCode code, std::string message, int sys_errno = 0)
      : code_(code), sys_errno_(sys_errno), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  int sys_errno() const { return sys_errno_; }
  const std::string& message() const { return message_; }

  // Adds the name of a layer that the error passed through, the innermost first. The code stays the same.
  Error& add_context(std::string context) {
    context_.push_back(std::move(context));
    return *this;
  }

  // Returns "outer: inner: message" in one line.
  std::string to_string() const;

 private:
  ErrorCode code_;
  int sys_errno_;
  std::string message_;
  std::vector<std::string> context_;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

namespace detail {
tl::unexpected<Error> vfail(ErrorCode code, fmt::string_view format, fmt::format_args args);
}

// `return fail(ErrorCode::kNotFound, "open {}: no such key", key);`
template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return detail::vfail(code, format, fmt::make_format_args(args...));
}

// Returns the Error for a failed system call: ENOENT is not_found, ENOSPC resource_exhausted and so on; the message
// names `what`.
Error errno_error(int sys_errno, std::string_view what);

// Whether a service did not answer within its whole time limit. A caller that could continue without the answer
// returns this error instead, because its next request would wait as long.
inline bool gave_no_answer(const Error& error) {
  return error.code() == ErrorCode::kTimeout;
}

// Passes a Result on. Adds `context` to an error as one more layer.
template <class T>
[[nodiscard]] Result<T> with_context(Result<T>&& result, std::string_view context) {
  if (!result) result.error().add_context(std::string(context));
  return std::move(result);
}

}  // namespace millrace

#define MILLRACE_CONCAT_INNER(a, b) a##b
#define MILLRACE_CONCAT(a, b) MILLRACE_CONCAT_INNER(a, b)

// RETURN_IF_ERROR(status_expression);
#define RETURN_IF_ERROR(expression)                                                 \
  do {                                                                              \
    if (auto millrace_status = (expression); !millrace_status)                      \
      return tl::unexpected<::millrace::Error>(std::move(millrace_status).error()); \
  } while (false)

// ASSIGN_OR_RETURN(auto value, result_expression);
#define ASSIGN_OR_RETURN(declaration, expression) \
  MILLRACE_ASSIGN_OR_RETURN(MILLRACE_CONCAT(millrace_result_, __COUNTER__), declaration, expression)
#define MILLRACE_ASSIGN_OR_RETURN(temporary, declaration, expression)                     \
  auto temporary = (expression);                                                          \
  if (!temporary) return tl::unexpected<::millrace::Error>(std::move(temporary).error()); \
  declaration = std::move(*temporary)
