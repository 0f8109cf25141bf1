// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/run_reader.h"

#include <gtest/gtest.h>

#include <atomic>

namespace millrace::loader {
namespace {

// A run of one byte. Its read ends when the test calls what `done` holds. Counts itself out when it is destroyed.
class HeldRun final : public order::SampleRun {
 public:
  HeldRun(Done& done, std::atomic<bool>& is_gone) : done_(done), is_gone_(is_gone) {}
  ~HeldRun() override { is_gone_ = true; }
  std::string_view name() const override { return "held"; }
  int64_t samples() const override { return 1; }
  int64_t bytes() const override { return 1; }
  bool reads_ahead() const override { return true; }
  void start(std::span<std::byte>, const ReadOptions&, Done done) override { done_ = std::move(done); }
  [[nodiscard]] Status visit(const Visit&) override { return {}; }

 private:
  Done& done_;
  std::atomic<bool>& is_gone_;
};

// A run keeps its storage alive. Whoever tells that the read ended is a thread of that storage, which cannot destroy
// the storage: it would wait for itself.
TEST(RunReader, TheStorageThatEndsAReadIsNotTheLastToHoldTheRun) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::reserve(budget, "test", 1 << 16);
  ASSERT_TRUE(pool);
  std::stop_source stop;
  order::SampleRun::Done done;
  std::atomic<bool> is_gone{false};
  {
    Executor workers(1, "test");
    RunReader reader(**pool, workers, stop.get_token());
    std::vector<RunReader::Request> requests;
    requests.push_back({std::make_unique<HeldRun>(done, is_gone), 0, [](order::SampleRun&, Status) {}});
    reader.add(std::move(requests));
    done({});
    stop.request_stop();
  }
  EXPECT_TRUE(is_gone) << "while the storage still has `done`";
}

}  // namespace
}  // namespace millrace::loader
