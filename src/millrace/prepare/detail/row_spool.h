// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rows of a shard that is being written, for its index: 28 bytes a sample. The last 65,536 are in memory; those
// before lie in a file without a name in the folder for temporary files (TMPDIR). Not thread-safe.

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

  // Errors: resource_exhausted (no room there), what the file system says.
  [[nodiscard]] Status add(uint64_t offset, uint64_t size, uint32_t tokens, uint64_t hash);

  int64_t samples() const { return spooled_ + rows_.samples(); }
  int64_t total_tokens() const { return tokens_; }
  uint64_t first_offset() const { return first_offset_; }  // REQUIRES: samples() > 0

  // The values of one column, run by run, in the order in which they were added.
  using Visit = std::function<Status(std::span<const std::byte> values)>;
  [[nodiscard]] Status visit(formats::IndexColumn column, const Visit& visit) const;
  [[nodiscard]] Status visit_tokens(const std::function<Status(std::span<const uint32_t> tokens)>& visit) const;

 private:
  [[nodiscard]] Status spool();

  formats::ShardRows rows_;  // of the run that is not in the file yet
  int64_t spooled_ = 0;      // samples in the file: whole runs, each its four columns one after the other
  int64_t tokens_ = 0;
  uint64_t first_offset_ = 0;
  std::optional<UnnamedFile> file_;
};

}  // namespace millrace::prepare
