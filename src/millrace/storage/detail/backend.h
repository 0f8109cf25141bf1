// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between backends: checks of arguments, copies of ranges, and the timing of retries. Thread-safe.

#include <string_view>

#include "millrace/storage/storage.h"

namespace millrace {

// Checks a listing of an object store. Errors: invalid_argument when no key can begin with `prefix`, or max_keys < 1.
[[nodiscard]] Status check_object_listing(std::string_view prefix, const ListOptions& options);
// Checks a listing of a storage whose keys are paths. Errors: those of check_object_listing; invalid_argument also
// when no legal path can begin with `prefix`.
[[nodiscard]] Status check_listing(std::string_view prefix, const ListOptions& options);

// Checks the range of a write. Errors: invalid_argument (a negative offset, or an end that no object can have).
[[nodiscard]] Status check_write_range(std::string_view name, int64_t offset, size_t size);

// Checks the range of a read. Errors: out_of_range naming the range and the size, invalid_argument (negative).
[[nodiscard]] Status check_read_range(const RandomReader& reader, int64_t offset, int64_t size);

// Implements Writer::copy_range by reading and writing, for backends without a better way.
[[nodiscard]] Status copy_through_memory(const RandomReader& source, int64_t source_offset, int64_t size,
                                         Writer& writer, int64_t offset);

// Returns the wait after this many failed tries in a row: `first`, doubled for each further try, at most `longest`.
// Half of the wait is random, so that many clients spread out. REQUIRES: failed_tries > 0.
Clock::duration backoff(int failed_tries, Clock::duration first, Clock::duration longest);

// Whether a later try may succeed: there was no answer, or it came too late.
inline bool may_pass(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout;
}

}  // namespace millrace
