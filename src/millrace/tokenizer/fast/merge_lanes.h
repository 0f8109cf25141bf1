// SPDX-License-Identifier: Apache-2.0
#pragma once

// Merges many short words at once. Each look-up in the merge list waits for memory, so eight words wait together. A
// lane holds one word. Not thread-safe.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "millrace/base/simd.h"
#include "millrace/tokenizer/fast/word_cache.h"
#include "millrace/tokenizer/models/merges.h"

namespace millrace::tokenizer {

// One short word while it is merged. Finds the lowest rank by looking at all of them, which takes fewer steps than a
// queue for words of usual length. A symbol that was joined to the one before it keeps its place, without a merge.
class MergeLane {
 public:
  static constexpr size_t kMaxSymbols = 64;
  // A rank and a place in a short word share 31 bits, because every vector unit has a minimum of signed numbers.
  static constexpr int kPlaceBits = 7;
  static constexpr size_t kMaxMerges = size_t{1} << (31 - kPlaceBits);

  // The first symbol of a pair, and the merge of that pair.
  struct First {
    uint32_t symbol, joined;
    uint32_t rank;  // only the bits of kNoRank count
  };
  static constexpr uint32_t kNoRank = kMaxMerges - 1;  // the rank of a pair without a merge

  // Returns the First for `merge`, a value of MergeTable.
  static First first(uint32_t symbol, uint64_t merge) {
    static_assert((MergeTable::kNone >> 32 & kNoRank) == kNoRank);
    return {symbol, static_cast<uint32_t>(merge), static_cast<uint32_t>(merge >> 32)};
  }

  // To set a word, call begin, put for each symbol (it may be repeated), and end. REQUIRES: count <= kMaxSymbols.
  void begin(size_t most_symbols) {
    asked_ = 0;
    joined_ = kNowhere;
    lines_ = {MergeTable::empty_line(), MergeTable::empty_line()};
    previous_ = kPlacesFrom<UINT8_MAX>;
    previous_[0] = previous_[kNowhere] = kNowhere;
    next_ = kPlacesFrom<1>;
    std::fill_n(order_.begin(), kStride, kNoMerge);
    for (size_t i = kStride; i < most_symbols; i += kStride) std::fill_n(&order_[i], kStride, kNoMerge);
  }
  void put(size_t i, const First& first) {
    symbols_[i] = first.symbol;
    results_[i] = first.joined;
    order_[i] = order(first.rank, i);
  }
  void end(size_t count) {
    count_ = count;
    order_[count] = order_[count - (count > 0)] = kNoMerge;  // the last symbol has no next one
    symbols_[count] = symbols_[kNowhere] = UINT32_MAX;
  }

  // Prefetches merges that put was not given: for each bit i of `places`, the merge of symbols i and i + 1.
  void ask_for(const MergeTable& table, uint64_t places) {
    for (; places != 0; places &= places - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(places));
      const bool may_be = table.look_ahead(symbols_[i], symbols_[i + 1]) != MergeTable::empty_line();
      asked_ |= uint64_t{may_be} << i;
    }
  }

  // Joins the best pair and prefetches the merges of the new symbol with its neighbours. Returns false if no pair is
  // left.
  bool join(const MergeTable& table) {
    Vector lowest = lower(lower(orders(0), orders(4)), lower(orders(8), orders(12)));
    for (size_t i = kStride; i < count_; i += kStride)
      lowest = lower(lowest, lower(lower(orders(i), orders(i + 4)), lower(orders(i + 8), orders(i + 12))));
    const int32_t even = std::min<int32_t>(lowest[0], lowest[2]), odd = std::min<int32_t>(lowest[1], lowest[3]);
    const int32_t first = std::min(even, odd);
    if (first >= kNoMerge) return false;
    const size_t best = static_cast<size_t>(first) & kPlaceMask, joined = next_[best], right = next_[joined];
    const size_t left = previous_[best];
    symbols_[best] = results_[best];
    order_[joined] = kNoMerge;
    next_[best] = static_cast<uint8_t>(right);
    previous_[right] = static_cast<uint8_t>(best);
    joined_ = best;
    lines_ = {table.look_ahead(symbols_[left], symbols_[best]), table.look_ahead(symbols_[best], symbols_[right])};
    return true;
  }

  // Looks up the merges that ask_for or join prefetched.
  void find_merges(const MergeTable& table) {
    const size_t left = previous_[joined_], right = next_[joined_];
    set_merge(left, table.find(lines_[0], symbols_[left], symbols_[joined_]));
    set_merge(joined_, table.find(lines_[1], symbols_[joined_], symbols_[right]));
    for (; asked_ != 0; asked_ &= asked_ - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(asked_));
      set_merge(i, table.find(symbols_[i], symbols_[i + 1]));
    }
  }

  // Calls visit(symbol, end) for each symbol. `end`: the number of original symbols up to and including this one.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < count_; i = next_[i]) visit(symbols_[i], size_t{next_[i]});
  }
  void append_to(std::vector<uint32_t>& ids) const {
    for_each([&](uint32_t symbol, size_t) { ids.push_back(symbol); });
  }

  // Merges the word of this lane alone.
  void run(const MergeTable& table) {
    do find_merges(table);
    while (join(table));
  }

 private:
  static int32_t order(uint32_t rank, size_t place) {
    return static_cast<int32_t>((rank & kNoRank) << kPlaceBits | place);
  }
  static constexpr int32_t kNoMerge = static_cast<int32_t>(kNoRank << kPlaceBits);  // nor has any larger value
  static constexpr size_t kPlaceMask = (1 << kPlaceBits) - 1;
  static constexpr size_t kStride = 16;
  // The place before the first symbol. This place and the one after the last symbol hold a symbol without merges, so
  // no step has to check for an end.
  static constexpr uint8_t kNowhere = kMaxSymbols;
  static constexpr size_t kPlaces = kMaxSymbols + 1;
  static_assert(kMaxSymbols <= kPlaceMask && kMaxSymbols % kStride == 0);

  // Vectors of the compiler itself, which have a minimum on every processor.
  typedef int32_t Vector __attribute__((vector_size(4 * sizeof(int32_t))));
  static Vector lower(Vector a, Vector b) { return a < b ? a : b; }
  Vector orders(size_t i) const {
    Vector four;
    std::memcpy(&four, &order_[i], sizeof(four));
    return four;
  }

  // Stores `merge`, a value of MergeTable, for the symbol at `i` and the next one.
  void set_merge(size_t i, uint64_t merge) {
    order_[i] = order(static_cast<uint32_t>(merge >> 32), i);
    results_[i] = static_cast<uint32_t>(merge);
  }

  using LanePositions = std::array<uint8_t, kPlaces>;
  template <uint8_t kFirst>
  static constexpr LanePositions kPlacesFrom = [] {
    LanePositions places{};
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<uint8_t>(kFirst + i);
    return places;
  }();

  std::array<uint32_t, kPlaces> symbols_;
  std::array<int32_t, kPlaces> order_;     // rank, then place, of the merge of a symbol with the next one
  std::array<uint32_t, kPlaces> results_;  // result of that merge
  LanePositions previous_, next_;
  size_t count_ = 0;
  size_t joined_ = kNowhere;                      // the symbol that was joined last
  std::array<const MergeTable::Slot*, 2> lines_;  // lines of its merges with its neighbours, if there are any
  uint64_t asked_ = 0;  // a bit for each symbol whose merge with the next one must be looked up
};

template <class Start>
[[gnu::always_inline]] inline void merge_all(const MergeTable& table, std::span<WordRequest> requests,
                                             std::vector<uint32_t>& ids, const Start& start) {
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
  // Takes words until one needs a lane; returns false if none is left.
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

#if defined(__x86_64__)
// The same code with the vector minimum and the shifts of newer processors. Everything it calls is compiled here too.
template <class Start>
[[gnu::target(MILLRACE_TARGET_AVX2), gnu::flatten]] void merge_all_avx2(const MergeTable& table,
                                                                        std::span<WordRequest> requests,
                                                                        std::vector<uint32_t>& ids,
                                                                        const Start& start) {
  merge_all(table, requests, ids, start);
}
#endif

// Appends the ids of all `requests`, and stores in each request which ids are its own. `start(request, lane)` either
// puts the word into the lane (true) or appends its ids itself (false).
template <class Start>
void merge_in_lanes(const MergeTable& table, std::span<WordRequest> requests, std::vector<uint32_t>& ids,
                    const Start& start) {
#if defined(__x86_64__)
  if (has_simd(SimdLevel::kAvx2)) return merge_all_avx2(table, requests, ids, start);
#endif
  merge_all(table, requests, ids, start);
}

}  // namespace millrace::tokenizer
