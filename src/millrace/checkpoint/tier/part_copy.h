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
  bool source_failed = false;  // the source failed; another source may help
};

// Copies the file at `from`, whose record is `part`, to `to`, durable. Files that the part refers to are not copied.
// Every byte is checked against its hash before the copy becomes visible, so damage in one tier never reaches the
// next. The copy takes buffers of the writer's part size from the process's budget: 32 for a service, 4 for a file
// system, fewer when memory is short. `at_source` is called with true before each operation of `from` and with false
// after it. With `memory`, the buffers are counted there and take at most its copy_share(). Errors: corruption naming
// `from` (nothing is visible at `to`), those of reading and writing, cancelled, resource_exhausted (not even one
// buffer).
[[nodiscard]] PartCopy copy_part_file(const Location& from, const Location& to, const PartRecord& part,
                                      const std::stop_token& stop,
                                      const std::function<void(bool reading)>& at_source = {},
                                      StagingMemory* memory = nullptr);

// Copies a part (file and record) into the attempt's directory `to`, durable, from the first of the directories `from`
// that has the file whole. Errors: those of copy_part_file() for the first source.
[[nodiscard]] Status bring_part(std::span<const Location> from, const Location& to, const WrittenRecord& record,
                                const std::stop_token& stop);

// Reads the part in the directory `at` and returns whether its record and every byte of its file match `record`.
bool is_whole_part(const Location& at, const WrittenRecord& record, const std::stop_token& stop);

}  // namespace millrace::checkpoint
