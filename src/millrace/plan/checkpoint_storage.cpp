// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/checkpoint_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::plan {

namespace {

constexpr double kMegabyte = 1e6, kGibibyte = 1 << 30, kTebibyte = 1024.0 * kGibibyte;
const char* const kEbs = "EBS: limits of gp3 as ParallelCluster checks them, 2024-10";
const char* const kFsx = "FSx for Lustre user guide: throughput a TiB and steps of capacity, 2022-2026";
const char* const kLustre = "FSx for Lustre: storage a server (OST) holds, 2.4 TiB; 1.2 TiB in the smallest";
const char* const kS3 = "S3: up to 10,000 parts of at least 5 MiB an object";

// gp3, of one volume.
constexpr int64_t kLeastIops = 3000, kMostIops = 16'000, kLeastMbs = 125, kMostMbs = 1000, kIopsPerGib = 500,
                  kMostGib = 16'384;
constexpr double kMbsPerIops = 0.25;

// FSx for Lustre on SSD: 1200 GiB, 2400, then steps of 2400.
struct LustreTier {
  const char* name;
  int64_t mbs_per_tib;
  bool replicated;
};
constexpr LustreTier kTiers[] = {{"SCRATCH_2", 200, false},
                                 {"PERSISTENT_2 125", 125, true},
                                 {"PERSISTENT_2 250", 250, true},
                                 {"PERSISTENT_2 500", 500, true},
                                 {"PERSISTENT_2 1000", 1000, true}};
constexpr int64_t kFirstGib = 1200, kStepGib = 2400;

int64_t ceil_div(double value, double by) {
  return static_cast<int64_t>(std::ceil(value / by - 1e-9));
}

int64_t lustre_gib(double bytes) {
  if (bytes <= kFirstGib * kGibibyte) return kFirstGib;
  return ceil_div(bytes, kStepGib * kGibibyte) * kStepGib;
}

// A rank's file over servers: few ranks need many servers each to use them all; many ranks spread by themselves.
void lay_out(StorageChoice& choice, const StorageDemand& demand) {
  const int64_t servers = choice.gib <= kFirstGib ? 1 : choice.gib / kStepGib;
  const double file = demand.bytes / static_cast<double>(demand.ranks);
  const int64_t wanted = ceil_div(static_cast<double>(servers), static_cast<double>(demand.ranks));
  const int64_t most = std::max<int64_t>(1, ceil_div(file, 100e6));  // below 100 MB a stripe costs more than it gives
  choice.stripe_count = std::clamp<int64_t>(wanted, 1, std::min(servers, most));
  choice.stripe_bytes = choice.stripe_count == 1 ? 1 << 20 : 4 << 20;
}

// A volume on each node, several striped where one is not fast enough.
StorageChoice gp3_choice(const StorageDemand& demand, double rate, double space) {
  const auto nodes = static_cast<double>(demand.nodes);
  const double node_mbs = rate / nodes / kMegabyte, node_bytes = space / nodes;
  const int64_t volumes =
      std::max({ceil_div(node_mbs, kMostMbs), ceil_div(node_bytes, kMostGib * kGibibyte), int64_t{1}});
  const auto of = static_cast<double>(volumes);
  const int64_t mbs = std::clamp(ceil_div(node_mbs, of), kLeastMbs, kMostMbs);
  StorageChoice choice{.name = "gp3"};
  choice.iops = std::clamp(ceil_div(static_cast<double>(mbs), kMbsPerIops), kLeastIops, kMostIops);
  choice.gib = std::max(ceil_div(node_bytes / of, kGibibyte), ceil_div(static_cast<double>(choice.iops), kIopsPerGib));
  choice.bytes_per_s = static_cast<double>(mbs) * kMegabyte * of * nodes;
  choice.what = fmt::format("{} a node: {} GiB, {} IOPS, {} MB/s", volumes, choice.gib, choice.iops, mbs);
  choice.note = volumes > 1 ? "striped by RAID 0; lost with the node: copy to a shared tier"
                            : "lost with the node: copy to a shared tier";
  constexpr int64_t kMostVolumes = 8;  // more than an instance's own limit carries
  choice.carries = volumes <= kMostVolumes;
  if (!choice.carries) choice.note = fmt::format("more than {} volumes: no instance carries their rate", kMostVolumes);
  return choice;
}

StorageChoice lustre_choice(const LustreTier& tier, const StorageDemand& demand, double rate, double space) {
  const double for_rate = rate / (static_cast<double>(tier.mbs_per_tib) * kMegabyte) * kTebibyte;
  StorageChoice choice{.name = tier.name, .gib = lustre_gib(std::max(space, for_rate))};
  choice.bytes_per_s = static_cast<double>(choice.gib) / 1024 * static_cast<double>(tier.mbs_per_tib) * kMegabyte;
  choice.what = fmt::format("{} GiB x {} MB/s a TiB", choice.gib, tier.mbs_per_tib);
  lay_out(choice, demand);
  choice.note = for_rate > space ? "sized by throughput" : "sized by space";
  if (!tier.replicated) choice.note += "; not replicated";
  return choice;
}

StorageChoice s3_choice(const StorageDemand& demand, double rate) {
  constexpr double kLeastPart = 5 << 20, kMostParts = 10'000;
  const double file = demand.bytes / static_cast<double>(demand.ranks);
  StorageChoice choice{
      .name = "S3", .what = "a bucket in the region", .bytes_per_s = rate, .carries = file <= 5e12 * 1.0995};
  choice.note = choice.carries
                    ? fmt::format("limited by the nodes' network; parts of {:.0f} MiB or more",
                                  std::max(8.0, std::ceil(std::max(kLeastPart, file / kMostParts) / (1 << 20))))
                    : "a rank's file is larger than an object may be (5 TiB)";
  return choice;
}

}  // namespace

Result<StoragePlan> plan_checkpoint_storage(const StorageDemand& demand) {
  if (!(demand.bytes > 0) || !(demand.write_s > 0) || demand.ranks < 1 || demand.nodes < 1 || demand.keep < 1)
    return fail(ErrorCode::kInvalidArgument, "storage of checkpoints: a size, a time, ranks, nodes and kept steps");
  StoragePlan plan{.bytes_per_s = demand.bytes / demand.write_s,
                   .space_bytes = demand.bytes * static_cast<double>(demand.keep + 1)};
  plan.choices.push_back(gp3_choice(demand, plan.bytes_per_s, plan.space_bytes));
  for (const LustreTier& tier : kTiers)
    plan.choices.push_back(lustre_choice(tier, demand, plan.bytes_per_s, plan.space_bytes));
  plan.choices.push_back(s3_choice(demand, plan.bytes_per_s));
  for (StorageChoice& choice : plan.choices) choice.write_s = demand.bytes / choice.bytes_per_s;
  const auto term = [&](const char* name, double value, const char* unit, const char* source) {
    plan.why.terms.push_back({name, Range::point(value), unit, source});
  };
  plan.why.formulas = {"rate = bytes / write_s", "space = bytes x (keep + 1)",
                       "gp3: IOPS = MB/s / 0.25, GiB >= IOPS / 500", "FSx: MB/s = GiB / 1024 x MB/s a TiB"};
  term("bytes", demand.bytes, "B", kGiven);
  term("write_s", demand.write_s, "s", kGiven);
  term("keep", static_cast<double>(demand.keep), "", kGiven);
  term("gp3 MB/s", kMostMbs, "MB/s a volume", kEbs);
  term("gp3 IOPS", kMostIops, "a volume", kEbs);
  term("FSx step", kStepGib, "GiB", kFsx);
  term("FSx server", kStepGib, "GiB", kLustre);
  term("S3 parts", 10'000, "an object", kS3);
  plan.why.notes = {"An instance has an EBS limit and a network limit of its own; neither is in these figures.",
                    "gp3 may have higher limits in some regions since 2025: unconfirmed here."};
  return plan;
}

}  // namespace millrace::plan
