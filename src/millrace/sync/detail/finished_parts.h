// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tracks which parts of a copy are written. Parts end in any order. A note for the next process (resume_note.h) covers
// only the first parts without a gap, and contains the hash of their content. Not thread-safe.

#include <cstdint>
#include <deque>
#include <set>

#include "millrace/base/hash/hash.h"

namespace millrace::sync {

class FinishedParts {
 public:
  // Starts after the first `parts` parts, which an earlier process wrote. `digest` is the hash of their content.
  void start_at(int64_t parts, const Hash128& digest) {
    before_ = parts;
    digest_ = digest;
  }
  // Adds the hash of the content from the first part to the end of the next part. REQUIRES: called for each part in
  // order, before that part is finished, or for no part.
  void add_digest(const Hash128& digest) { digests_.push_back(digest); }
  void add(int64_t part) {
    later_.insert(part);
    while (!later_.empty() && *later_.begin() == before_) {
      later_.erase(later_.begin());
      ++before_;
      if (digests_.empty()) continue;
      digest_ = digests_.front();
      digests_.pop_front();
    }
  }

  // All parts before this one are finished.
  int64_t before() const { return before_; }
  const Hash128& digest() const { return digest_; }  // hash of the content of these parts
  bool is_empty() const { return before_ == 0 && later_.empty(); }

 private:
  int64_t before_ = 0;
  std::set<int64_t> later_;
  std::deque<Hash128> digests_;  // digests of the content up to the ends of part before_ and of those after it
  Hash128 digest_;
};

}  // namespace millrace::sync
