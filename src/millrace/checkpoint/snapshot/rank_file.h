// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank's safetensors file: plans it, hashes it and writes it. A RankFile is the plan: header, places, hash chunks.
// It depends on names, dtypes and shapes only, so one plan serves every save of a training run. Immutable.

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

  // Returns whether `tensors` are those of the plan. Does not compare their data.
  bool matches(std::span<const TensorToSave> tensors) const;

  int64_t bytes() const { return layout_.header.data_offset + layout_.header.data_bytes; }

  // Plans the file without the tensors of `left_out`, whose names ascend. The new plan matches the same tensors as
  // this one.
  [[nodiscard]] Result<std::shared_ptr<const RankFile>> without(std::span<const PartTensor> left_out) const;

  struct Hashes {
    Hash128 header;
    std::vector<Hash128> chunks;  // in the order of their bytes
  };
  // Computes the hashes of the image, on all threads.
  Hashes hash(const std::byte* image, Executor& executor) const;
  // Computes the hashes from the tensors themselves. Tensors that the host does not have go through `memory`. Errors:
  // cancelled (after LiveTensors::leave), that of the fill. REQUIRES: as write_through().
  [[nodiscard]] Result<Hashes> hash(LiveTensors& tensors, std::span<std::byte> memory, Executor& executor) const;
  // The part record without step, attempt, rank, world size and state.
  PartRecord record(const Hashes& hashes) const;
  // Picks the hashes of this file out of the `hashes` of `whole`. REQUIRES: whole.without() returned this plan.
  Hashes hashes_of(const RankFile& whole, const Hashes& hashes) const;
  // Turns the image of `whole` into the image of this file, in place. REQUIRES: whole.without() returned this plan.
  void compact(const RankFile& whole, std::byte* image) const;

  // Copies those of `tensors` that have data into `image`, on all threads. `image` has room for bytes().
  // REQUIRES: matches(tensors).
  void snapshot(std::span<const TensorToSave> tensors, std::byte* image, Executor& executor) const;

  // Returns where in `memory` the elements of tensors without data belong. `memory` holds the file's bytes from
  // `begin` on. REQUIRES: as snapshot().
  std::vector<ImagePlace> places(std::span<const TensorToSave> tensors, int64_t begin,
                                 std::span<std::byte> memory) const;

  // The storage and the writer that take the file's bytes.
  struct Target {
    Storage& storage;
    Writer& writer;
    std::function<void()> alive{};  // called when a write has ended
  };
  // Hashes the image and writes it through Storage::submit. All pieces have one size, independent of the tensors'
  // borders, so each piece can bypass the page cache or be one part of an upload. Works in one pass: sends a piece as
  // soon as the hashes of the chunks that begin in it are known. Returns the part record without step, attempt, rank,
  // world size and state. With `known` hashes it computes none. Errors: cancelled, those of the writer. All writes
  // have ended on return.
  [[nodiscard]] Result<PartRecord> write(const std::byte* image, const Target& target, Executor& executor,
                                         std::stop_token stop, const Hashes* known = nullptr) const;

  // Writes the same file from the tensors themselves, through `memory`, which may be smaller than the file. Returns
  // when all is written. Errors: resource_exhausted (`memory` has no room for a piece), cancelled (also after
  // LiveTensors::leave), those of the fill and of the writer. REQUIRES: matches(tensors); memory is aligned to pages.
  [[nodiscard]] Result<PartRecord> write_through(LiveTensors& tensors, std::span<std::byte> memory,
                                                 const Target& target, Executor& executor, std::stop_token stop) const;

 private:
  struct Chunk {
    size_t tensor = 0;           // in file order
    int64_t begin = 0, end = 0;  // in the file
  };
  // Plans a file of those `tensors` that are not left out. REQUIRES: the names were checked.
  [[nodiscard]] static Result<std::shared_ptr<const RankFile>> lay_out(std::vector<TensorToSave> tensors,
                                                                       const std::vector<bool>& left_out);
  // Copy [begin, end) to `out`: copy_range() of the file's data buffer, copy_file_range() of the whole file.
  void copy_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const;
  void copy_file_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const;
  // Hashes the header and the chunks that begin in the file's bytes [begin, end). `chunk_data` returns the bytes of a
  // chunk.
  template <class ChunkData>
  void hash_range(int64_t begin, int64_t end, Hashes& hashes, ChunkData&& chunk_data) const;
  const std::byte* chunk_data(std::span<const TensorToSave> live, const Chunk& chunk) const;

  // Does write_through() when the host has all tensors: threads copy, hash and write pieces in parallel.
  [[nodiscard]] Result<PartRecord> write_here(LiveTensors& tensors, std::span<std::byte> memory, int64_t piece,
                                              const Target& target, Executor& executor, std::stop_token stop) const;
  // Does write_through() when the host lacks some tensors: fills one half of `memory` while the other half is written.
  [[nodiscard]] Result<PartRecord> write_windows(LiveTensors& tensors, std::span<std::byte> memory, int64_t piece,
                                                 const Target& target, Executor& executor, std::stop_token stop) const;
  // Fills `window` with the file's bytes from `begin` on.
  [[nodiscard]] Status fill_window(LiveTensors& tensors, int64_t begin, std::span<std::byte> window,
                                   Executor& executor) const;
  // Hashes the chunks in a window. REQUIRES: the windows come in order. `open` holds the hash of a chunk that
  // continues in the next window.
  void hash_window(int64_t begin, std::span<const std::byte> window, Hashes& hashes, std::optional<Xxh3Stream>& open,
                   Executor& executor) const;

  std::vector<TensorToSave> planned_;  // the given tensors, with `data` unset
  formats::SafetensorsLayout layout_;
  std::vector<size_t> order_;  // for each tensor in the file: its index in `planned_`
  std::vector<Chunk> chunks_;  // in the order of their bytes
};

}  // namespace millrace::checkpoint
