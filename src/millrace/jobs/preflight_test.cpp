// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/preflight.h"

#include <gmock/gmock.h>

#include "millrace/base/testing.h"
#include "millrace/jobs/demand.h"
#include "millrace/jobs/submit.h"

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kGb = 1'000'000'000;

TEST(ParametersInName, AreTheFirstPartWithAUnit) {
  EXPECT_EQ(parameters_in_name("meta-llama/Llama-3.1-8B-Instruct"), 8e9);
  EXPECT_EQ(parameters_in_name("Qwen/Qwen2.5-0.5B"), 0.5e9);
  EXPECT_EQ(parameters_in_name("nvidia/GR00T-N1.7-3B"), 3e9);
  EXPECT_EQ(parameters_in_name("Qwen3-30B-A3B"), 30e9);
  EXPECT_EQ(parameters_in_name("/models/smollm_360m"), 360e6);
  for (const char* name : {"gpt2-xl", "mistralai/Mixtral-8x7B", "phi-2", "runs/2b2", "", "b", "8", "-"}) {
    EXPECT_EQ(parameters_in_name(name), 0) << name;
  }
}

TEST(MissingRoom, CountsTheCheckpointsThatAreStillToCome) {
  const CheckpointRoom room{.free_bytes = 23 * kGb, .limit = "the quota of user 7"};
  EXPECT_THAT(missing_room(room, {.bytes = 5 * kGb, .keep_last = 3}), IsEmpty());
  EXPECT_THAT(missing_room(room, {.bytes = 5 * kGb, .keep_last = 4}),
              HasSubstr("5 checkpoints of 5.00 GB are still to come, and 23.0 GB are free (the quota of user 7)"));
  EXPECT_THAT(missing_room(room, {.bytes = 5 * kGb, .keep_last = 4, .there = 1}), IsEmpty());
  EXPECT_THAT(missing_room(room, {.bytes = 0, .keep_last = 4}), IsEmpty());
}

TEST(MissingRoom, CountsFiles) {
  const CheckpointRoom room{
      .free_bytes = 1000 * kGb, .limit = "the file system", .free_files = 100, .files_limit = "a quota"};
  EXPECT_THAT(missing_room(room, {.bytes = kGb, .files = 33, .keep_last = 2}), IsEmpty());
  EXPECT_THAT(missing_room(room, {.bytes = kGb, .files = 34, .keep_last = 2}),
              HasSubstr("100 more files may be made (a quota)"));
  const CheckpointRoom unlimited{.free_bytes = 1000 * kGb, .limit = "the file system"};
  EXPECT_THAT(missing_room(unlimited, {.bytes = kGb, .files = 1'000'000, .keep_last = 2}), IsEmpty());
}

Demand demand_of_lines(const std::string& lines) {
  const Job job("a", "#!/bin/bash\n" + lines);
  return demand_of(options_that_hold(job, {}));
}

TEST(DemandOfAScript, IsWhatEachNodeMustHave) {
  const Demand demand =
      demand_of_lines("#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=6 --gres=gpu:h200:4 --mem-per-gpu=100G\n");
  EXPECT_EQ(demand.nodes, 2);
  EXPECT_EQ(demand.cpus, 24);
  EXPECT_EQ(demand.gpus, 4);
  EXPECT_EQ(demand.gpu_type, "h200");
  EXPECT_EQ(demand.memory_mib, 400 * 1024);
}

TEST(DemandOfAScript, SpreadsGpusAndTasksOverNodes) {
  EXPECT_EQ(demand_of_lines("#SBATCH -N 2 --gpus=16\n").gpus, 8);
  const Demand any = demand_of_lines("#SBATCH --gpus=16\n");
  EXPECT_EQ(any.total_gpus, 16);
  EXPECT_EQ(any.gpus, 1);
  EXPECT_EQ(demand_of_lines("#SBATCH -N 2 -n 7 -c 2\n").cpus, 8);
  EXPECT_EQ(demand_of_lines("#SBATCH -n 7 -c 2\n").cpus, 2);  // on any number of nodes
  EXPECT_EQ(demand_of_lines("#SBATCH --gpus-per-task=2 --ntasks-per-node=3 -N 1\n").gpus, 6);
  EXPECT_EQ(demand_of_lines("#SBATCH --gpus-per-node=4 --cpus-per-gpu=10\n").cpus, 40);
}

}  // namespace
}  // namespace millrace::jobs
