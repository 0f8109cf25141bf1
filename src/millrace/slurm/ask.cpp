// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "millrace/slurm/commands.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

Result<Cluster> ask(const AskOptions& options) {
  Cluster cluster;
  ASSIGN_OR_RETURN(const std::string config, slurm_answer({"scontrol", "show", "config"}, options));
  cluster.version = config_value(config, "SLURM_VERSION");
  cluster.select_type = config_value(config, "SelectType");
  cluster.select_parameters = config_value(config, "SelectTypeParameters");
  cluster.enforced = config_value(config, "AccountingStorageEnforce");
  const std::string program = config_value(config, "ResumeProgram");
  if (program != "(null)") cluster.resume_program = program;
  const std::string timeout = config_value(config, "ResumeTimeout");  // "300 sec"
  std::from_chars(timeout.data(), timeout.data() + timeout.size(), cluster.resume_timeout_s);
  ASSIGN_OR_RETURN(const std::string partitions, slurm_answer({"scontrol", "-o", "show", "partition"}, options));
  ASSIGN_OR_RETURN(cluster.partitions, parse_partitions(partitions));
  ASSIGN_OR_RETURN(const std::string nodes, slurm_answer({"scontrol", "-o", "-d", "show", "node"}, options));
  ASSIGN_OR_RETURN(cluster.nodes, parse_nodes(nodes));
  ASSIGN_OR_RETURN(const std::string jobs, slurm_answer({"squeue", "-h", "-a", "-r", "-o", kJobFormat}, options));
  ASSIGN_OR_RETURN(cluster.jobs, parse_jobs(jobs));
  const bool all_known = std::all_of(cluster.jobs.begin(), cluster.jobs.end(), [](const Job& job) { return job.gpus; });
  if (all_known) return cluster;
  // Versions before 19.05 lack these columns; the GPUs of some jobs are unknown then.
  if (const auto tres = slurm_answer({"squeue", "-h", "-a", "-r", "-O", kJobTresFormat}, options)) {
    add_job_tres(*tres, cluster.jobs);
  }
  return cluster;
}

}  // namespace millrace::slurm
