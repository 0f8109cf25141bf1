// SPDX-License-Identifier: Apache-2.0
#pragma once

// A part of an object on its way from the source to the target. A value; it belongs to one thread at a time.

#include <cstdint>
#include <memory>

#include "millrace/base/io/local_file.h"
#include "millrace/base/memory/buffer_pool.h"

namespace millrace::sync {

enum class PartAction {
  kWrite,       // write it from memory or a file
  kFromSource,  // the target's storage copies it from the source
  kFromOld,     // the target's storage copies it from the old target
  kKeep,        // keep it: an earlier process has written it
};

struct Part {
  int64_t offset = 0;  // in bytes, from the start of the object
  int64_t size = 0;
  Buffer buffer;                    // the content; empty if it does not pass through memory
  std::unique_ptr<FileRange> file;  // the content, if it is sent from a file instead
  uint32_t file_crc32c = 0;         // CRC-32C of `file`, if the target's storage uses it
  PartAction action = PartAction::kWrite;
  bool is_ready = false;  // the content is in memory or not needed, so the part can be decided
};

}  // namespace millrace::sync
