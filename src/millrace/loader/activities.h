// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lists the current activities of a loader's threads and when each began. Messages about a wait that takes too long
// quote this list. Thread-safe.

#include <cstddef>
#include <list>
#include <string>

#include "millrace/base/thread/sync.h"

namespace millrace::loader {

class Activities {
  struct Entry {
    std::string what;
    Clock::time_point since;
  };

 public:
  // Lists `what` ("read s3://b/0.tar, 8 MiB at byte 0") while this object exists. `list` must outlive it; null: no
  // list.
  class Scope {
   public:
    Scope(Activities* list, std::string what);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Activities* const list_;
    std::list<Entry>::iterator entry_;
  };

  // Describes the oldest `most` activities, each with its age, and says how many more there are.
  std::string describe(size_t most);

 private:
  Mutex mutex_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // oldest first
};

}  // namespace millrace::loader
