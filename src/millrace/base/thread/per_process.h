// SPDX-License-Identifier: Apache-2.0
#pragma once

// State with threads or locks that a forked child must not inherit: the child does not have the threads, and one of
// them may have held a lock. Thread-safe; get() is one atomic load once the state exists.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace {

template <class T>
class PerProcess {
 public:
  // `make` runs at the first get() in each process. When threads race, it may run more than once, and one result is
  // kept.
  explicit PerProcess(std::function<std::unique_ptr<T>()> make) : make_(std::move(make)) {}
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;
  ~PerProcess() {
    // The parent's state is left alone: destroying it would wait for threads that are not in this process.
    std::unique_ptr<Node> node(node_.load());
    if (node && node->generation != fork_generation()) static_cast<void>(node.release());
  }

  T& get() const {
    const uint64_t generation = fork_generation();
    Node* node = node_.load(std::memory_order_acquire);
    while (node == nullptr || node->generation != generation) {
      auto fresh = std::make_unique<Node>(Node{generation, make_()});
      if (node_.compare_exchange_strong(node, fresh.get(), std::memory_order_acq_rel)) node = fresh.release();
    }
    return *node->value;
  }

 private:
  struct Node {
    uint64_t generation = 0;
    std::unique_ptr<T> value;
  };
  const std::function<std::unique_ptr<T>()> make_;
  mutable std::atomic<Node*> node_{nullptr};
};

}  // namespace millrace
