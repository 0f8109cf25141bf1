// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <stop_token>
#include <thread>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/memory.h"

namespace millrace::local {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Counts the transfers of rings, and may let them move fewer bytes or none.
class RingSyscalls final : public Syscalls {
 public:
  std::atomic<int64_t> moved{0};            // was asked for
  std::atomic<int64_t> largest{INT32_MAX};  // bytes of a transfer; an error where negative
  bool forbid = false;
  std::stop_source stop;  // asked for as a transfer begins

  int setup_ring(unsigned entries, struct io_uring* out) override {
    if (!forbid) return Syscalls::setup_ring(entries, out);
    errno = EPERM;
    return -1;
  }
  int64_t ring_transfer(size_t size) override {
    const int64_t asked = std::min(static_cast<int64_t>(size), largest.load());
    moved += std::max<int64_t>(asked, 0);
    stop.request_stop();
    return asked;
  }
};

bool has_rings() {
  Syscalls sys;
  return Rings(sys, 1).can_serve();
}

#define SKIP_WITHOUT_RINGS() \
  if (!has_rings()) GTEST_SKIP() << "io_uring is not to be had here"

// Runs all of them and answers their errors, "" for none, by tag.
std::vector<std::string> run(Storage& storage, std::vector<Operation> operations) {
  CompletionQueue queue;
  for (size_t i = 0; i < operations.size(); ++i) operations[i].tag = i;
  storage.submit(operations, queue);
  std::vector<std::string> errors(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion done = queue.wait();
    if (!done.status) errors[done.tag] = done.status.error().to_string();
  }
  return errors;
}

class RingTest : public ::testing::Test {
 protected:
  std::shared_ptr<Storage> open(LocalDirect direct, int io_threads = 2) {
    return *open_local_storage(dir_.path(), {.io_threads = io_threads, .direct = direct, .syscalls = &sys_});
  }
  Buffer buffer(size_t size) { return *pool_->acquire(size); }
  // An object that is not in the page cache, so that reads of it may go past that.
  void put(const std::string& content) {
    ASSERT_TRUE(write_object(*open(LocalDirect::kByFileSystem), "object", content));
    drop_from_cache();
  }
  void drop_from_cache() const {
    const int fd = ::open((dir_.path() + "/object").c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(fd);
  }
  // In memory of a pool and in any other.
  void write_and_read_in_pieces(LocalDirect mode, uint64_t seed);

  TempDir dir_;
  RingSyscalls sys_;
  MemoryBudget budget_{256 * kMiB};
  std::unique_ptr<BufferPool> pool_ = *BufferPool::reserve(budget_, "test", 128 * kMiB);
};

void RingTest::write_and_read_in_pieces(LocalDirect mode, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto storage = open(mode);
  constexpr size_t kSize = 6 * kMiB;
  const std::string content = test_bytes(kSize, seed);
  Buffer source = buffer(kSize);
  std::copy_n(as_bytes(content).data(), kSize, source.data());
  // Pieces that meet, of all kinds of lengths, in any order.
  std::vector<Operation> operations;
  const auto writer =
      *storage->open_write("object", {.size_hint_bytes = 16 * kMiB});  // it is large enough to be a stream
  for (size_t at = 0, size = 0; at < kSize; at += size) {
    size = 1 + random() % (random() % 4 == 0 ? 2 * kMiB : 100'000);
    if (random() % 4 != 0) size += 4095 - (at + size + 4095) % 4096;  // to the end of a block, as most
    size = std::min(kSize - at, size);
    const Operation::Write write{writer.get(), static_cast<int64_t>(at), source.span().subspan(at, size)};
    operations.push_back({.what = write, .priority = static_cast<int>(random() % 3)});
  }
  std::shuffle(operations.begin(), operations.end(), random);
  EXPECT_THAT(run(*storage, operations), Each(""));
  ASSERT_EQ(writer->commit()->size, std::ssize(content));
  EXPECT_TRUE(*read_object(*storage, "object") == content);

  for (const bool once : {true, false}) {
    drop_from_cache();
    const auto reader = *storage->open_read("object", {.once = once});
    Buffer pooled = buffer(kSize);
    std::string plain(kSize, '.');
    for (const auto out : {pooled.span(), std::as_writable_bytes(std::span(plain))}) {
      std::vector<Operation> reads;
      for (const Operation& operation : operations) {
        const auto& write = std::get<Operation::Write>(operation.what);
        const auto place = out.subspan(static_cast<size_t>(write.offset), write.data.size());
        reads.push_back({.what = Operation::Read{reader.get(), write.offset, place}});
      }
      EXPECT_THAT(run(*storage, std::move(reads)), Each(""));
      EXPECT_TRUE(as_text(out) == content);
    }
  }
}

TEST_F(RingTest, EveryWayMovesTheSameBytes) {
  SKIP_WITHOUT_RINGS();
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  for (const LocalDirect mode : {LocalDirect::kByFileSystem, LocalDirect::kNever, LocalDirect::kAlways}) {
    sys_.moved = 0;
    write_and_read_in_pieces(mode, seed);
    // The others may find all of it in the page cache: dropping it from there is a wish.
    if (mode == LocalDirect::kAlways) {
      EXPECT_GT(sys_.moved, 0);
    }
  }
}

// Whatever else a ring answers, threads find out what it means.
TEST_F(RingTest, WhatIsNotMovedInFullIsDoneByThreads) {
  SKIP_WITHOUT_RINGS();
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  for (const int64_t largest : {0, 100, 4096, -EINTR, -EAGAIN, -EINVAL, -EIO}) {
    sys_.largest = largest;
    write_and_read_in_pieces(LocalDirect::kAlways, seed);
  }
}

// As a wrapper does that knows nothing of rings.
TEST_F(RingTest, WritesGoToTheRingsWhicheverStorageSubmitsThem) {
  SKIP_WITHOUT_RINGS();
  constexpr size_t kSize = 4 * kMiB;
  const auto storage = open(LocalDirect::kAlways), wrapper = make_memory_storage("test");
  const std::string content = test_bytes(kSize, 1);
  Buffer memory = buffer(kSize);
  std::copy_n(as_bytes(content).data(), kSize, memory.data());
  const auto moved_by = [&](Storage& submits) {
    sys_.moved = 0;
    const auto writer = *storage->open_write("object", {.size_hint_bytes = kSize});
    std::vector<Operation> writes;
    for (size_t at = 0; at < kSize; at += kMiB) {
      const Operation::Write write{writer.get(), static_cast<int64_t>(at), memory.span().subspan(at, kMiB)};
      writes.push_back({.what = write});
    }
    EXPECT_THAT(run(submits, std::move(writes)), Each(""));
    EXPECT_TRUE(writer->commit());
    EXPECT_TRUE(*read_object(*storage, "object") == content);
    return sys_.moved.load();
  };
  const int64_t moved = moved_by(*storage);
  if (moved == 0) GTEST_SKIP() << "this file system has no transfers past the page cache";
  EXPECT_EQ(moved, std::ssize(content));
  EXPECT_EQ(moved_by(*wrapper), moved);
}

TEST_F(RingTest, WhatHasBegunEndsByItself) {
  SKIP_WITHOUT_RINGS();
  const std::string content = test_bytes(100'000, 1);
  put(content);
  const auto storage = open(LocalDirect::kNever);
  const auto reader = *storage->open_read("object");
  Buffer memory = buffer(content.size());
  sys_.largest = 1000;  // the rest is for the threads
  EXPECT_THAT(run(*storage, {{.what = Operation::Read{reader.get(), 0, memory.span()}, .stop = sys_.stop.get_token()}}),
              Each(""));
  EXPECT_EQ(sys_.moved, 1000);
  EXPECT_TRUE(as_text(memory.span()) == content);
}

TEST_F(RingTest, ErrorsAreThoseOfThreads) {
  SKIP_WITHOUT_RINGS();
  put(test_bytes(100'000, 1));
  const auto error_of = [&](bool rings, const std::function<void()>& harm) {
    const auto storage = *open_local_storage(dir_.path(), {.rings = rings});
    const auto reader = *storage->open_read("object");
    harm();
    std::string out(1000, '.');
    return run(*storage, {{.what = Operation::Read{reader.get(), 90'000, std::as_writable_bytes(std::span(out))}}})[0];
  };
  const std::string path = dir_.path() + "/object";
  for (const int64_t size : {90'000, 90'500, 99'999}) {  // shorter than what is read, and than what was opened
    const std::string by_ring = error_of(true, [&] { std::filesystem::resize_file(path, static_cast<size_t>(size)); });
    EXPECT_THAT(by_ring, HasSubstr("changed while reading")) << size;
    std::filesystem::resize_file(path, 100'000);
    EXPECT_EQ(error_of(false, [&] { std::filesystem::resize_file(path, static_cast<size_t>(size)); }).substr(0, 40),
              by_ring.substr(0, 40));
    std::filesystem::resize_file(path, 100'000);
  }
}

// A transfer from a pipe, which ends when the test says so.
struct Piped {
  Piped() { EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0); }
  ~Piped() { ::close(ends[0]), ::close(ends[1]); }
  Piped(const Piped&) = delete;
  Piped& operator=(const Piped&) = delete;
  void finish() const { EXPECT_EQ(::write(ends[1], "x", 1), 1); }
  std::array<int, 2> ends{};
  std::byte memory{};
};

struct Events {
  void add(int64_t number) {
    MutexLock lock(mutex);
    all.push_back(number);
    changed.notify_all();
  }
  std::vector<int64_t> wait_for(size_t count) {
    MutexLock lock(mutex);
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (all.size() < count && changed.wait_until(mutex, deadline)) {
    }
    return all;
  }
  Mutex mutex;
  CondVar changed;
  std::vector<int64_t> all GUARDED_BY(mutex);
};

class PipedTask final : public RingTask {
 public:
  PipedTask(Piped& pipe, int64_t number, int priority, Events& begun, Events& ended, Events& dropped)
      : pipe_(pipe), number_(number), priority_(priority), begun_(begun), ended_(ended), dropped_(dropped) {}
  ~PipedTask() override { is_done_ ? static_cast<void>(0) : dropped_.add(number_); }
  int priority() const override { return priority_; }
  std::optional<Transfer> begin() override {
    begun_.add(number_);
    return Transfer{.fd = pipe_.ends[0], .offset = -1, .memory = {&pipe_.memory, 1}};
  }
  void end(int64_t result) override {
    EXPECT_EQ(result, 1);
    is_done_ = true;
    ended_.add(number_);
  }

 private:
  Piped& pipe_;
  const int64_t number_;
  const int priority_;
  Events &begun_, &ended_, &dropped_;
  bool is_done_ = false;
};

// The transfers under way on one ring, and those that wait.
constexpr int64_t kDepth = 32;

class PipedRings : public RingTest {
 protected:
  void submit(Rings& rings, int64_t first, int64_t count, int priority = 0) {
    std::vector<std::unique_ptr<RingTask>> tasks;
    for (int64_t i = first; i < first + count; ++i) {
      tasks.push_back(
          std::make_unique<PipedTask>(pipes_[static_cast<size_t>(i)], i, priority, begun_, ended_, dropped_));
    }
    rings.submit(std::move(tasks));
  }
  const Piped& pipe(int64_t i) { return pipes_[static_cast<size_t>(i)]; }

  std::array<Piped, 48> pipes_;
  Events begun_, ended_, dropped_;
};

TEST_F(PipedRings, OneThreadHasManyUnderWay) {
  SKIP_WITHOUT_RINGS();
  Rings rings(sys_, 1);
  ASSERT_TRUE(rings.can_serve());
  submit(rings, 0, kDepth);
  for (int64_t i = kDepth - 1; i >= 0; --i) {  // none waits for one that began before it
    pipe(i).finish();
    const auto ended = ended_.wait_for(static_cast<size_t>(kDepth - i));
    ASSERT_EQ(std::ssize(ended), kDepth - i);
    EXPECT_EQ(ended.back(), i);
  }
}

TEST_F(PipedRings, NoneWaitsForAFullThreadWhileAnotherHasRoom) {
  SKIP_WITHOUT_RINGS();
  Rings rings(sys_, 2);
  ASSERT_TRUE(rings.can_serve());
  for (int64_t i = 0; i < std::ssize(pipes_); ++i) {
    submit(rings, i, 1);
    ASSERT_EQ(std::ssize(begun_.wait_for(static_cast<size_t>(i) + 1)), i + 1);
  }
  for (const Piped& each : pipes_) each.finish();
}

TEST_F(PipedRings, TheMostUrgentBeginsNext) {
  SKIP_WITHOUT_RINGS();
  Rings rings(sys_, 1);
  ASSERT_TRUE(rings.can_serve());
  submit(rings, 0, kDepth);
  ASSERT_EQ(begun_.wait_for(kDepth).size(), static_cast<size_t>(kDepth));
  submit(rings, 32, 4, -1);
  submit(rings, 36, 4, 5);
  submit(rings, 40, 4, 0);
  for (int64_t i = 0; i < kDepth; ++i) pipe(i).finish();
  const auto begun = begun_.wait_for(44);
  EXPECT_THAT(std::vector(begun.begin() + kDepth, begun.end()),
              ElementsAre(36, 37, 38, 39, 40, 41, 42, 43, 32, 33, 34, 35));
  for (int64_t i = 32; i < 44; ++i) pipe(i).finish();
}

TEST_F(PipedRings, TheEndWaitsForWhatHasBegunAndDropsTheRest) {
  SKIP_WITHOUT_RINGS();
  auto rings = std::make_unique<Rings>(sys_, 1);
  ASSERT_TRUE(rings->can_serve());
  submit(*rings, 0, 40);
  ASSERT_EQ(begun_.wait_for(kDepth).size(), static_cast<size_t>(kDepth));
  std::thread ending([&] { rings.reset(); });
  EXPECT_THAT(dropped_.wait_for(8), UnorderedElementsAre(32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_EQ(ended_.wait_for(0).size(), 0u);
  for (int64_t i = 0; i < 40; ++i) pipe(i).finish();
  ending.join();
  EXPECT_EQ(ended_.wait_for(kDepth).size(), static_cast<size_t>(kDepth));
}

TEST_F(RingTest, ThreadsServeWhereRingsAreForbidden) {
  sys_.forbid = true;
  write_and_read_in_pieces(LocalDirect::kAlways, 1);
  EXPECT_EQ(sys_.moved, 0);
}

// As Docker's default profile, and Kubernetes' with it.
bool forbid_io_uring() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(RingTest, AChildWorksInAContainerThatForbidsRings) {
  SKIP_WITHOUT_RINGS();
  EXPECT_TRUE(succeeds_in_child([&] {
    if (!forbid_io_uring() || has_rings()) return false;
    write_and_read_in_pieces(LocalDirect::kAlways, 1);
    return sys_.moved == 0 && !HasFailure();
  }));
}

TEST_F(RingTest, AChildHasRingsOfItsOwn) {
  SKIP_WITHOUT_RINGS();
  const auto storage = open(LocalDirect::kAlways);
  const std::string content = test_bytes(8 * kMiB, 1);
  put(content);
  const auto reader = *storage->open_read("object");
  const auto is_right = [&] {
    Buffer memory = buffer(content.size());
    std::fill(memory.span().begin(), memory.span().end(), std::byte{0});
    sys_.moved = 0;
    return run(*storage, {{.what = Operation::Read{reader.get(), 0, memory.span()}}}) == std::vector<std::string>{""} &&
           sys_.moved == std::ssize(content) && as_text(memory.span()) == content;
  };
  const bool is_first_right = is_right();
  if (sys_.moved == 0) GTEST_SKIP() << "this file system has no transfers past the page cache";
  EXPECT_TRUE(is_first_right);
  EXPECT_TRUE(succeeds_in_child(is_right));
  EXPECT_TRUE(is_right());
}

// Ordinary users may pin 8 MiB, which the rings themselves are part of.
TEST_F(RingTest, AChildThatMayPinLittleWorks) {
  SKIP_WITHOUT_RINGS();
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  EXPECT_TRUE(succeeds_in_child([&] {
    const rlimit little{.rlim_cur = kMiB, .rlim_max = kMiB};
    constexpr uid_t kNobody = 65534;
    if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    write_and_read_in_pieces(LocalDirect::kAlways, 1);
    return sys_.moved > 0 && !HasFailure();
  }));
}

}  // namespace
}  // namespace millrace::local
