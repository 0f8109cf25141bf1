// SPDX-License-Identifier: Apache-2.0
#pragma once

// The functions of a local file's reader beyond RandomReader, for code that copies files: whether the page cache has
// the file, ranges that the kernel can send, holes. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace {

// A range of an open file, for sendfile and the like. The range must not outlive its reader. Its destructor drops the
// pages that the range brought into the page cache.
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
  // Whether the file takes up less space than its size because of holes, which read as zeros.
  virtual bool has_holes() const = 0;
  // Whether most of the file is in the page cache. Sending it from there then costs less than reading it. Any other
  // file is read faster without the page cache.
  virtual bool is_cached() const = 0;
  // Returns the range [offset, offset + size). The kernel begins to read the bytes that are not in the page cache.
  // REQUIRES: the range lies within size().
  virtual std::unique_ptr<FileRange> file_range(int64_t offset, int64_t size) const = 0;
};

}  // namespace millrace
