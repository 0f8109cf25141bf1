// SPDX-License-Identifier: Apache-2.0
#pragma once

// One block of the order in memory: the token ids of its samples, laid end to end in trained order, so that a packed
// row is one slice, and behind them a bit a token that says whether it is learned. Runs of a block may be decoded on
// different threads at once; pieces() may be called once all are decoded.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/collate.h"
#include "millrace/loader/fields.h"
#include "millrace/order/best_fit.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

class Block {
 public:
  // Lays the samples out. `tokens` are those of the block's samples, windows laid end to end; `layout` is
  // EpochOrder::layout of the block; `run_samples` are the samples of each run, which together are the block.
  Block(std::span<const uint32_t> tokens, order::BlockLayout layout, std::span<const int64_t> run_samples);

  // Bytes of the arena: the ids and the masks.
  int64_t bytes() const { return ids_bytes() + starts_.back() / 8 + static_cast<int64_t>(sample_at_.size()); }
  // Where the ids go. REQUIRES: arena.size() >= bytes().
  void set_arena(Buffer arena) { arena_ = std::move(arena); }

  // Which field of a sample holds the ids; ids from `id_limit` on are an error, 0: none is.
  struct Decoding {
    std::string_view ids_field;
    int64_t id_limit = 0;
    const SampleFields* fields = nullptr;  // else records of these fields are kept, and no ids
  };
  // Takes the ids and masks of run `number` out of its samples. What went wrong, with all of them or with one, is kept
  // for the units that need it.
  void decode(int64_t number, order::SampleRun& run, const Decoding& decoding, Metrics& metrics);
  // The run could not be read.
  void set_failed(int64_t number, Error error);

  // Appends the pieces of a unit: sample `index` in trained order, or, with pack_seq_len > 0, row `index`.
  // Errors: of a run that the unit has a part in: those of SampleRun, corruption when a sample has other than the
  // indexed number of ids, lacks the field or has a damaged mask, invalid_argument for an id at or above the limit.
  // REQUIRES: every run was decoded or has failed.
  [[nodiscard]] Status pieces(int64_t index, int64_t pack_seq_len, std::vector<Piece>& out) const;
  // The errors of pieces().
  [[nodiscard]] Status check(int64_t index, int64_t pack_seq_len) const;
  // The record of a sample and where it comes from, with Decoding::fields. REQUIRES: check() of it has no error.
  struct StoredRecord {
    std::span<const std::byte> bytes;
    std::string_view source;
  };
  StoredRecord record(int64_t index) const;
  // Whether some unit may have an error.
  bool is_damaged() const;

  // Where these pieces come from: tokens [begin, end) of sample `sample` of the block, windows laid end to end. Needs
  // no arena. A sample without tokens is a part of a unit of its own only.
  struct Segment {
    int64_t sample = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<Segment> segments(int64_t index, int64_t pack_seq_len) const;

 private:
  struct Run {
    int64_t first = 0;  // number in the block of its first sample
    // Written by the thread that decodes the run:
    Status status;                         // of all its samples
    std::map<int64_t, Error> bad_samples;  // by number in the block
    bool masked = false;
    std::string source;  // of records
  };
  struct Decoder;
  const Run& run_of(int64_t sample) const;
  [[nodiscard]] Status sample_status(int64_t place) const;
  // Calls visit(place, begin, end) with the tokens of each sample in a unit, until it answers an error.
  template <class Visit>
  [[nodiscard]] Status for_each_segment(int64_t index, int64_t pack_seq_len, const Visit& visit) const;
  int64_t ids_bytes() const { return starts_.back() * static_cast<int64_t>(sizeof(uint32_t)); }
  std::span<std::byte> slot(size_t place) const;
  // Each sample's mask begins at a whole byte, because other threads write its neighbours.
  uint8_t* mask_at(size_t place) const;

  std::vector<Run> runs_;
  std::vector<uint32_t> trained_place_;  // of the block's samples in canonical order
  std::vector<uint32_t> sample_at_;      // the inverse
  std::vector<int64_t> starts_;          // token offsets in trained order, one more than samples
  std::vector<int64_t> row_ends_;        // token offsets; empty where rows are of one length
  Buffer arena_;
};

}  // namespace millrace::loader
