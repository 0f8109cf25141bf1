// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/instances.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "millrace/plan/detail/table.h"

namespace millrace::plan {

namespace {

constexpr std::string_view kInstanceColumns =
    "name,vcpus,memory_mib,accelerators,maker,gpu,efa_interfaces,nvme_gb,network_mbps,architecture";

Maker maker_of(std::string_view word) {
  constexpr std::array<std::string_view, 6> kWords = {"", "nvidia", "amd", "habana", "aws", "other"};
  return static_cast<Maker>(std::find(kWords.begin(), kWords.end(), word) - kWords.begin());
}

std::vector<Instance> read_instances() {
  std::vector<Instance> all;
  for (const data::Row& row : data::rows_of(data::k_instances, kInstanceColumns)) {
    all.push_back({.name = row[0],
                   .vcpus = data::whole(row[1]),
                   .memory_mib = data::whole(row[2]),
                   .gpus = data::whole(row[3]),
                   .maker = maker_of(row[4]),
                   .gpu_id = row[5],
                   .efa_interfaces = data::whole(row[6]),
                   .nvme_gb = data::whole(row[7]),
                   .network_mbps = data::whole(row[8]),
                   .arm64 = row[9] == "arm64"});
  }
  return all;
}

}  // namespace

std::string_view maker_name(Maker maker) {
  constexpr std::array<std::string_view, 6> kNames = {"no", "NVIDIA", "AMD", "Habana", "AWS", "other"};
  return kNames[static_cast<size_t>(maker)];
}

std::span<const Instance> instances() {
  static const std::vector<Instance> kInstances = read_instances();
  return kInstances;
}

const Instance* find_instance(std::string_view name) {
  const std::span<const Instance> all = instances();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const Instance& instance, std::string_view n) { return instance.name < n; });
  return found == all.end() || found->name != name ? nullptr : &*found;
}

Result<Instance> find_gpu_instance(std::string_view name) {
  const Instance* found = find_instance(name);
  if (found != nullptr && !found->gpu_id.empty()) return *found;
  std::string names;
  for (const Instance& each : instances()) {
    if (!each.gpu_id.empty()) names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  return fail(ErrorCode::kNotFound, "'{}' {}; with GPUs that are, there are {}", name,
              found == nullptr ? "is not in the table of instances" : "has no GPU of the catalogue", names);
}

}  // namespace millrace::plan
