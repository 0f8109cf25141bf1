// SPDX-License-Identifier: Apache-2.0
#pragma once

// One block of the order in memory: the decoded rows of its samples, concatenated in trained order, so that a packed
// row of token ids is one slice. The bits of the items follow the rows. Different threads may decode the runs of a
// block in parallel. pieces() may be called once all runs are decoded.

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
#include "millrace/loader/detail/sample_decoder.h"
#include "millrace/order/best_fit.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

class Block {
 public:
  // Assigns a place to each sample. `item`: SampleDecoder::item(). `items`: the number of items of each sample, window
  // after window. `layout`: EpochOrder::layout of the block. `run_samples`: the number of samples of each run; their
  // sum is the number of samples of the block.
  Block(SampleDecoder::Item item, std::span<const uint32_t> items, order::BlockLayout layout,
        std::span<const int64_t> run_samples);

  // Returns the bytes that the arena needs for rows and bits.
  int64_t bytes() const;
  // Sets the memory for rows and bits. REQUIRES: arena.size() >= bytes().
  void set_arena(Buffer arena) { arena_ = std::move(arena); }

  // Decodes the samples of run `number` into their rows. Keeps an error of the run, or of one sample, for the units
  // that need those samples. REQUIRES: `decoder` has the block's item.
  void decode(int64_t number, order::SampleRun& run, const SampleDecoder& decoder, Metrics& metrics);
  // Records that run `number` could not be read.
  void set_failed(int64_t number, Error error);

  // Appends the pieces of a unit: sample `index` in trained order, or, with pack_seq_len > 0, packed row `index`.
  // Errors: those of SampleRun and SampleDecoder::decode for the samples of the unit.
  // REQUIRES: token ids were decoded; every run was decoded or has failed.
  [[nodiscard]] Status pieces(int64_t index, int64_t pack_seq_len, std::vector<Piece>& out) const;
  // Returns the errors that pieces() would return.
  [[nodiscard]] Status check(int64_t index, int64_t pack_seq_len) const;
  // The row of a sample, and the name of its run. REQUIRES: check() of the sample returned no error.
  struct Row {
    std::span<const std::byte> bytes;
    std::string_view source;
  };
  Row row(int64_t index) const;
  // Returns whether some unit may have an error.
  bool is_damaged() const;

  // The source of one piece of a unit: items [begin, end) of sample `sample`, numbered in the block window after
  // window. segments() needs no arena. A sample without items has a segment only when it is a unit itself
  // (pack_seq_len == 0).
  struct Segment {
    int64_t sample = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<Segment> segments(int64_t index, int64_t pack_seq_len) const;

 private:
  struct Run {
    int64_t first = 0;  // index in the block of the run's first sample
    // Written by the thread that decodes the run:
    Status status;                         // an error of the whole run
    std::map<int64_t, Error> bad_samples;  // by number in the block
    bool masked = false;
    std::string source;
  };
  const Run& run_of(int64_t sample) const;
  [[nodiscard]] Status sample_status(int64_t place) const;
  // Calls visit(place, begin, end) with the range of items of each sample in a unit, until it returns an error.
  template <class Visit>
  [[nodiscard]] Status for_each_segment(int64_t index, int64_t pack_seq_len, const Visit& visit) const;
  int64_t rows_bytes() const { return starts_.back() * item_.bytes; }
  std::span<std::byte> slot(size_t place) const;
  // Returns the bits of a sample. They begin at a whole byte, because other threads write the bits of neighbouring
  // samples.
  uint8_t* bits_at(size_t place) const;

  const SampleDecoder::Item item_;
  std::vector<Run> runs_;
  std::vector<uint32_t> trained_place_;  // index in trained order, by canonical index
  std::vector<uint32_t> sample_at_;      // the inverse
  std::vector<int64_t> starts_;          // item offset of each sample in trained order, then the end
  std::vector<int64_t> row_ends_;        // item offsets of packed rows; empty when all packed rows have the same length
  Buffer arena_;
};

}  // namespace millrace::loader
