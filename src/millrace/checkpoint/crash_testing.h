// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interrupts saves at every point, by a power cut or by kill -9. For tests only. While a function that forks runs, the
// test must run no other thread.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>

#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault_syscalls.h"

namespace millrace::checkpoint {

// Puts temporary directories into memory. Tests that kill the process or simulate a power cut leave the machine
// running, so real syncs would only cost time.
inline void use_memory_for_directories() {
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
}

// Runs `save` again and again. Run n cuts the power before system call n, whichever thread makes it. Stops after a run
// that needed no cut. `prepare` makes the Saver and the earlier contents of the directory. After each run, when the
// Saver is destroyed and the power is back, `check` gets the remaining storage. `least`: the fewest system calls that
// a save may make.
inline void cut_power_at_every_call(
    int64_t least, const std::function<std::unique_ptr<Saver>(const std::shared_ptr<Storage>&)>& prepare,
    const std::function<void(Saver&)>& save, const std::function<void(const std::shared_ptr<Storage>&)>& check) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  use_memory_for_directories();
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(testing::Message() << "system call " << at);
    const TempDir directory;
    FaultSyscalls syscalls(seed + static_cast<uint64_t>(at), directory.path());
    auto saver = prepare(open_local_storage(directory.path(), {.io_threads = 1, .syscalls = &syscalls}).value());
    const int64_t before = syscalls.calls();
    syscalls.cut_power_after(at);
    save(*saver);
    saver.reset();
    const bool cut = syscalls.calls() - before > at;
    syscalls.crash();
    check(open_local_storage(directory.path()).value());
    if (cut && !testing::Test::HasFailure()) continue;
    EXPECT_GT(at, least);
    return;
  }
}

// Runs `save` in a child process that kills itself before operation `at`. Repeats this for every `stride`th operation
// until a child ends normally. `prepare` saves the earlier steps, and `check` gets the directory after each child.
// `least`: the fewest operations that a save may make.
inline void kill_at_every_operation(int64_t stride, int64_t least,
                                    const std::function<void(const std::string& directory)>& prepare,
                                    const std::function<Status(const std::string& directory, int64_t at)>& save,
                                    const std::function<void(const std::string& directory, bool killed)>& check) {
  use_memory_for_directories();
  for (int64_t at = 0;; at += stride) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    const TempDir directory;
    prepare(directory.path());
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(save(directory.path(), at) ? 0 : 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const bool killed = WIFSIGNALED(status);
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0) << "the child failed by itself";
    check(directory.path(), killed);
    if (killed && !testing::Test::HasFailure()) continue;
    EXPECT_GT(at, least);
    return;
  }
}

// Runs `save` in child processes that are killed at random moments. `save` never returns; it counts up `committed`,
// which is in memory that both processes share. After each kill `newest` must return the newest whole step: the last
// one counted, or the one after it. Returns the last such step.
inline int64_t kill_at_random_moments(int rounds, const std::function<void(std::atomic<int64_t>& committed)>& save,
                                      const std::function<int64_t()>& newest) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  void* const shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(shared, MAP_FAILED);
  if (shared == MAP_FAILED) return 0;
  auto& committed = *new (shared) std::atomic<int64_t>(0);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      save(committed);
      ::_exit(1);
    }
    EXPECT_GT(child, 0);
    if (child < 0) break;
    ::usleep(static_cast<useconds_t>(5'000 + random() % 60'000));
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    const int64_t found = newest();
    EXPECT_GE(found, committed);
    EXPECT_LE(found, committed + 1);
    committed = found;
  }
  const int64_t last = committed;
  EXPECT_GT(last, 0);
  ::munmap(shared, 4096);
  return last;
}

}  // namespace millrace::checkpoint
