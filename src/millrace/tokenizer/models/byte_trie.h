// SPDX-License-Identifier: Apache-2.0
#pragma once

// A set of byte strings with a value and a weight each, walked byte by byte: a double array, in which the child of a
// node by byte b is at base + b if that place names the node as its parent. Immutable once built, thread-safe then.

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

class ByteTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRoot = 0;

  // The last of equal keys counts; empty keys are left out. The weight of a key is that of its value, 0 without
  // weights.
  explicit ByteTrie(std::span<const std::pair<std::string_view, uint32_t>> keys, std::span<const double> weights = {});

  // The node that `byte` leads to from `node`, or kNone.
  uint32_t next(uint32_t node, uint8_t byte) const {
    const uint32_t child = nodes_[node].base + byte;
    return nodes_[child].parent == node ? child : kNone;
  }
  bool ends_key(uint32_t node) const { return nodes_[node].weight == nodes_[node].weight; }
  // The weight of the key that ends at `node`. REQUIRES: ends_key(node).
  double weight(uint32_t node) const { return nodes_[node].weight; }
  uint32_t value(uint32_t node) const { return values_[node]; }  // kNone: none ends there

  // For callers that lay the nodes out in another way. 0: no byte leads from `node` to another.
  uint32_t base(uint32_t node) const { return nodes_[node].base; }
  uint32_t parent(uint32_t node) const { return nodes_[node].parent; }  // kNone: no key leads to `node`
  uint32_t node_count() const { return static_cast<uint32_t>(nodes_.size()); }

 private:
  static constexpr double kNoKey = std::numeric_limits<double>::quiet_NaN();
  struct Node {
    uint32_t base = 0;
    uint32_t parent = kNone;
    double weight = kNoKey;
  };
  class Builder;

  std::vector<Node> nodes_;       // with 256 unused ones behind the last base, so that every child index is in it
  std::vector<uint32_t> values_;  // by node: apart, for a walk asks for few of them
};

}  // namespace millrace::tokenizer
