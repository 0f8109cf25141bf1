// SPDX-License-Identifier: Apache-2.0
#pragma once

// Evidence for explain(): lines that show why a job waits or how it ended. Each function appends lines. Pure functions.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/why.h"

namespace millrace::jobs {

// The most lines that name single nodes or jobs.
inline constexpr size_t kMostLines = 8;

// Returns a field as scontrol prints it; "" when the job lacks it.
std::string field_of(const slurm::JobDetails& job, std::string_view name);
// Formats seconds as "2:03:04".
std::string in_time(int64_t seconds);

// Adds the nodes that the job requests, how many nodes could hold it, and when each becomes free.
void add_node_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence);
// Adds the limits of the job's partition.
void add_partition_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster,
                         std::vector<std::string>& evidence);
// Adds the nodes that are down or drained.
void add_closed_nodes(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence);
// Whether Slurm gave up the node while this job waited for the node to boot.
bool failed_to_boot(const slurm::Node& node, const slurm::JobDetails& job);
// Adds signs that a node never booted, or may not have, and how long Slurm waited for it.
void add_boot_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// Adds the node that failed, if Slurm names it (FailedNode, since 23.11), and the job's nodes that are down, with the
// time since they are.
void add_failed_nodes(const slurm::JobDetails& job, const slurm::Cluster* cluster, std::vector<std::string>& evidence);
// Adds when the job was preempted, and which jobs then started on its nodes.
void add_preemptors(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// Adds the reservation that the job waits for, or the reservations that block its nodes.
void add_reservation_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// Adds the limit of the QOS or account that the job's reason names, and how much of it running jobs use.
void add_limit_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// Adds how a failed job ended: status, time, nodes, steps, log.
void add_end_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);

}  // namespace millrace::jobs
