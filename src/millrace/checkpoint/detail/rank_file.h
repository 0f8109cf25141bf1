// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank's safetensors file, from the tensors in memory to the bytes in storage. A RankFile is the plan: header,
// places, hash chunks. It depends on names, dtypes and shapes only, so one plan serves every save of a training run.
// Immutable.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/executor.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/live_tensors.h"
#include "millrace/checkpoint/detail/records.h"
#include "millrace/storage/storage.h"

namespace millrace::checkpoint {

class RankFile {
 public:
  // Errors: invalid_argument naming the tensor (name, shape, box).
  [[nodiscard]] static Result<std::shared_ptr<const RankFile>> plan(std::span<const TensorToSave> tensors);

  // Whether `tensors` are those of the plan. Their data is not compared.
  bool matches(std::span<const TensorToSave> tensors) const;

  int64_t bytes() const { return layout_.header.data_offset + layout_.header.data_bytes; }

  // Copies those of `tensors` that have data into `image`, which holds bytes(), on all threads.
  // REQUIRES: matches(tensors).
  void snapshot(std::span<const TensorToSave> tensors, std::byte* image, Executor& executor) const;

  // Where the elements of tensors without data go. REQUIRES: as snapshot().
  std::vector<ImagePlace> places(std::span<const TensorToSave> tensors, std::byte* image) const;

  // Where the image goes.
  struct Target {
    Storage& storage;
    Writer& writer;
    std::function<void()> alive{};  // called when a write has ended
  };
  // Hashes the image and writes it through Storage::submit, in pieces of one size whatever the tensors' borders are, so
  // that each piece may go past the page cache or be a part of an upload. One pass: a piece is sent as soon as the
  // hashes that begin in it are known. Returns the part record without step, attempt, rank, world size and state.
  // Errors: cancelled, those of the writer. All writes have ended on return.
  [[nodiscard]] Result<PartRecord> write(const std::byte* image, const Target& target, Executor& executor,
                                         std::stop_token stop) const;

  // The same from the tensors themselves, through `memory`, which may be smaller than the file. Returns when all is
  // written. Errors: resource_exhausted (`memory` holds no piece), cancelled (also when `tensors` were left), those of
  // the writer. REQUIRES: matches(tensors), and their data is set; memory is aligned to pages.
  [[nodiscard]] Result<PartRecord> write_through(LiveTensors& tensors, std::span<std::byte> memory,
                                                 const Target& target, Executor& executor, std::stop_token stop) const;

 private:
  struct Chunk {
    size_t tensor = 0;           // in file order
    int64_t begin = 0, end = 0;  // in the file
  };
  struct Hashes {
    Hash128 header;
    std::vector<Hash128> chunks;
  };

  // Copies [begin, end) of the file's data, or of the file, to `out`.
  void copy_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const;
  void copy_file_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const;
  // Hashes what begins in the file's bytes [begin, end), from where `chunk_data` says that a chunk's bytes are.
  template <class ChunkData>
  void hash_range(int64_t begin, int64_t end, Hashes& hashes, ChunkData&& chunk_data) const;
  PartRecord record(const Hashes& hashes) const;

  std::vector<TensorToSave> planned_;  // as given, data unset
  formats::SafetensorsLayout layout_;
  std::vector<size_t> order_;  // of each tensor in the file: its place in `planned_`
  std::vector<Chunk> chunks_;  // in the order of their bytes
};

}  // namespace millrace::checkpoint
