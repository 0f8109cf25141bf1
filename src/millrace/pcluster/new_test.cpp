// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/new.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "millrace/pcluster/instances.h"
#include "millrace/pcluster/lint.h"

namespace millrace::pcluster {
namespace {

constexpr std::string_view kSpec = R"(region: us-east-2
instance: p5e.48xlarge
count: 80
reservation: cr-0123456789abcdef0
subnet: subnet-0aaaaaaaaaaaabbbb
head_subnet: subnet-0aaaaaaaaaaaacccc
buckets: [corpus, {name: checkpoints, write: true}]
storage:
  - {mount: /fsx1, id: fs-0123456789abcdef0}
  - {mount: /fsx2, gib: 7200, mbps_per_tib: 1000}
setup_script: s3://tools/node.sh
models: 7
)";

std::string with(std::string_view find, std::string_view put) {
  std::string text(kSpec);
  const size_t at = text.find(find);
  EXPECT_NE(at, std::string::npos) << find;
  return text.replace(at, find.size(), put);
}

std::string written(const std::string& spec, const Version& version = {}) {
  const auto text = new_config(spec, "spec.yaml", version);
  EXPECT_TRUE(text.has_value()) << (text ? "" : text.error().to_string()) << "\n" << spec;
  return text.value_or("");
}

std::string refused(const std::string& spec, const Version& version = {}) {
  const auto text = new_config(spec, "spec.yaml", version);
  EXPECT_FALSE(text.has_value()) << spec;
  return text ? std::string() : text.error().message();
}

void expect_holds(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(NewConfig, ReservedNodesStayUpWithEfaAndTheirShareOfMemory) {
  const std::string text = written(std::string(kSpec));
  expect_holds(text, "      MinCount: 80\n          MaxCount: 80\n");
  expect_holds(text, "CapacityReservationId: cr-0123456789abcdef0");
  expect_holds(text, "PlacementGroup:\n          Enabled: false\n");
  expect_holds(text, "Efa:\n            Enabled: true\n");
  expect_holds(text, "- DefMemPerGPU: 249036\n");
  expect_holds(text, "Sockets: 2\n            CoresPerSocket: 48\n            ThreadsPerCore: 2\n");
  expect_holds(text, "- BucketName: checkpoints\n            EnableWriteAccess: true\n");
  expect_holds(text, "- BucketName: tools\n");
  expect_holds(text, "EphemeralVolume:\n            MountDir: /scratch\n");
  expect_holds(text, "DeletionPolicy: Retain");
  expect_holds(text, "InstanceType: m6i.8xlarge");
  EXPECT_EQ(text.find("BucketName: corpus\n            EnableWrite"), std::string::npos);
}

TEST(NewConfig, BlocksBecomeComputeResources) {
  const std::string text =
      written(with("reservation: cr-0123456789abcdef0\n",
                   "capacity: capacity-block\nreservation:\n  - {id: cr-0123456789abcdef0, count: 64}\n"
                   "  - {id: cr-0123456789abcdef1, count: 16}\n"));
  expect_holds(text, "CapacityType: CAPACITY_BLOCK");
  expect_holds(text, "- Name: reserved-1\n          InstanceType: p5e.48xlarge\n          MinCount: 64\n");
  expect_holds(text, "- Name: reserved-2\n          InstanceType: p5e.48xlarge\n          MinCount: 16\n");
  EXPECT_EQ(text.find("PlacementGroup"), std::string::npos);
}

TEST(NewConfig, WhatCannotWorkIsRefusedWithTheReason) {
  expect_holds(refused(with("us-east-2", "us-east-9")), "us-east-9 is not a region");
  expect_holds(refused(with("p5e.48xlarge", "p5e.96xlarge")), "spec.yaml:2:11: p5e.96xlarge is not among the");
  expect_holds(refused(with("count: 80", "count: 5")), "7 models and 5 nodes");
  expect_holds(refused(with("count: 80", "count: 0")), "a whole number from 1");
  expect_holds(refused(with("reservation: cr-0123456789abcdef0\n", "capacity: capacity-block\n")), "there is none");
  expect_holds(refused(with("reservation: cr-0123456789abcdef0\n",
                            "capacity: capacity-block\nreservation: cr-0123456789abcdef0\n")),
               "80 instances in one block; at most 64");
  expect_holds(
      refused(with("reservation: cr-0123456789abcdef0\n",
                   "reservation: [{id: cr-0123456789abcdef0, count: 64}, {id: cr-0123456789abcdef1, count: 20}]\n")),
      "80 nodes and 84 reserved ones");
  expect_holds(refused(with("id: fs-0123456789abcdef0", "gib: 1200, mbps_per_tib: 250")),
               "new FSx file system number 2");
  expect_holds(refused(with("gib: 7200", "gib: 7000")), "7000 GiB");
  expect_holds(refused(with("mount: /fsx1", "mount: /usr")), "/usr belongs to the system");
  expect_holds(refused(with("subnet-0aaaaaaaaaaaabbbb", "subnet-xxxxxxxx")), "is a placeholder");
  expect_holds(refused(with("models: 7", "model: 7")), "unknown key 'model'; there are");
  expect_holds(refused(with("models: 7", "os: rocky9")), "there is no public image");
  expect_holds(refused(with("region: us-east-2\n", "")), "'region' is missing");
  expect_holds(refused(with("us-east-2", "ap-southeast-3"), {3, 10, 0}), "came with 3.11");
  expect_holds(refused(std::string(kSpec), {3, 7, 0}), "needs ParallelCluster 3.8");
  expect_holds(refused("region: ["), "spec.yaml:");
}

class RandomSpec {
 public:
  explicit RandomSpec(uint64_t seed) : random_(seed) {}

  std::string next() {
    const Instance& type = any_type();
    const int64_t count = 1 + below(100);
    std::string spec = fmt::format("region: {}\ninstance: {}\ncount: {}\nsubnet: {}\n",
                                   pick({"us-east-1", "us-west-2", "eu-central-1", "ap-southeast-3"}), type.name, count,
                                   id("subnet-"));
    if (flip()) spec += fmt::format("head_subnet: {}\n", id("subnet-"));
    if (flip()) spec += fmt::format("key: {}\n", pick({"ops", "a-b", "12", "yes"}));
    if (flip()) spec += fmt::format("security_groups: [{}]\n", id("sg-"));
    if (flip()) spec += reservation(count);
    if (flip()) spec += "buckets: [corpus, {name: runs.eu, write: true}]\n";
    if (flip()) spec += "setup_script: " + std::string(pick({"s3://tools/a b.sh", "https://example.org/x.sh"})) + "\n";
    if (flip()) spec += "database: {uri: \"db:3306\", user: u, secret: \"arn:aws:secretsmanager:x:1:secret:s\"}\n";
    if (flip()) spec += fmt::format("models: {}\n", 1 + below(count));
    if (flip()) spec += fmt::format("longest_job_days: {}\n", 1 + below(400));
    if (flip()) spec += storage();
    return spec;
  }

 private:
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }
  bool flip() { return below(2) == 0; }
  const char* pick(const std::vector<const char*>& words) {
    return words[static_cast<size_t>(below(static_cast<int64_t>(words.size())))];
  }
  std::string id(std::string_view prefix) {
    constexpr std::string_view kLetters = "0123456789abcdef";
    std::string out(prefix);
    // Never one letter again and again, which is how placeholders look.
    for (int i = 0; i < 16; ++i) out += kLetters[static_cast<size_t>(below(16))];
    return out + "z";
  }
  // But for those that the open NVIDIA driver does not know, and those whose blocks have sizes of their own.
  const Instance& any_type() {
    for (;;) {
      const Instance& type = instances()[static_cast<size_t>(below(static_cast<int64_t>(instances().size())))];
      const bool old = type.name.starts_with("p2.") || type.name.starts_with("p3") || type.name.starts_with("g2.") ||
                       type.name.starts_with("g3");
      if (!old && !type.name.starts_with("p6e-")) return type;
    }
  }
  std::string reservation(int64_t count) {
    const bool block = flip();
    std::string spec = block ? "capacity: capacity-block\nreservation:\n" : "reservation:\n";
    for (int64_t left = count; left > 0;) {
      const int64_t part = std::min<int64_t>(left, 1 + below(64));
      spec += fmt::format("  - {{id: {}, count: {}}}\n", id("cr-"), part);
      left -= part;
    }
    return spec;
  }
  std::string storage() {
    std::string spec = "storage:\n";
    if (flip())
      spec += fmt::format("  - {{mount: /fsx, gib: {}, mbps_per_tib: {}}}\n", 2400 * (1 + below(20)),
                          pick({"125", "250", "500", "1000"}));
    for (int64_t i = 0; i < 1 + below(4); ++i) spec += fmt::format("  - {{mount: /data{}, id: {}}}\n", i, id("fs-"));
    return spec;
  }
  std::mt19937_64 random_;
};

TEST(NewConfig, EverySpecThatCanWorkIsTakenAndItsFileIsClean) {
  const char* chosen = std::getenv("MILLRACE_TEST_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  RandomSpec random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::string spec = random.next();
    const std::string text = written(spec);
    const auto findings = lint_config(text, {.file = "cluster.yaml"});
    ASSERT_TRUE(findings.has_value());
    const FindingCounts counts = count_findings(*findings);
    ASSERT_EQ(counts.errors + counts.warnings, 0) << spec << text;
    ASSERT_EQ(written(spec), text) << "the same again";
  }
}

}  // namespace
}  // namespace millrace::pcluster
