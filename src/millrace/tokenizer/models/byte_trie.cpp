// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/models/byte_trie.h"

#include <algorithm>
#include <array>

namespace millrace::tokenizer {

namespace {

using Keys = std::vector<std::pair<std::string_view, uint32_t>>;

// By bytes, equal ones in their order, empty ones left out. Most are told apart by their first eight bytes, without a
// look at the text.
Keys sorted(std::span<const Keys::value_type> keys) {
  struct SortKey {
    uint64_t start;
    size_t index;
  };
  std::vector<SortKey> order;
  order.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].first.empty()) continue;
    uint64_t start = 0;
    for (size_t k = 0; k < 8; ++k)
      start = start << 8 | (k < keys[i].first.size() ? static_cast<uint8_t>(keys[i].first[k]) : 0u);
    order.push_back({start, i});
  }
  std::ranges::sort(order, [&](const SortKey& a, const SortKey& b) {
    if (a.start != b.start) return a.start < b.start;
    const int compared = keys[a.index].first.compare(keys[b.index].first);
    return compared != 0 ? compared < 0 : a.index < b.index;
  });
  Keys result;
  result.reserve(keys.size());
  for (const SortKey& key : order) result.push_back(keys[key.index]);
  return result;
}

}  // namespace

// Lays the nodes out from the root down. Places below first_free_ are all taken; a search begins there, and skips ahead
// when places are found to be crowded, so that the whole build stays near linear.
class ByteTrie::Builder {
 public:
  Builder(Keys keys, std::span<const double> weights, ByteTrie& trie)
      : keys_(std::move(keys)), weights_(weights), nodes_(trie.nodes_), values_(trie.values_) {}

  void run() {
    nodes_.assign(512, {});
    values_.assign(512, kNone);
    taken_.assign(512, false);
    taken_[kRoot] = true;
    pending_.push_back({kRoot, 0, keys_.size(), 0});
    while (!pending_.empty()) {
      const Range range = pending_.back();
      pending_.pop_back();
      place(range);
    }
    nodes_.resize(last_base_ + 256 > nodes_.size() ? last_base_ + 256 : nodes_.size());
    values_.resize(nodes_.size(), kNone);
  }

 private:
  // The keys [begin, end) share their first `depth` bytes, which lead to `node`.
  struct Range {
    uint32_t node;
    size_t begin, end, depth;
  };

  void place(Range range) {
    for (; range.begin < range.end && keys_[range.begin].first.size() == range.depth; ++range.begin)
      set_value(range.node, keys_[range.begin].second);
    if (range.begin == range.end) return;
    bytes_.clear();
    starts_.clear();
    for (size_t i = range.begin; i < range.end; ++i) {
      const auto byte = static_cast<uint8_t>(keys_[i].first[range.depth]);
      if (!bytes_.empty() && bytes_.back() == byte) continue;
      bytes_.push_back(byte);
      starts_.push_back(i);
    }
    starts_.push_back(range.end);
    const uint32_t base = find_base();
    nodes_[range.node].base = base;
    last_base_ = std::max(last_base_, base);
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const uint32_t child = base + bytes_[i];
      taken_[child] = true;
      nodes_[child].parent = range.node;
      pending_.push_back({child, starts_[i], starts_[i + 1], range.depth + 1});
    }
  }

  void set_value(uint32_t node, uint32_t value) {
    nodes_[node].weight = weights_.empty() ? 0 : weights_[value];
    values_[node] = value;
  }

  uint32_t find_base() {
    while (taken_[first_free_]) grow_to(++first_free_);
    size_t crowded = 0, tried = 0;
    for (size_t at = std::max<size_t>(first_free_, bytes_[0] + size_t{1});; ++at, ++tried) {
      grow_to(at + 256);
      if (taken_[at]) {
        ++crowded;
        continue;
      }
      const size_t base = at - bytes_[0];
      const bool fits = std::ranges::none_of(bytes_, [&](uint8_t byte) { return taken_[base + byte]; });
      if (!fits) continue;
      if (tried > 64 && crowded * 20 > tried * 19) first_free_ = at;
      return static_cast<uint32_t>(base);
    }
  }

  void grow_to(size_t size) {
    if (size < taken_.size()) return;
    taken_.resize(size * 2, false);
    nodes_.resize(size * 2);
    values_.resize(size * 2, kNone);
  }

  const Keys keys_;
  std::span<const double> weights_;
  std::vector<Node>& nodes_;
  std::vector<uint32_t>& values_;
  std::vector<bool> taken_;
  std::vector<Range> pending_;
  std::vector<uint8_t> bytes_;
  std::vector<size_t> starts_;
  size_t first_free_ = 1;
  uint32_t last_base_ = 0;
};

ByteTrie::ByteTrie(std::span<const std::pair<std::string_view, uint32_t>> keys, std::span<const double> weights) {
  Builder(sorted(keys), weights, *this).run();
}

}  // namespace millrace::tokenizer
