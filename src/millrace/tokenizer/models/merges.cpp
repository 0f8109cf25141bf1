// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/models/merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <numeric>

#include "millrace/tokenizer/file/load_threads.h"

namespace millrace::tokenizer {
namespace {

constexpr uint32_t kNoPosition = UINT32_MAX;
// Scratch memory of a word above this (28 MiB of it) is given back.
constexpr size_t kKeptSymbols = size_t{1} << 20;

// A linked list of symbols and a queue of (rank, position); an entry is stale when the rank at its position is another
// by now.
class SymbolList {
 public:
  SymbolList(const MergeTable& table, MergeScratch& scratch) : table_(table), s_(scratch) {}

  void run() {
    fill();
    while (!s_.queue.empty()) {
      const uint64_t top = s_.queue.front();
      std::pop_heap(s_.queue.begin(), s_.queue.end(), std::greater<>());
      s_.queue.pop_back();
      const auto i = static_cast<uint32_t>(top);
      if (s_.merges[i] != MergeTable::kNone && entry(i) == top) join(i);
    }
    compact();
  }

 private:
  uint64_t entry(uint32_t i) const { return (s_.merges[i] & ~uint64_t{UINT32_MAX}) | i; }

  void fill() {
    const size_t count = s_.symbols.size();
    s_.previous.resize(count);
    s_.next.resize(count);
    s_.merges.assign(count, MergeTable::kNone);
    s_.queue.clear();
    for (uint32_t i = 0; i < count; ++i) {
      s_.previous[i] = i == 0 ? kNoPosition : i - 1;
      s_.next[i] = i + 1 == count ? kNoPosition : i + 1;
      if (s_.next[i] != kNoPosition) s_.merges[i] = table_.find(s_.symbols[i], s_.symbols[i + 1]);
      if (s_.merges[i] != MergeTable::kNone) s_.queue.push_back(entry(i));
    }
    std::make_heap(s_.queue.begin(), s_.queue.end(), std::greater<>());
  }

  void refresh(uint32_t i) {
    const uint32_t right = s_.next[i];
    s_.merges[i] = right == kNoPosition ? MergeTable::kNone : table_.find(s_.symbols[i], s_.symbols[right]);
    if (s_.merges[i] == MergeTable::kNone) return;
    s_.queue.push_back(entry(i));
    std::push_heap(s_.queue.begin(), s_.queue.end(), std::greater<>());
  }

  void join(uint32_t i) {
    s_.symbols[i] = static_cast<uint32_t>(s_.merges[i]);
    const uint32_t joined = s_.next[i];
    if (!s_.sizes.empty()) s_.sizes[i] += s_.sizes[joined];
    s_.merges[joined] = MergeTable::kNone;
    s_.next[i] = s_.next[joined];
    if (s_.next[i] != kNoPosition) s_.previous[s_.next[i]] = i;
    refresh(i);
    if (s_.previous[i] != kNoPosition) refresh(s_.previous[i]);
  }

  void compact() {
    size_t count = 0;
    for (uint32_t i = 0; i != kNoPosition; i = s_.next[i], ++count) {
      s_.symbols[count] = s_.symbols[i];
      if (!s_.sizes.empty()) s_.sizes[count] = s_.sizes[i];
    }
    s_.symbols.resize(count);
    if (!s_.sizes.empty()) s_.sizes.resize(count);
  }

  const MergeTable& table_;
  MergeScratch& s_;
};

}  // namespace

// Merges roughly in the order of their places in the table, and by rank within one place: a table that is filled
// from one end to the other needs few of its pages at a time, which takes half of the time.
class MergeTable::PlaceOrder {
 public:
  struct Ranked {
    Merge merge;
    uint32_t rank;
  };

  explicit PlaceOrder(std::span<const Merge> merges) : merges_(merges.size()) {
    const auto place = [](const Merge& merge) { return hash(merge.left, merge.right) >> (64 - kBits); };
    for (const Merge& merge : merges) ++begins_[place(merge) + 1];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    auto next = begins_;
    for (size_t rank = 0; rank < merges.size(); ++rank)
      merges_[next[place(merges[rank])]++] = {merges[rank], static_cast<uint32_t>(rank)};
  }

  // The merges in part `i` of a table of `parts` parts, a power of two.
  std::span<const Ranked> part(size_t i, size_t parts) const {
    const size_t begin = begins_[i * kPlaces / parts], end = begins_[(i + 1) * kPlaces / parts];
    return std::span(merges_).subspan(begin, end - begin);
  }

 private:
  static constexpr int kBits = 6;  // 128 KiB each of the largest tables in use
  static constexpr size_t kPlaces = size_t{1} << kBits;
  std::array<uint32_t, kPlaces + 1> begins_{};
  HugeVector<Ranked> merges_;
};

MergeTable::MergeTable(std::span<const Merge> merges)
    : mask_(std::bit_ceil(std::max(merges.size() * 3 / 2, 2 * kLineSlots)) - 1),
      shift_(64 - std::popcount(mask_ / kLineSlots)),
      filter_shift_(64 - std::max(1, std::popcount(mask_) - 3)),
      slots_(make_huge_array<Slot>(mask_ + 1)),
      filter_(make_huge_array<uint64_t>(size_t{1} << (64 - filter_shift_))) {
  const PlaceOrder order(merges);
  std::vector<std::vector<uint32_t>> left_over(load_threads(merges.size()));
  const size_t parts = left_over.size();
  in_parts(parts, [&](size_t i) {
    const size_t end = (i + 1) * (mask_ + 1) / parts;
    for (const auto& [merge, rank] : order.part(i, parts))
      if (!insert(merge, rank, end)) left_over[i].push_back(rank);
  });
  for (const auto& ranks : left_over)
    for (const uint32_t rank : ranks) insert(merges[rank], rank, SIZE_MAX);
}

// A pair that is there already takes the new rank, as in `tokenizers`. False: no slot before `end` is free.
bool MergeTable::insert(const Merge& merge, uint32_t rank, size_t end) {
  const uint64_t inverted_key = ~(uint64_t{merge.left} << 32 | merge.right), h = hash(merge.left, merge.right);
  filter_[h >> filter_shift_] |= uint64_t{1} << (h & 63);
  for (auto i = static_cast<size_t>(line(h) - slots_.get()); i < end; ++i) {
    Slot& slot = slots_[i & mask_];
    if (slot.inverted_key != 0 && slot.inverted_key != inverted_key) continue;
    slot = {inverted_key, uint64_t{rank} << 32 | merge.joined};
    return true;
  }
  return false;
}

uint64_t MergeTable::find_further(const Slot* line, uint64_t inverted_key) const {
  for (auto i = static_cast<size_t>(line - slots_.get()) + kLineSlots;; ++i) {
    const Slot& slot = slots_[i & mask_];
    if (slot.inverted_key == inverted_key) return slot.value;
    if (slot.inverted_key == 0) return kNone;
  }
}

void merge_symbols(const MergeTable& table, MergeScratch& scratch) {
  if (scratch.symbols.size() > 1) SymbolList(table, scratch).run();
  if (scratch.previous.size() <= kKeptSymbols) return;
  scratch.previous = {};
  scratch.next = {};
  scratch.merges = {};
  scratch.queue = {};
}

}  // namespace millrace::tokenizer
