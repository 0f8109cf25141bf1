// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/cluster.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace millrace::jobs {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kCluster = R"(Region: us-east-1
Scheduling:
  Scheduler: slurm
  SlurmSettings: {EnableMemoryBasedScheduling: true}
  SlurmQueues:
    - Name: train
      CustomActions: {OnNodeConfigured: {Script: s3://b/install_pyxis.sh}}
      ComputeResources:
        - {Name: a, InstanceType: p5e.48xlarge, MinCount: 4, MaxCount: 4}
        - {Name: b, InstanceType: p5e.48xlarge, MinCount: 0, MaxCount: 2}
    - Name: mixed
      ComputeResources:
        - {Name: c, InstanceType: g5.12xlarge, MaxCount: 1}
        - {Name: d, InstanceType: c6i.4xlarge, MaxCount: 1}
SharedStorage:
  - {Name: data, MountDir: fsx1, StorageType: FsxLustre, FsxLustreSettings: {FileSystemId: fs-0123456789abcdef0}}
)";

TEST(JobCluster, QueuesAreReadAsPartitions) {
  const auto facts = read_cluster_facts("c.yaml", kCluster);
  ASSERT_TRUE(facts) << facts.error().to_string();
  ASSERT_EQ(facts->partitions.size(), 2U);
  const ClusterFacts::Partition& train = facts->partitions[0];
  EXPECT_EQ(train.name, "train");
  EXPECT_EQ(train.nodes, 6);
  EXPECT_EQ(train.gpus, 8);
  EXPECT_EQ(train.gpu_type, "h200");
  EXPECT_EQ(train.cpus, 192);
  EXPECT_EQ(train.efa_interfaces, 32);
  EXPECT_TRUE(train.dynamic);
  EXPECT_FALSE(facts->partitions[1].known_instance) << "two kinds of nodes";
  EXPECT_THAT(facts->mounts, ElementsAre("/fsx1"));
  EXPECT_TRUE(facts->memory_scheduling);
  EXPECT_TRUE(facts->containers);
}

TEST(JobCluster, WhatIsNoClusterFileIsRefused) {
  EXPECT_THAT(read_cluster_facts("c.yaml", "a: 1\n").error().message(), HasSubstr("SlurmQueues"));
  EXPECT_THAT(read_cluster_facts("c.yaml", "a: [1\n").error().message(), HasSubstr("c.yaml:"));
}

TEST(JobCluster, PlansAreReadAsPlanNodesPrintsThem) {
  const auto plan = read_plan_facts(
      "p.json", "{\"type\":\"plan_model\",\"model\":\"a\",\"nodes\":11}\n{\"type\":\"plan_nodes\",\"nodes\":80}\n");
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->allocations.size(), 1U);
  EXPECT_EQ(plan->allocations[0].nodes, 11);
  EXPECT_FALSE(read_plan_facts("p.json", "{}\nnot json\n"));
}

TEST(JobCluster, TheGuidesScriptsDoNotFitTheGuidesCluster) {
  const char* data = std::getenv("MILLRACE_TEST_DATA");
  const std::filesystem::path folder = data == nullptr ? "" : std::filesystem::path(data) / "guides";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "MILLRACE_TEST_DATA has no guides";
  const auto read = [&](const char* name) {
    std::ifstream file(folder / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  };
  const auto facts = read_cluster_facts("cluster-config.yaml", read("cluster-config.yaml"));
  ASSERT_TRUE(facts) << facts.error().to_string();
  const auto places = [&](const char* name) {
    const std::string text = read(name);
    const ScriptFile file{name, text};
    std::vector<std::string> out;
    for (const Finding& finding : lint_jobs(std::span(&file, 1), {.cluster = &*facts})) {
      out.push_back(std::string(finding.rule->id) + ":" + std::to_string(finding.line));
    }
    return out;
  };
  EXPECT_THAT(places("fsx_performance.sbatch"), Contains("SB18:12")) << "/fsx4 is mounted nowhere";
  EXPECT_THAT(places("production.sbatch"), testing::AllOf(Contains("SB18:14"), Contains("SB14:7"), Contains("SB22:4")));
  EXPECT_THAT(places("preprocess.sbatch"), testing::AllOf(Contains("SB17:3"), Contains("SB18:17")));
  EXPECT_THAT(places("model1.sbatch"), Not(Contains("SB17:7")));
}

}  // namespace
}  // namespace millrace::jobs
