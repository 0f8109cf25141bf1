// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank's safetensors file, from the tensors in memory to the bytes in storage. A RankFile is the plan: header,
// places, hash chunks; it depends on names, dtypes and shapes only, so one plan serves every save of a training run.
// Immutable.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/executor.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/records.h"
#include "millrace/storage/storage.h"

namespace millrace::checkpoint {

class RankFile {
 public:
  // Errors: invalid_argument naming the tensor (name, shape, box).
  [[nodiscard]] static Result<std::shared_ptr<const RankFile>> plan(std::span<const TensorToSave> tensors);

  // Whether `tensors` are those planned for, but for their bytes.
  bool matches(std::span<const TensorToSave> tensors) const;

  int64_t bytes() const { return layout_.header.data_offset + layout_.header.data_bytes; }

  // Copies `tensors` into `image`, which takes bytes(), on all threads; `beside` runs on one of them meanwhile.
  // REQUIRES: matches(tensors), and their data is set.
  void snapshot(std::span<const TensorToSave> tensors, std::byte* image, Executor& executor,
                const std::function<void()>& beside) const;

  // Hashes and writes the image, extent by extent, each hashed right before it is written. Answers the part record but
  // for step, attempt, rank, world size and state. Errors: cancelled, those of the writer.
  [[nodiscard]] Result<PartRecord> write(const std::byte* image, Writer& writer, Executor& executor,
                                         std::stop_token stop) const;

 private:
  struct Chunk {
    size_t tensor = 0;           // in file order
    int64_t begin = 0, end = 0;  // in the data buffer
  };
  struct Extent {
    size_t first_chunk = 0, end_chunk = 0;
  };

  void copy_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* data) const;
  std::span<const std::byte> extent_bytes(const Extent& extent, const std::byte* image) const;
  PartRecord record(std::span<const Hash128> hashes, Hash128 header_hash) const;

  std::vector<TensorToSave> planned_;  // as given, data unset
  formats::SafetensorsLayout layout_;
  std::vector<size_t> order_;  // of each tensor in the file: its place in `planned_`
  std::vector<Chunk> chunks_;  // in the order of their bytes
  std::vector<Extent> extents_;
};

}  // namespace millrace::checkpoint
