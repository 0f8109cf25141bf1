// SPDX-License-Identifier: Apache-2.0
#pragma once

// One block of the order in memory: the token ids of its samples, laid end to end in trained order, so that a packed
// row is one slice, and behind them a bit a token that says whether it is learned. Windows of a block may be decoded on
// different threads at once; reading starts when all are done.

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/collate.h"
#include "millrace/order/order.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

class Block {
 public:
  // Reads lengths and lays the samples out; `trained_order` is EpochOrder::permutation of the block.
  // Errors: those of SampleSource::lengths.
  [[nodiscard]] static Result<std::unique_ptr<Block>> plan(order::SampleSource& source, order::EpochOrder::Block block,
                                                           std::span<const uint32_t> trained_order);

  int64_t bytes() const { return id_bytes() + starts_.back() / 8 + static_cast<int64_t>(sample_at_.size()); }
  int64_t windows() const { return static_cast<int64_t>(block_.windows.size()); }

  // Where the ids go. REQUIRES: arena.size() >= bytes().
  void set_arena(Buffer arena) { arena_ = std::move(arena); }

  // Ids from `limit` on are an error; 0: none is.
  void set_id_limit(int64_t limit) { id_limit_ = limit; }

  // Reads window `number` of the block; what went wrong is kept for the units that need it.
  void decode_window(order::SampleSource& source, int64_t number, std::string_view ids_field, std::stop_token stop,
                     Metrics& metrics);

  // Appends the pieces of a unit: sample `index` in trained order, or, with pack_seq_len > 0, row `index`.
  // Errors: of reading a window that the unit has a part in: those of SampleSource::read, corruption when a sample has
  // other than the indexed number of ids, lacks the field or has a damaged mask, invalid_argument for an id at or above
  // the limit. REQUIRES: every window was decoded.
  [[nodiscard]] Status pieces(int64_t index, int64_t pack_seq_len, std::vector<Piece>& out) const;

 private:
  [[nodiscard]] Status read_window(order::SampleSource& source, int64_t number, std::string_view ids_field,
                                   std::stop_token stop, Metrics& metrics);
  size_t window_of(int64_t place) const;
  int64_t id_bytes() const { return starts_.back() * static_cast<int64_t>(sizeof(uint32_t)); }
  // Where the mask of the sample at `place` begins: at a byte of its own, since neighbours are written by other
  // threads.
  uint8_t* mask_at(size_t place) const;

  order::EpochOrder::Block block_;
  std::vector<int64_t> first_in_window_;  // number in the block of each window's first sample
  std::vector<uint32_t> trained_place_;   // of the block's samples in canonical order
  std::vector<uint32_t> sample_at_;       // the other way round
  std::vector<int64_t> starts_;           // token offsets in trained order, one more than samples
  std::vector<Status> window_status_;     // each written by the thread that decoded the window
  std::vector<uint8_t> window_masked_;    // likewise: 1 when a sample of the window has a mask
  int64_t id_limit_ = 0;
  Buffer arena_;
};

}  // namespace millrace::loader
