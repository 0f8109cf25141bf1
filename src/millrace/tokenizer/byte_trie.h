// SPDX-License-Identifier: Apache-2.0
#pragma once

// A set of byte strings with a value and a weight each, walked byte by byte: a double array, in which the child of a
// node by byte b is at base + b if that place names the node as its parent. Immutable once built, thread-safe then.

#include <bit>
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
  // Tells bits apart: that a number is not itself takes a branch to find out.
  bool ends_key(uint32_t node) const {
    return std::bit_cast<uint64_t>(nodes_[node].weight) != std::bit_cast<uint64_t>(kNoKey);
  }
  bool is_leaf(uint32_t node) const { return nodes_[node].base == 0; }
  // Of the key that ends at `node`. REQUIRES: ends_key(node).
  double weight(uint32_t node) const { return nodes_[node].weight; }
  uint32_t value(uint32_t node) const { return values_[node]; }  // kNone: none ends there

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
