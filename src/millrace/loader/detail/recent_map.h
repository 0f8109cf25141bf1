// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small map that removes the least recently used entries when its total weight exceeds a limit. Not thread-safe.

#include <cstdint>
#include <list>
#include <map>
#include <utility>

namespace millrace::loader {

template <class Value>
class RecentMap {
 public:
  explicit RecentMap(int64_t limit) : limit_(limit) {}

  // Returns the value of `key`; Value() if there is none.
  Value find(int64_t key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return {};
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->value;
  }
  bool has_room(int64_t weight) const { return total_ + weight <= limit_; }
  void insert(int64_t key, Value value, int64_t weight) {
    if (places_.contains(key)) return;
    entries_.push_front({key, std::move(value), weight});
    places_[key] = entries_.begin();
    total_ += weight;
    while (total_ > limit_ && entries_.size() > 1) {
      total_ -= entries_.back().weight;
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    int64_t key;
    Value value;
    int64_t weight;
  };
  int64_t limit_;
  int64_t total_ = 0;
  std::list<Entry> entries_;
  std::map<int64_t, typename std::list<Entry>::iterator> places_;
};

}  // namespace millrace::loader
