// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/slurm.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <tuple>

#include "millrace/base/testing.h"
#include "millrace/slurm/queue.h"

namespace millrace::slurm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// As 22.05.8 printed it, shortened.
constexpr std::string_view kOldNode =
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=16 CPUEfctv=32 CPUTot=32 CPULoad=5.28 "
    "AvailableFeatures=fast,nvme ActiveFeatures=(null) Gres=gpu:h200:8 GresDrain=N/A GresUsed=gpu:h200:4(IDX:0,2-4) "
    "NodeAddr=127.0.0.1 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=512000 AllocMem=250000 "
    "State=MIXED ThreadsPerCore=1 TmpDisk=7000 Partitions=main,spare  Reason=as a=b test [root@2026-11-21T15:12:24]\n";
// In the form that newer versions document: flags behind the state, sockets behind the GPUs.
constexpr std::string_view kNewNodes =
    "NodeName=gpu-st-1 CPUAlloc=0 CPUTot=192 Gres=gpu:h200:8(S:0-1) GresUsed=gpu:h200:0(IDX:N/A) RealMemory=1992294 "
    "AllocMem=0 State=IDLE+CLOUD+POWERED_DOWN Partitions=gpu\n"
    "NodeName=mig Gres=gpu:h100_1g.12gb:7,gpu:h100_3g.47gb:1,shard:8 State=IDLE+DRAIN+NOT_RESPONDING CPUTot=64\n"
    "NodeName=dead Gres=(null) State=DOWN* CPUTot=4\n";

TEST(SlurmNode, GpusAreCountedByType) {
  Node node{.gres = parse_gres("gpu:h200:4(S:0),gpu:h200:4(S:1),gpu:l40s:2,nic:2"),
            .gres_used = parse_gres("gpu:h200:3(IDX:0-2),gpu:l40s:1(IDX:8)")};
  const auto kinds = node.gpu_kinds();
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(std::tuple(kinds[0].type, kinds[0].count, kinds[0].used), std::tuple("h200", 8, 3));
  EXPECT_EQ(std::tuple(kinds[1].type, kinds[1].count, kinds[1].used), std::tuple("l40s", 2, 1));
  node = {.gres = parse_gres("gpu:h200:8"), .gres_used = parse_gres("gpu:5")};
  EXPECT_EQ(node.gpu_kinds()[0].used, 5);
  EXPECT_TRUE(Node{}.gpu_kinds().empty());
}

TEST(SlurmNodes, OldAndNewVersions) {
  const auto old = parse_nodes(kOldNode);
  ASSERT_TRUE(old);
  const Node& n1 = old->at(0);
  EXPECT_EQ(n1.name, "n1");
  EXPECT_TRUE(n1.usable);
  EXPECT_EQ(n1.gpus(), 8);
  EXPECT_EQ(n1.gpus_used(), 4);
  EXPECT_EQ(n1.gpu_type(), "h200");
  EXPECT_EQ(n1.cpus - n1.cpus_used, 16);
  EXPECT_EQ(n1.memory_mib - n1.memory_used_mib, 262000);
  EXPECT_EQ(n1.tmp_mib, 7000);
  EXPECT_THAT(n1.partitions, ElementsAre("main", "spare"));
  EXPECT_THAT(n1.features, ElementsAre("fast", "nvme"));
  EXPECT_EQ(n1.reason, "as a=b test");
  EXPECT_EQ(n1.reason_time, parse_local_time("2026-11-21T15:12:24"));
  EXPECT_FALSE(n1.cloud);

  const auto fresh = parse_nodes(kNewNodes);
  ASSERT_TRUE(fresh);
  EXPECT_TRUE(fresh->at(0).usable);
  EXPECT_TRUE(fresh->at(0).powered_down);
  EXPECT_TRUE(fresh->at(0).cloud);
  EXPECT_FALSE(fresh->at(0).reason_time);
  EXPECT_EQ(fresh->at(0).gpus(), 8);
  EXPECT_EQ(fresh->at(0).gpus_used(), 0);
  EXPECT_EQ(fresh->at(0).reason, "");
  EXPECT_FALSE(fresh->at(1).usable);
  EXPECT_EQ(fresh->at(1).gpus(), 8);  // shards are none
  EXPECT_EQ(fresh->at(1).gpu_type(), "h100_1g.12gb");
  EXPECT_FALSE(fresh->at(2).usable);
  EXPECT_EQ(fresh->at(2).gpus(), 0);
  EXPECT_EQ(parse_nodes("slurm_load_node error\n").error().code(), ErrorCode::kCorruption);
}

TEST(SlurmRecords, ValuesMayHoldBlanks) {
  const auto record = parse_record("NodeName=a OS=Linux 6.1 #1 SMP  X=1 CfgTRES=cpu=32,mem=5G Reason=(null)");
  EXPECT_EQ(record.at("OS"), "Linux 6.1 #1 SMP");
  EXPECT_EQ(record.at("CfgTRES"), "cpu=32,mem=5G");
  EXPECT_EQ(record.at("Reason"), "(null)");
}

TEST(SlurmPartitions, LimitsAndModes) {
  const auto partitions = parse_partitions(
      "PartitionName=main Default=YES MaxTime=UNLIMITED Nodes=n[1-4] OverSubscribe=NO PreemptMode=OFF PriorityTier=10 "
      "State=UP\n"
      "PartitionName=low Default=NO MaxTime=7-00:00:00 Nodes=n[1-4] OverSubscribe=EXCLUSIVE PreemptMode=REQUEUE "
      "State=DOWN\n");
  ASSERT_TRUE(partitions);
  EXPECT_TRUE(partitions->at(0).is_default);
  EXPECT_FALSE(partitions->at(0).max_time_s);
  EXPECT_EQ(partitions->at(0).priority_tier, 10);
  EXPECT_FALSE(partitions->at(0).preempted);
  EXPECT_EQ(partitions->at(1).max_time_s, 7 * 86400);
  EXPECT_TRUE(partitions->at(1).whole_nodes);
  EXPECT_TRUE(partitions->at(1).preempted);
  EXPECT_FALSE(partitions->at(1).up);
}

TEST(SlurmJobs, GpusOfNodesOfJobsAndOfTasks) {
  auto jobs = parse_jobs(
      "14|main|RUNNING|None|2|2|gres:gpu:2|23:59:58|ann|n[2-3]|train | a=b\n"
      "15_2|main|PENDING|JobArrayTaskLimit|1|1|N/A|UNLIMITED|bob||x\n"
      "16|main|PENDING|(Resources)|1|4|N/A|10:00|bob||y\n");
  ASSERT_TRUE(jobs);
  EXPECT_EQ(jobs->at(0).gpus, 4);
  EXPECT_EQ(jobs->at(0).name, "train | a=b");
  EXPECT_EQ(jobs->at(0).time_left_s, 86398);
  EXPECT_THAT(jobs->at(0).node_list, ElementsAre("n2", "n3"));
  EXPECT_FALSE(jobs->at(1).gpus);
  EXPECT_FALSE(jobs->at(1).time_left_s);
  const std::string line = fmt::format("{:64}{:16}{:64}{:64}\n", "15_2", "1", "gres:gpu:3", "N/A") +
                           fmt::format("{:64}{:16}{:64}{:64}\n", "16", "4", "N/A", "gres/gpu:h200=2");
  add_job_tres(line, *jobs);
  EXPECT_EQ(jobs->at(0).gpus, 4);
  EXPECT_EQ(jobs->at(1).gpus, 3);
  EXPECT_EQ(jobs->at(2).gpus, 8);
  EXPECT_EQ(parse_jobs("1|main\n").error().code(), ErrorCode::kCorruption);
}

TEST(SlurmGres, EveryForm) {
  const std::vector<std::tuple<std::string, std::string, int64_t>> cases{
      {"gpu:8", "", 8},
      {"gpu:h200:8", "h200", 8},
      {"gres:gpu:4", "", 4},
      {"gres/gpu:l40s=2", "l40s", 2},
      {"gpu", "", 1},
      {"gpu:a100_1g.5gb:7(IDX:0-6)", "a100_1g.5gb", 7},
      {"gpu:tesla(S:0)", "tesla", 1}};
  for (const auto& [text, type, count] : cases) {
    const std::vector<Gres> gres = parse_gres(text);
    ASSERT_EQ(gres.size(), 1U) << text;
    EXPECT_EQ(gres[0].name, "gpu") << text;
    EXPECT_EQ(gres[0].type, type) << text;
    EXPECT_EQ(gres[0].count, count) << text;
  }
  EXPECT_TRUE(parse_gres("(null)").empty());
  EXPECT_TRUE(parse_gres("N/A").empty());
}

TEST(SlurmHostlists, RangesZerosAndSeveralBrackets) {
  EXPECT_THAT(*expand_hostlist("n[1-3,07-08],m"), ElementsAre("n1", "n2", "n3", "n07", "n08", "m"));
  EXPECT_THAT(*expand_hostlist("r[1-2]n[8-9]"), ElementsAre("r1n8", "r1n9", "r2n8", "r2n9"));
  EXPECT_TRUE(expand_hostlist("")->empty());
  for (const char* bad : {"n[1-", "n[3-1]", "n[x]", "n[0-99999999]", "n[1-1000]m[1-1000]"}) {
    EXPECT_EQ(expand_hostlist(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

// Whatever a version prints, reading it ends with a value or an error.
TEST(SlurmParsers, DamagedAnswersDoNotHurt) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::string base =
      std::string(kOldNode) + std::string(kNewNodes) + "1|a|RUNNING|None|1|1|gres:gpu:2|1:0|u|n[1-2]|x\n";
  for (int round = 0; round < 2000; ++round) {
    std::string text = base.substr(random() % base.size());
    for (int i = 0; i < 5 && !text.empty(); ++i) text[random() % text.size()] = static_cast<char>(random() % 128);
    (void)parse_nodes(text);
    (void)parse_partitions(text);
    auto jobs = parse_jobs(text);
    if (jobs) add_job_tres(text, *jobs);
    (void)expand_hostlist(text);
  }
}

TEST(SlurmAsk, ARealCluster) {
  const char* conf = std::getenv("MILLRACE_TEST_SLURM");
  if (conf == nullptr) GTEST_SKIP() << "MILLRACE_TEST_SLURM names no slurm.conf (./dev test starts a cluster)";
  setenv("SLURM_CONF", conf, 1);
  setenv("SQUEUE_FORMAT", "%i", 1);
  const auto cluster = ask();
  ASSERT_TRUE(cluster) << cluster.error().to_string();
  EXPECT_FALSE(cluster->version.empty());
  EXPECT_TRUE(cluster->schedules_memory());
  ASSERT_GE(cluster->nodes.size(), 6U);
  EXPECT_EQ(cluster->nodes[0].gpus(), 8);
  EXPECT_EQ(cluster->nodes[5].gpu_type(), "l40s");
  ASSERT_GE(cluster->partitions.size(), 3U);
  EXPECT_EQ(cluster->partitions[0].name, "main");
  EXPECT_TRUE(cluster->partitions[0].is_default);
}

TEST(SlurmAsk, NoSlurmIsSaid) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const auto nothing = ask();
  setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), ErrorCode::kNotFound);

  std::string folder = testing::TempDir() + "/millrace-slurm-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  symlink("/usr/bin/env", (folder + "/env").c_str());
  setenv("PATH", folder.c_str(), 1);
  const auto no_scontrol = ask();
  setenv("PATH", path.c_str(), 1);
  std::filesystem::remove_all(folder);
  ASSERT_FALSE(no_scontrol);
  EXPECT_EQ(no_scontrol.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(no_scontrol.error().message(), HasSubstr("scontrol is not on PATH"));
}

}  // namespace
}  // namespace millrace::slurm
