// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers for the tests of tiers: tiers with injected faults, saves to all tiers, and loads from all tiers. For tests
// only; functions are thread-safe.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {

// How long a tier may be silent. A working tier answers much faster, even with sanitizers on a busy machine.
inline const std::chrono::milliseconds kPatience(tests_are_brief() ? 1000 : 250);

// Tiers (by default three), each with its own injected faults.
struct Tiers {
  explicit Tiers(size_t count = 3) {
    for (size_t i = 0; i < count; ++i) {
      plans.push_back(std::make_shared<FaultPlan>());
      storages.push_back(make_memory_storage("tier" + std::to_string(i)));
      plain.push_back(root_of(storages.back(), "t" + std::to_string(i)));
      faulty.push_back(root_of(make_fault_storage(storages.back(), plans.back()), plain.back().key));
    }
  }
  // Waits for threads that were abandoned in a hanging tier; they release the tier soon after the hang ends. A process
  // that ends earlier would leak them.
  ~Tiers() {
    std::vector<std::weak_ptr<Storage>> left;
    for (const Location& each : faulty) left.push_back(each.storage);
    faulty.clear();
    for (int i = 0; i < 1000 && !std::ranges::all_of(left, &std::weak_ptr<Storage>::expired); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::unique_ptr<Saver> saver(SaverOptions options = {}) const {
    if (options.tiers.empty()) {
      for (size_t i = 0; i + 1 < faulty.size(); ++i) options.tiers.push_back({.root = faulty[i], .keep = options.keep});
    }
    options.threads = 1;
    options.commit_timeout = std::chrono::minutes(2);
    return make_saver(faulty.back(), options);
  }
  void heal() {
    for (const auto& plan : plans) plan->clear();
  }
  std::vector<std::shared_ptr<FaultPlan>> plans;
  std::vector<std::shared_ptr<Storage>> storages;
  std::vector<Location> plain, faulty;  // nearest first
};

[[nodiscard]] inline Status load_over(std::span<const Location> tiers, int64_t step) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(tiers, step));
  const Arrays arrays = arrays_of(step);
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  return load_and_compare(*checkpoint, arrays, boxes);
}

// Checks that every step that the tier lists is whole there. Returns the steps.
inline std::vector<int64_t> whole_steps(const Location& tier) {
  const auto steps = committed_steps(tier);
  for (const int64_t step : steps) {
    EXPECT_OK(load_and_compare(tier, step, arrays_of(step))) << tier.url << " step " << step;
    EXPECT_OK((*Checkpoint::open(tier, step))->verify(1));
  }
  return steps;
}

inline std::shared_ptr<PendingSave> start(Saver& saver, int64_t step) {
  const Arrays arrays = arrays_of(step);
  auto save = saver.save(step, whole_tensors(arrays).tensors(), "{}", "null");
  EXPECT_TRUE(save) << explain(save);
  return save ? *save : nullptr;
}

// Collects the lines that the library logs while this object exists.
class Lines {
 public:
  Lines() {
    set_log_sink(
        [this](LogLevel, std::string_view line) {
          MutexLock lock(mutex_);
          text_.append(line).push_back('\n');
        },
        LogLevel::kWarning);
  }
  ~Lines() { set_log_sink({}, LogLevel::kError); }
  std::string text() {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  std::string text_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
