// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads an object as a program reads a file: of reads that follow each other the next block is under way already,
// others go straight to the storage. For one thread at a time.

#include <memory>

#include "millrace/storage/url.h"

namespace millrace {

class ReadAhead {
 public:
  // Two blocks are kept in memory once the reading is sequential.
  static constexpr int64_t kDefaultBlockBytes = 4 << 20;

  // Errors: those of open_read. REQUIRES: block_bytes > 0.
  [[nodiscard]] static Result<std::unique_ptr<ReadAhead>> open(const Location& location,
                                                               int64_t block_bytes = kDefaultBlockBytes);
  ~ReadAhead();

  int64_t size() const;
  std::string_view version() const;
  // Fills `out` from `offset` on and answers how many bytes that were: fewer than asked for only at the end, none
  // behind it. Errors: those of read_at. REQUIRES: offset >= 0.
  [[nodiscard]] Result<int64_t> read(int64_t offset, std::span<std::byte> out);

 private:
  struct Impl;
  explicit ReadAhead(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
