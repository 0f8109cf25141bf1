// SPDX-License-Identifier: Apache-2.0
// The cache of the node shared by processes, some of which are killed at any moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/cache/node_cache.h"
#include "millrace/cache/testing.h"

namespace millrace::cache {
namespace {

// What processes count together.
struct Counts {
  std::atomic<int64_t> reads{0}, bytes{0}, wrong{0}, started{0};
};

struct SharedCounts {
  Counts* counts =
      new (::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Counts;
  ~SharedCounts() { ::munmap(counts, sizeof(Counts)); }
};

// An object on a server that needs some time for an answer.
class SlowObject final : public RandomReader {
 public:
  SlowObject(std::string bytes, Counts& counts, std::chrono::microseconds delay)
      : bytes_(std::move(bytes)), counts_(counts), delay_(delay) {}
  std::string_view name() const override { return "slow"; }
  int64_t size() const override { return std::ssize(bytes_); }
  std::string_view version() const override { return "1"; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    ++counts_.reads;
    counts_.bytes += std::ssize(out);
    std::this_thread::sleep_for(delay_);
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return {};
  }
  CachedObject object() const { return {object_id("slow", std::to_string(xxh3_64(bytes_)), "1", size()), size()}; }
  bool is_right(int64_t offset, std::string_view got) const {
    return std::string_view(bytes_).substr(offset, got.size()) == got;
  }

 private:
  const std::string bytes_;
  Counts& counts_;
  const std::chrono::microseconds delay_;
};

// Counts an answer that is not the object's.
void read_checked(NodeCache& cache, const SlowObject& object, int64_t offset, int64_t size, Counts& counts) {
  std::string got(static_cast<size_t>(size), '\0');
  const Status read = cache.read(object.object(), object, offset, std::as_writable_bytes(std::span(got)), {});
  if (!read || !object.is_right(offset, got)) ++counts.wrong;
}

template <class Body>
pid_t fork_child(const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  body();
  ::_exit(0);
}

void wait_for(pid_t child) {
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST(CacheProcesses, OneDownloadsWhatManyWant) {
  TempDir dir;
  const SharedCounts shared;
  Counts& counts = *shared.counts;
  const SlowObject object(test_bytes(60 * kBlock + 11, 1), counts, std::chrono::milliseconds(2));
  std::vector<pid_t> children;
  constexpr int kChildren = 8;
  for (int i = 0; i < kChildren; ++i) {
    children.push_back(fork_child([&] {
      const auto cache = NodeCache::open({.directory = dir.path(), .cap_bytes = 16 << 20, .block_bytes = kBlock});
      if (!cache) ++counts.wrong;
      ++counts.started;
      while (counts.started < kChildren) ::usleep(100);
      read_checked(**cache, object, 0, object.size(), counts);
      const auto opened = (*cache)->open_once("slow", "key", {}, [&]() -> Result<NodeCache::Opened> {
        counts.reads += 1000;
        ::usleep(20'000);
        return NodeCache::Opened{5, "v"};
      });
      if (!opened || opened->size != 5 || opened->version != "v") ++counts.wrong;
    }));
  }
  for (const pid_t child : children) wait_for(child);
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_EQ(counts.bytes, object.size());
  EXPECT_EQ(counts.reads / 1000, 1) << "the object was opened more than once";
}

// The children of a process that has the cache open do not hold its locks.
TEST(CacheProcesses, AChildAfterAForkReadsOnAndHoldsNoClaimOfItsParent) {
  TempDir dir;
  const SharedCounts shared;
  Counts& counts = *shared.counts;
  const SlowObject slow(test_bytes(kBlock, 2), counts, std::chrono::milliseconds(400));
  const pid_t parent = fork_child([&] {
    const auto cache = *NodeCache::open({.directory = dir.path(), .cap_bytes = 16 << 20, .block_bytes = kBlock});
    std::thread downloads([&] { read_checked(*cache, slow, 0, 10, counts); });
    while (counts.reads == 0) ::usleep(100);
    const pid_t child = fork_child([&] {
      counts.started = ::getpid();
      ::sleep(20);
    });
    static_cast<void>(child);
    ::kill(::getpid(), SIGKILL);
  });
  wait_for(parent);
  while (counts.started == 0) ::usleep(100);
  const auto begun = Clock::now();
  const auto cache = *NodeCache::open({.directory = dir.path(), .cap_bytes = 16 << 20, .block_bytes = kBlock});
  read_checked(*cache, slow, 0, 10, counts);
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_EQ(counts.reads, 2);
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(15)) << "the sleeping child held the claim";
  ::kill(static_cast<pid_t>(counts.started), SIGKILL);
}

// Processes with two caps read more than fits, and one after the other is killed.
TEST(CacheProcesses, KilledAtRandomMomentsNoneReadsAWrongByteAndTheCapHolds) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  TempDir dir;
  const SharedCounts shared;
  Counts& counts = *shared.counts;
  const SlowObject object(test_bytes(5 << 20, seed), counts, std::chrono::microseconds(50));
  constexpr int64_t kLarge = 4 << 20, kSmall = 3 << 20;
  const auto start = [&](uint64_t number) {
    return fork_child([&] {
      std::mt19937_64 random(seed + number);
      const int64_t cap = number % 3 == 0 ? kSmall : kLarge;
      const auto cache = NodeCache::open({.directory = dir.path(), .cap_bytes = cap, .block_bytes = kBlock});
      if (!cache) {
        ++counts.wrong;
        ::_exit(1);
      }
      for (;;) {
        const auto offset = static_cast<int64_t>(random() % object.size());
        read_checked(**cache, object, offset, std::min<int64_t>(object.size() - offset, random() % (3 * kBlock)),
                     counts);
      }
    });
  };
  std::mt19937_64 random(seed);
  std::vector<pid_t> children;
  uint64_t number = 0;
  for (int i = 0; i < 3; ++i) children.push_back(start(number++));
  for (int kill = 0; kill < rounds(60); ++kill) {
    std::this_thread::sleep_for(std::chrono::microseconds(1'000 + random() % 20'000));
    pid_t& victim = children[random() % children.size()];
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    wait_for(victim);
    ASSERT_LE(disk_bytes(dir.path()), kLarge);
    victim = start(number++);
  }
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    wait_for(child);
  }
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_GT(counts.reads, 0);
  // What is left works, and all of its slots can be used again.
  const auto cache = *NodeCache::open({.directory = dir.path(), .cap_bytes = 16 << 20, .block_bytes = kBlock});
  for (int i = 0; i < 2; ++i) read_checked(*cache, object, 0, object.size(), counts);
  const int64_t before = counts.bytes;
  read_checked(*cache, object, 0, object.size(), counts);
  EXPECT_EQ(counts.bytes, before);
  EXPECT_EQ(counts.wrong, 0);
}

}  // namespace
}  // namespace millrace::cache
