// SPDX-License-Identifier: Apache-2.0
#pragma once

// Merging of many short words at once: each look-up in the merge list waits for memory, so eight words wait together. A
// lane holds one word. Not thread-safe.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/tokenizer/merges.h"
#include "millrace/tokenizer/word_cache.h"

namespace millrace::tokenizer {

// One short word while it is merged. The lowest rank is found by looking at all of them: fewer steps than a queue for
// words of usual length. A symbol that was joined to the one before it stays where it is, without a merge.
class MergeLane {
 public:
  static constexpr size_t kMaxSymbols = 48;
  // A rank and a place in a short word share 32 bits.
  static constexpr int kPlaceBits = 6;
  static constexpr size_t kMaxMerges = size_t{1} << (32 - kPlaceBits);

  // Takes the word symbols[0, count), of which the neighbours i and i + 1 have merge_of(i), as MergeTable has it.
  // REQUIRES: count <= kMaxSymbols.
  template <class MergeOf>
  void start(const uint32_t* symbols, size_t count, const MergeOf& merge_of) {
    count_ = count;
    std::copy_n(symbols, count, symbols_.begin());
    for (size_t i = 0; i < count_; ++i) {
      previous_[i] = static_cast<uint8_t>(i - 1);
      next_[i] = static_cast<uint8_t>(i + 1);
      set_merge(i, i + 1 < count_ ? merge_of(i) : MergeTable::kNone);
    }
    for (size_t i = count_; i % kStride != 0; ++i) order_[i] = kNoMerge;
    asked_ = 0;
    is_new_ = true;
  }

  // Asks memory for merges that start was not told: of i and i + 1 for each bit i of `places`.
  void ask_for(const MergeTable& table, uint64_t places) {
    asked_ = places;
    for (; places != 0; places &= places - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(places));
      table.prefetch(symbols_[i], symbols_[i + 1]);
    }
  }

  // Joins the best pair and asks memory for the merges of the new symbol with its neighbours. False: there is none.
  bool join(const MergeTable& table) {
    std::array<uint32_t, kStride> lowest;
    lowest.fill(kNoMerge);
    for (size_t i = 0; i < count_; i += kStride)
      for (size_t k = 0; k < kStride; ++k) lowest[k] = std::min(lowest[k], order_[i + k]);
    const uint32_t first = std::min(std::min(lowest[0], lowest[1]), std::min(lowest[2], lowest[3]));
    if (first == kNoMerge) return false;
    const size_t best = first & kPlaceMask, joined = next_[best], right = next_[joined];
    symbols_[best] = results_[best];
    order_[joined] = order_[best] = kNoMerge;
    next_[best] = static_cast<uint8_t>(right);
    joined_ = best;
    if (right < count_) {
      previous_[right] = static_cast<uint8_t>(best);
      table.prefetch(symbols_[best], symbols_[right]);
    }
    if (best > 0) table.prefetch(symbols_[previous_[best]], symbols_[best]);
    return true;
  }

  // Looks up what ask_for or join asked for.
  void find_merges(const MergeTable& table) {
    if (is_new_) return find_first_merges(table);
    const size_t right = next_[joined_];
    if (right < count_) set_merge(joined_, table.find(symbols_[joined_], symbols_[right]));
    if (joined_ == 0) return;
    const size_t left = previous_[joined_];
    set_merge(left, table.find(symbols_[left], symbols_[joined_]));
  }

  void append_to(std::vector<uint32_t>& ids) const {
    for (size_t i = 0; i < count_; i = next_[i]) ids.push_back(symbols_[i]);
  }

  // Merges the one word that it has taken.
  void run(const MergeTable& table, std::vector<uint32_t>& ids) {
    do find_merges(table);
    while (join(table));
    append_to(ids);
  }

 private:
  static constexpr uint32_t kNoMerge = UINT32_MAX;
  static constexpr uint32_t kPlaceMask = (1 << kPlaceBits) - 1;
  static constexpr size_t kStride = 4;
  static_assert(kMaxSymbols <= kPlaceMask && kMaxSymbols % kStride == 0);

  void find_first_merges(const MergeTable& table) {
    is_new_ = false;
    for (; asked_ != 0; asked_ &= asked_ - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(asked_));
      set_merge(i, table.find(symbols_[i], symbols_[i + 1]));
    }
  }

  // `merge` as MergeTable has it.
  void set_merge(size_t i, uint64_t merge) {
    const auto rank = static_cast<uint32_t>(merge >> 32);
    order_[i] = merge == MergeTable::kNone ? kNoMerge : rank << kPlaceBits | static_cast<uint32_t>(i);
    results_[i] = static_cast<uint32_t>(merge);
  }

  std::array<uint32_t, kMaxSymbols> symbols_;
  std::array<uint32_t, kMaxSymbols> order_;    // of the merge of a symbol with the next one: its rank, then its place
  std::array<uint32_t, kMaxSymbols> results_;  // what that merge gives
  std::array<uint8_t, kMaxSymbols> previous_, next_;
  size_t count_ = 0, joined_ = 0;
  uint64_t asked_ = 0;
  bool is_new_ = false;  // nothing was joined yet
};

// Appends the ids of all `requests` and says in each which they are. `start(request, lane)` either has the lane take
// the word (true) or appends its ids itself (false).
template <class Start>
void merge_in_lanes(const MergeTable& table, std::span<WordRequest> requests, std::vector<uint32_t>& ids,
                    const Start& start) {
  constexpr size_t kLanes = 8;
  std::array<MergeLane, kLanes> storage;
  std::array<MergeLane*, kLanes> lanes;
  std::array<WordRequest*, kLanes> words;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = &storage[i];
  size_t busy = 0, taken = 0;
  const auto finish = [&](WordRequest& request, size_t first) {
    request.first = static_cast<uint32_t>(first);
    request.count = static_cast<uint32_t>(ids.size() - first);
  };
  // Takes words until one needs a lane; false when there is none left.
  const auto take = [&](size_t lane) {
    for (; taken < requests.size();) {
      WordRequest& request = requests[taken++];
      const size_t first = ids.size();
      if (start(request, *lanes[lane])) {
        words[lane] = &request;
        return true;
      }
      finish(request, first);
    }
    return false;
  };
  while (busy < kLanes && take(busy)) ++busy;
  while (busy > 0) {
    for (size_t i = 0; i < busy;) {
      lanes[i]->find_merges(table);
      if (lanes[i]->join(table)) {
        ++i;
        continue;
      }
      const size_t first = ids.size();
      lanes[i]->append_to(ids);
      finish(*words[i], first);
      if (take(i)) {
        ++i;
      } else {
        --busy;
        std::swap(lanes[i], lanes[busy]);
        words[i] = words[busy];
      }
    }
  }
}

}  // namespace millrace::tokenizer
