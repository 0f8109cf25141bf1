// SPDX-License-Identifier: Apache-2.0
#pragma once

// Methods of a local file's reader beyond RandomReader, for code that copies: whether the page cache has
// the file, ranges that the kernel can send, holes. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace {

// A range of an open file, for sendfile and the like. Must not outlive its reader. When it is destroyed, pages that
// were not in the page cache before leave it.
class FileRange {
 public:
  virtual ~FileRange() = default;
  virtual int descriptor() const = 0;
  virtual int64_t offset() const = 0;
  virtual int64_t size() const = 0;
  // Fills `out` from byte `at` of the range. Errors: corruption (the file became shorter), those of pread.
  [[nodiscard]] Status read_at(int64_t at, std::span<std::byte> out) const;
  // Call after the bytes were moved. Errors: corruption (changed while reading).
  [[nodiscard]] virtual Status check_unchanged() const = 0;
};

class LocalFile {
 public:
  virtual ~LocalFile() = default;
  virtual int descriptor() const = 0;
  // Call after bytes were taken from the descriptor. Errors: corruption (changed while reading).
  [[nodiscard]] virtual Status check_unchanged() const = 0;
  // Whether the file takes up less than its size, because it has holes that read as zeros.
  virtual bool has_holes() const = 0;
  // Whether most of it is in the page cache: then to send it from there costs less than to read it. What is not is read
  // faster past the page cache.
  virtual bool is_cached() const = 0;
  // Bytes [offset, offset + size); pages that are not in the page cache begin to be read into it. REQUIRES: the range
  // lies within size().
  virtual std::unique_ptr<FileRange> file_range(int64_t offset, int64_t size) const = 0;
};

}  // namespace millrace
