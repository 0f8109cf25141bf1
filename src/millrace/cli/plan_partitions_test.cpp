// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/plan_partitions.h"

#include <gmock/gmock.h>

#include <set>

#include "millrace/plan/catalogue.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

slurm::Node node(const std::string& name, const std::string& gres, std::vector<std::string> features = {}) {
  return {.name = name,
          .usable = true,
          .partitions = {"gpu"},
          .features = std::move(features),
          .cpus = 32,
          .memory_mib = 256'000,
          .gres = slurm::parse_gres(gres)};
}

slurm::Cluster cluster(std::vector<slurm::Node> nodes) {
  slurm::Cluster cluster;
  cluster.partitions = {{.name = "gpu"}};
  cluster.nodes = std::move(nodes);
  return cluster;
}

GpuNames names(const std::vector<std::string>& flags) {
  return *GpuNames::of(flags);
}

std::multiset<std::string> kinds(const slurm::Cluster& cluster, GpuNames names) {
  std::multiset<std::string> found;
  for (const plan::Partition& each : partitions_of(cluster, names)) {
    const auto gpu = plan::find_gpu(each.gpu);
    found.insert(fmt::format("{} {}x{}", gpu ? gpu->id : each.gpu, each.nodes(), each.gpus_per_node));
  }
  return found;
}

TEST(PlanPartitionsOfSlurm, AKindIsWhatTheNodeSays) {
  const auto mixed = cluster({node("n1", "gpu:gpu2080:8"), node("n2", "gpu:gpu4090:4"), node("n3", "gpu:gpu4090:4"),
                              node("n4", "gpu:4", {"ib", "rtx3090"}), node("gpu5090-01", "gpu:4"), node("n5", "gpu:4"),
                              node("cpu1", "")});
  EXPECT_THAT(kinds(mixed, {}),
              UnorderedElementsAre("rtx2080ti 1x8", "rtx4090 2x4", "rtx3090 1x4", "rtx5090 1x4", "unknown 1x4"));
  // The name of a node is a guess, which what is said of the partition overrules.
  EXPECT_THAT(kinds(mixed, names({"gpu=a6000"})),
              UnorderedElementsAre("rtx2080ti 1x8", "rtx4090 2x4", "rtx3090 1x4", "a6000 2x4"));
  EXPECT_THAT(kinds(mixed, names({"n[4-5]=mi300x", "gpu2080=t4"})),
              UnorderedElementsAre("t4 1x8", "rtx4090 2x4", "mi300x 2x4", "rtx5090 1x4"));
}

// Without types in gres.conf, `--gpus-per-node=4` alone may get any node of the partition.
TEST(PlanPartitionsOfSlurm, AJobAsksForTheKindThatIsMeant) {
  const auto mixed = cluster({node("n1", "gpu:4", {"ib", "rtx3090"}), node("n2", "gpu:4", {"ib", "a6000"}),
                              node("t4-1", "gpu:4", {"ib"}), node("n3", "gpu:l4:4", {"ib"})});
  GpuNames none;
  std::map<std::string, std::pair<std::string, bool>> asked;
  for (const plan::Partition& each : partitions_of(mixed, none)) asked[each.gpu] = {each.constraint, each.among_others};
  using Asked = std::pair<std::string, bool>;
  EXPECT_EQ(asked["rtx3090"], Asked("rtx3090", false));
  EXPECT_EQ(asked["a6000"], Asked("a6000", false));
  EXPECT_EQ(asked["t4"], Asked("", true));
  EXPECT_EQ(asked["l4"], Asked("", false));  // --gpus-per-node=l4:4
  const auto alone = partitions_of(cluster({node("n1", "gpu:4", {"rtx3090"})}), none);
  EXPECT_EQ(Asked(alone[0].constraint, alone[0].among_others), Asked("", false));
}

TEST(PlanPartitionsOfSlurm, OneNodeHoldsSeveralKinds) {
  slurm::Node both = node("n1", "gpu:rtx4090:2,gpu:rtx3090:4");
  both.gres_used = slurm::parse_gres("gpu:rtx4090:2,gpu:rtx3090:1");
  slurm::Cluster one = cluster({both});
  one.jobs = {{.id = "1",
               .partition = "gpu",
               .state = "RUNNING",
               .nodes = 1,
               .gpus = 3,
               .node_list = {"n1"},
               .time_left_s = 60}};
  GpuNames none;
  for (const plan::Partition& each : partitions_of(one, none)) {
    EXPECT_EQ(each.gpus_free(), each.gpu == "rtx4090" ? 0 : 3) << each.gpu;
    EXPECT_EQ(each.gpus(), each.gpu == "rtx4090" ? 2 : 4) << each.gpu;
    EXPECT_TRUE(each.releases.empty());  // of which kind it gives GPUs back is not known
  }
  EXPECT_EQ(kinds(one, {}).size(), 2U);
}

TEST(PlanPartitionsOfSlurm, ANameThatFitsNothingIsAnError) {
  const auto typed = cluster({node("n1", "gpu:rtx4090:8")});
  for (const char* flag : {"n7=t4", "gpu=t4"}) {  // no such node; the type of the gres says it already
    GpuNames given = names({flag});
    (void)partitions_of(typed, given);
    EXPECT_THAT(given.check_all_used().error().message(), HasSubstr(flag));
  }
  GpuNames given = names({"rtx4090=l40s"});
  (void)partitions_of(typed, given);
  EXPECT_TRUE(given.check_all_used());
  EXPECT_FALSE(GpuNames::of({"n[1-=t4"}));
}

}  // namespace
}  // namespace millrace::cli
