// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by backends: checks of arguments, copies of ranges, when a service is asked again. Thread-safe.

#include <string_view>

#include "millrace/storage/storage.h"

namespace millrace {

// Errors: invalid_argument when no key of an object store can begin with `prefix`, or max_keys < 1.
[[nodiscard]] Status check_object_listing(std::string_view prefix, const ListOptions& options);
// As above, for keys that are paths: invalid_argument also when no legal path can begin with `prefix`.
[[nodiscard]] Status check_listing(std::string_view prefix, const ListOptions& options);

// Errors: invalid_argument: a negative offset, or an end that no object can have.
[[nodiscard]] Status check_write_range(std::string_view name, int64_t offset, size_t size);

// Errors: out_of_range naming the range and the size, invalid_argument (negative).
[[nodiscard]] Status check_read_range(const RandomReader& reader, int64_t offset, int64_t size);

// Writer::copy_range by reading and writing, for backends that have no better way.
[[nodiscard]] Status copy_through_memory(const RandomReader& source, int64_t source_offset, int64_t size,
                                         Writer& writer, int64_t offset);

// The wait after this many failed tries in a row: `first`, doubled for each further one, at most `longest`. Half of it
// is random, so that many clients spread. REQUIRES: failed_tries > 0.
Clock::duration backoff(int failed_tries, Clock::duration first, Clock::duration longest);

// Whether a later try may fare better: there was no answer, or not in time.
inline bool may_pass(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout;
}

}  // namespace millrace
