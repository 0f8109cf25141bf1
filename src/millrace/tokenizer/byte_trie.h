// SPDX-License-Identifier: Apache-2.0
#pragma once

// A set of byte strings with a value each, walked byte by byte: a double array, in which the child of a node by byte b
// is at base + b if that place names the node as its parent. Immutable once built, thread-safe then.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

class ByteTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRoot = 0;

  // The last of equal keys counts; empty keys are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, uint32_t>> keys);

  // The node that `byte` leads to from `node`, or kNone.
  uint32_t next(uint32_t node, uint8_t byte) const {
    const uint32_t child = nodes_[node].base + byte;
    return nodes_[child].parent == node ? child : kNone;
  }
  // The value of the key that ends at `node`, or kNone.
  uint32_t value(uint32_t node) const { return nodes_[node].value; }

 private:
  struct Node {
    uint32_t base = 0;
    uint32_t parent = kNone;
    uint32_t value = kNone;
  };
  class Builder;

  std::vector<Node> nodes_;  // with 256 unused ones behind the last base, so that every child index is in it
};

}  // namespace millrace::tokenizer
