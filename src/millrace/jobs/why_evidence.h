// SPDX-License-Identifier: Apache-2.0
#pragma once

// The facts that show why a job waits or how it ended, for explain(). Each function appends lines. Pure functions.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/why.h"

namespace millrace::jobs {

// No more lines than this name single nodes or jobs.
inline constexpr size_t kMostLines = 8;

// As scontrol prints it; "" where it is not there.
std::string field_of(const slurm::JobDetails& job, std::string_view name);
// "2:03:04"
std::string in_time(int64_t seconds);

// What it asks of nodes, how many could hold it, and when each is free.
void add_node_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence);
// The limits of its partition.
void add_partition_lines(const slurm::JobDetails& job, const slurm::Cluster& cluster,
                         std::vector<std::string>& evidence);
// Nodes that are down or drained.
void add_closed_nodes(const slurm::JobDetails& job, const slurm::Cluster& cluster, std::vector<std::string>& evidence);
// Whether the node was given up while this job waited for it to boot.
bool failed_to_boot(const slurm::Node& node, const slurm::JobDetails& job);
// What shows that a node never booted, or may not have, and how long it was waited for.
void add_boot_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// Which node failed, as far as Slurm says it (FailedNode, 23.11), and those of its nodes that are down now, since when.
void add_failed_nodes(const slurm::JobDetails& job, const slurm::Cluster* cluster, std::vector<std::string>& evidence);
// When it was preempted, and the jobs that then started on its nodes.
void add_preemptors(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// The reservation that it waits for, or those that keep it from its nodes.
void add_reservation_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// The limit of QOS or account that its reason means, and what running jobs hold of it.
void add_limit_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);
// How a job that failed ended: status, time, nodes, steps, log.
void add_end_lines(const slurm::JobDetails& job, const WhyFacts& facts, std::vector<std::string>& evidence);

}  // namespace millrace::jobs
