// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to sync/: unpacks and checks a downloaded sample. Thread-safe.

#include <cstdint>
#include <stop_token>
#include <string_view>

#include "millrace/storage/url.h"

namespace millrace::sync {

// Whether the name ends like that of an archive: tar, also in gzip or zstd.
bool is_archive(std::string_view path);

struct Unpacked {
  bool is_archive = false;
  int64_t members = 0;  // files of the archive
  int64_t bytes = 0;    // size of these files
  int64_t checked = 0;  // files whose content was checked by the format in their name
};

// Unpacks the archive `file` to files below `into`. Any other file is only checked. Checks, inside an archive or not:
// gzip and zstd to their end, and the format of .json, of the first line of .jsonl, and of .npy. Errors: corruption;
// invalid_argument (a member whose name is no path below `into`), those of reading and writing, cancelled.
[[nodiscard]] Result<Unpacked> unpack_and_check(const Location& file, const Location& into, std::stop_token stop = {});

}  // namespace millrace::sync
