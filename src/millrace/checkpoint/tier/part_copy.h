// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies a rank's file from one tier to another. Blocks; thread-safe.

#include <functional>
#include <span>
#include <stop_token>

#include "millrace/base/status.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/checkpoint/snapshot/staging.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct PartCopy {
  Status status;
  bool source_failed = false;  // another source may help
};

// Copies the file at `from`, whose record is `part`, to `to`, durable. What the part refers to is not copied. Every
// byte is held against its hash before the copy becomes visible, so damage in one tier never reaches the next. The
// buffers take part sizes of the process's budget: 32 of them for a service, 4 for a file system, fewer where memory is
// short. at_source: called with true before each operation of `from` and with false after it. With `memory` the buffers
// count there, and are at most its copy_share(). Errors: corruption naming `from` (nothing is visible at `to`), those
// of reading and writing, cancelled, resource_exhausted (not even one buffer).
[[nodiscard]] PartCopy copy_part_file(const Location& from, const Location& to, const PartRecord& part,
                                      const std::stop_token& stop,
                                      const std::function<void(bool reading)>& at_source = {},
                                      StagingMemory* memory = nullptr);

// Brings a part, file and record, into the attempt's directory `to`, durable, from the first of the directories `from`
// that has the file whole. Errors: as above, of the first source.
[[nodiscard]] Status bring_part(std::span<const Location> from, const Location& to, const WrittenRecord& record,
                                const std::stop_token& stop);

// Reads a part in the directory `at`: whether its record and every byte of its file are those of `record`.
bool is_whole_part(const Location& at, const WrittenRecord& record, const std::stop_token& stop);

}  // namespace millrace::checkpoint
