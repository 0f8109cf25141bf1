// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/thread/numa.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "millrace/base/testing/helpers.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// Two nodes of four processors, two GPUs on each; the lower addresses are on node 1.
class Numa : public ::testing::Test {
 protected:
  Numa() {
    write_file(root_ / "sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
    write_file(root_ / "sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
    write_file(root_ / "sys/devices/system/node/online", "0-1\n");
    for (int gpu = 0; gpu < 4; ++gpu) {
      const std::string address = fmt::format("0000:{}7:00.0", gpu);
      write_file(root_ / "proc/driver/nvidia/gpus" / address / "information",
                 fmt::format("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{0}{0}{0}{0}-aa\n", gpu));
      write_file(root_ / "sys/bus/pci/devices" / address / "numa_node", gpu < 2 ? "1\n" : "0\n");
    }
  }
  std::vector<int> near(const LocalRank& rank, std::vector<int> allowed = {0, 1, 2, 3, 4, 5, 6, 7}) const {
    return near_cpus(rank, allowed, root_);
  }
  void remove_gpus() { std::filesystem::remove_all(root_ / "proc"); }

  TempDir folder_;
  const std::filesystem::path root_ = folder_.path();
};

TEST_F(Numa, ARankIsNearItsGpu) {
  EXPECT_THAT(near({.rank = 0, .ranks = 4}), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(near({.rank = 3, .ranks = 4}), ElementsAre(0, 1, 4, 5));
  // A process alone, too: its buffers go to one GPU.
  EXPECT_THAT(near({}), ElementsAre(2, 3, 6, 7));
}

TEST_F(Numa, VisibleGpusAreCountedByThemselves) {
  EXPECT_THAT(near({.rank = 0, .ranks = 2, .visible_gpus = "3,0"}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(near({.rank = 1, .ranks = 2, .visible_gpus = "3,0"}), ElementsAre(2, 3, 6, 7));
  // One for each rank, as Slurm binds them.
  EXPECT_THAT(near({.rank = 1, .ranks = 2, .visible_gpus = "2"}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(near({.rank = 0, .ranks = 2, .visible_gpus = "GPU-2222,GPU-1111-aa"}), ElementsAre(0, 1, 4, 5));
}

TEST_F(Numa, TheAffinityMaskIsKept) {
  EXPECT_THAT(near({.rank = 0, .ranks = 4}, {0, 2, 3}), ElementsAre(2, 3));
  EXPECT_THAT(near({.rank = 0, .ranks = 4}, {0, 1, 4}), IsEmpty()) << "all on the other node";
}

TEST_F(Numa, WithoutGpusRanksShareTheNodes) {
  remove_gpus();
  EXPECT_THAT(near({}), IsEmpty()) << "a process alone has all nodes";
  EXPECT_THAT(near({.rank = 0, .ranks = 3}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(near({.rank = 1, .ranks = 3}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(near({.rank = 2, .ranks = 3}), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(near({.rank = 7, .ranks = 3}), IsEmpty()) << "not a rank of this node";
}

TEST_F(Numa, WhatTheFirmwareDoesNotSayIsNotGuessed) {
  write_file(root_ / "sys/bus/pci/devices/0000:07:00.0/numa_node", "-1\n");
  EXPECT_THAT(near({}), IsEmpty());
  EXPECT_THAT(near({.rank = 0, .ranks = 1, .visible_gpus = "MIG-1"}), IsEmpty());
  EXPECT_THAT(near({.rank = 0, .ranks = 1, .visible_gpus = ""}), IsEmpty());
}

TEST_F(Numa, OneNodeIsLeftAlone) {
  std::filesystem::remove_all(root_ / "sys/devices/system/node/node1");
  EXPECT_THAT(near({.rank = 0, .ranks = 4}), IsEmpty());
}

TEST(StayOn, KeepsAnExecutorsThreads) {
  const std::vector<int> allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  const int last = allowed.back();
  std::vector<int> seen;
  Mutex mutex;
  CondVar done;
  bool is_done = false;
  Executor executor(1, "numa", {last});
  executor.submit([&] {
    const MutexLock lock(mutex);
    seen = allowed_cpus();
    is_done = true;
    done.notify_all();
  });
  const MutexLock lock(mutex);
  while (!is_done) done.wait(mutex);
  EXPECT_THAT(seen, ElementsAre(last));
  EXPECT_EQ(allowed_cpus(), allowed) << "of the thread that asked";
}

}  // namespace
}  // namespace millrace
