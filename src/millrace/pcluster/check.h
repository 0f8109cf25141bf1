// SPDX-License-Identifier: Apache-2.0
#pragma once

// The checks behind the rules: functions that read a cluster and report findings. Private to this room.

#include <span>

#include "millrace/lint/report.h"
#include "millrace/pcluster/model.h"

namespace millrace::pcluster {

using Check = void (*)(const Cluster& cluster, FindingReport& report);

// Checks keys one by one: PC01 to PC06, PC63, and the rules that the schema names at a key.
void check_schema(const Cluster& cluster, FindingReport& report);

std::span<const Check> file_checks();     // names, counts, versions, systems, tags, IAM, logs
std::span<const Check> compute_checks();  // queues, reservations, instances
std::span<const Check> network_checks();  // subnets, EFA, placement, security groups
std::span<const Check> storage_checks();  // volumes and file systems
std::span<const Check> lustre_checks();   // FSx for Lustre
std::span<const Check> slurm_checks();    // Slurm settings
std::span<const Check> release_checks();  // things that newer versions of ParallelCluster refuse
std::span<const Check> script_checks();   // needs of job scripts

// Calls `look` with every compute resource and its queue.
template <class Look>
void each_resource(const Cluster& cluster, Look&& look) {
  for (const Queue& queue : cluster.queues) {
    for (const Resource& resource : queue.resources) look(queue, resource);
  }
}

}  // namespace millrace::pcluster
