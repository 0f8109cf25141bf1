// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank's safetensors file, from the tensors in memory to the bytes in storage. A RankFile is the plan: header,
// places, hash chunks. It depends on names, dtypes and shapes only, so one plan serves every save of a training run.
// Immutable.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/thread/executor.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/checkpoint/snapshot/live_tensors.h"
#include "millrace/storage/storage.h"

namespace millrace::checkpoint {

class RankFile {
 public:
  // Errors: invalid_argument naming the tensor (name, shape, box).
  [[nodiscard]] static Result<std::shared_ptr<const RankFile>> plan(std::span<const TensorToSave> tensors);

  // Whether `tensors` are those of the plan. Their data is not compared.
  bool matches(std::span<const TensorToSave> tensors) const;

  int64_t bytes() const { return layout_.header.data_offset + layout_.header.data_bytes; }

  // The file without the tensors of these names, which ascend. It matches the same tensors as this one.
  [[nodiscard]] Result<std::shared_ptr<const RankFile>> without(std::span<const PartTensor> left_out) const;

  struct Hashes {
    Hash128 header;
    std::vector<Hash128> chunks;  // in the order of their bytes
  };
  // The hashes of the image, computed on all threads.
  Hashes hash(const std::byte* image, Executor& executor) const;
  // The hashes of the tensors themselves. Tensors that the host does not have go through `memory`. Errors: cancelled
  // (the tensors were left), that of the fill. REQUIRES: as write_through().
  [[nodiscard]] Result<Hashes> hash(LiveTensors& tensors, std::span<std::byte> memory, Executor& executor) const;
  // The part record without step, attempt, rank, world size and state.
  PartRecord record(const Hashes& hashes) const;
  // The hashes of this file, taken from the `hashes` of `whole`. REQUIRES: this is whole.without().
  Hashes hashes_of(const RankFile& whole, const Hashes& hashes) const;
  // Turns the image of `whole` into this file's, in place. REQUIRES: as above.
  void compact(const RankFile& whole, std::byte* image) const;

  // Copies those of `tensors` that have data into `image`, which holds bytes(), on all threads.
  // REQUIRES: matches(tensors).
  void snapshot(std::span<const TensorToSave> tensors, std::byte* image, Executor& executor) const;

  // Where the elements of tensors without data belong in `memory`, which holds the file's bytes from `begin` on.
  // REQUIRES: as snapshot().
  std::vector<ImagePlace> places(std::span<const TensorToSave> tensors, int64_t begin,
                                 std::span<std::byte> memory) const;

  // Where the image goes.
  struct Target {
    Storage& storage;
    Writer& writer;
    std::function<void()> alive{};  // called when a write has ended
  };
  // Hashes the image and writes it through Storage::submit, in pieces of one size whatever the tensors' borders are, so
  // that each piece may go past the page cache or be a part of an upload. One pass: a piece is sent as soon as the
  // hashes that begin in it are known. Returns the part record without step, attempt, rank, world size and state.
  // With `known` hashes it computes none. Errors: cancelled, those of the writer. All writes have ended on return.
  [[nodiscard]] Result<PartRecord> write(const std::byte* image, const Target& target, Executor& executor,
                                         std::stop_token stop, const Hashes* known = nullptr) const;

  // Writes the same file from the tensors themselves, through `memory`, which may be smaller than the file. Returns
  // when all is written. Errors: resource_exhausted (`memory` holds no piece), cancelled (also when `tensors` were
  // left), those of the fill and of the writer. REQUIRES: matches(tensors); memory is aligned to pages.
  [[nodiscard]] Result<PartRecord> write_through(LiveTensors& tensors, std::span<std::byte> memory,
                                                 const Target& target, Executor& executor, std::stop_token stop) const;

 private:
  struct Chunk {
    size_t tensor = 0;           // in file order
    int64_t begin = 0, end = 0;  // in the file
  };
  // Places those of `tensors` that are not left out. Names were checked.
  [[nodiscard]] static Result<std::shared_ptr<const RankFile>> lay_out(std::vector<TensorToSave> tensors,
                                                                       const std::vector<bool>& left_out);
  // Copies [begin, end) of the file's data, or of the file, to `out`.
  void copy_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const;
  void copy_file_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const;
  // Hashes what begins in the file's bytes [begin, end), from where `chunk_data` says that a chunk's bytes are.
  template <class ChunkData>
  void hash_range(int64_t begin, int64_t end, Hashes& hashes, ChunkData&& chunk_data) const;
  const std::byte* chunk_data(std::span<const TensorToSave> live, const Chunk& chunk) const;

  // write_through() where the host has all tensors: threads copy, hash and write pieces side by side.
  [[nodiscard]] Result<PartRecord> write_here(LiveTensors& tensors, std::span<std::byte> memory, int64_t piece,
                                              const Target& target, Executor& executor, std::stop_token stop) const;
  // write_through() where the host has not: fills one half of `memory` while the other is written.
  [[nodiscard]] Result<PartRecord> write_windows(LiveTensors& tensors, std::span<std::byte> memory, int64_t piece,
                                                 const Target& target, Executor& executor, std::stop_token stop) const;
  // Fills `window` with the file's bytes from `begin` on.
  [[nodiscard]] Status fill_window(LiveTensors& tensors, int64_t begin, std::span<std::byte> window,
                                   Executor& executor) const;
  // Hashes what lies in a window. The windows come in order; `open` hashes a chunk that goes on in the next one.
  void hash_window(int64_t begin, std::span<const std::byte> window, Hashes& hashes, std::optional<Xxh3Stream>& open,
                   Executor& executor) const;

  std::vector<TensorToSave> planned_;  // the given tensors, with `data` unset
  formats::SafetensorsLayout layout_;
  std::vector<size_t> order_;  // for each tensor in the file: its place in `planned_`
  std::vector<Chunk> chunks_;  // in the order of their bytes
};

}  // namespace millrace::checkpoint
