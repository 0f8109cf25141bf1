// SPDX-License-Identifier: Apache-2.0
#pragma once

// The index rows of a shard that is being written: 28 bytes per sample. The last 65,536 rows are in memory; earlier
// ones are in an unnamed file in the folder for temporary files (TMPDIR). Not thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "millrace/base/io/unnamed_file.h"
#include "millrace/formats/shard_index.h"

namespace millrace::prepare {

class RowSpool {
 public:
  static constexpr int64_t kRunSamples = 65'536;

  // Adds the row of a sample. Errors: resource_exhausted (no room in TMPDIR), those of the file system.
  [[nodiscard]] Status add(uint64_t offset, uint64_t size, uint32_t tokens, uint64_t hash);

  int64_t samples() const { return spooled_ + rows_.samples(); }
  int64_t total_tokens() const { return tokens_; }
  uint64_t first_offset() const { return first_offset_; }  // REQUIRES: samples() > 0

  // Calls `visit` with the values of one column, run by run, in the order of add().
  using Visit = std::function<Status(std::span<const std::byte> values)>;
  [[nodiscard]] Status visit(formats::IndexColumn column, const Visit& visit) const;
  [[nodiscard]] Status visit_tokens(const std::function<Status(std::span<const uint32_t> tokens)>& visit) const;

 private:
  [[nodiscard]] Status spool();

  formats::ShardRows rows_;  // rows of the run that is not in the file yet
  int64_t spooled_ = 0;      // samples in the file: whole runs, each stored as four columns one after the other
  int64_t tokens_ = 0;
  uint64_t first_offset_ = 0;
  std::optional<UnnamedFile> file_;
};

}  // namespace millrace::prepare
