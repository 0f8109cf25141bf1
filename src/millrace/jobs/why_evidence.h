// SPDX-License-Identifier: Apache-2.0
#pragma once

// Evidence for explain(): lines that show why a job waits or how it ended. Each function appends lines. Pure functions.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/why.h"

namespace millrace::jobs {

// At most this many lines name single nodes or jobs.
inline constexpr size_t kMostLines = 8;

// The field as scontrol prints it; "" when the job lacks it.
std::string field_of(const slurm::JobDetails& job, std::string_view name);
// Formats seconds as "2:03:04".
std::string in_time(int64_t seconds);

// The nodes that the job asks for, how many nodes could hold it, and when each becomes free.
void add_node_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence);
// The limits of the job's partition.
void add_partition_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster,
                         std::vector<std::string>& evidence);
// Nodes that are down or drained.
void add_closed_nodes(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence);
// Whether the node was given up while this job waited for it to boot.
bool failed_to_boot(const slurm::Node& node, const slurm::JobDetails& job);
// Signs that a node never booted, or may not have, and how long Slurm waited for it.
void add_boot_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// The node that failed, if Slurm names it (FailedNode, since 23.11), and the job's nodes that are down, since when.
void add_failed_nodes(const slurm::JobDetails& job, const slurm::Cluster* cluster, std::vector<std::string>& evidence);
// When the job was preempted, and which jobs then started on its nodes.
void add_preemptors(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// The reservation that the job waits for, or the reservations that keep it from its nodes.
void add_reservation_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// The limit of the QOS or account that the job's reason names, and how much of it running jobs use.
void add_limit_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// How a job that failed ended: status, time, nodes, steps, log.
void add_end_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);

}  // namespace millrace::jobs
