// SPDX-License-Identifier: Apache-2.0
#pragma once

// A set of byte strings, each with a value and a weight, walked byte by byte. It is a double array: the child of a
// node by byte b is at base + b if that entry names the node as its parent. Immutable and thread-safe once built.

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

  // If keys are equal, the last one is kept. Empty keys are left out. weights[value] is the weight of a key; 0 without
  // weights.
  explicit ByteTrie(std::span<const std::pair<std::string_view, uint32_t>> keys, std::span<const double> weights = {});

  // Returns the node that `byte` leads to from `node`, or kNone.
  uint32_t next(uint32_t node, uint8_t byte) const {
    const uint32_t child = nodes_[node].base + byte;
    return nodes_[child].parent == node ? child : kNone;
  }
  bool ends_key(uint32_t node) const { return nodes_[node].weight == nodes_[node].weight; }
  // Returns the weight of the key that ends at `node`. REQUIRES: ends_key(node).
  double weight(uint32_t node) const { return nodes_[node].weight; }
  uint32_t value(uint32_t node) const { return values_[node]; }  // kNone: no key ends there

  // For callers that store the nodes in another layout. 0: no byte leads from `node` to another node.
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

  std::vector<Node> nodes_;       // with 256 unused nodes after the last base, so that every child index is valid
  std::vector<uint32_t> values_;  // by node; separate, because a walk reads few of them
};

}  // namespace millrace::tokenizer
