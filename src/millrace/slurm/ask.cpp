// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "millrace/base/command.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

namespace {

constexpr size_t kMaxAnswerBytes = size_t{256} << 20;  // a line a job is about 500 bytes

// Settings of the caller would change what the commands print.
std::vector<std::string> with_plain_output(const std::vector<std::string>& words) {
  std::vector<std::string> all{"env"};
  for (const char* name : {"SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SQUEUE_PARTITION", "SQUEUE_USERS",
                           "SQUEUE_ACCOUNT", "SQUEUE_QOS", "SQUEUE_NAMES", "SQUEUE_SORT", "SLURM_TIME_FORMAT"}) {
    all.insert(all.end(), {"-u", name});
  }
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

Result<std::string> answer(const std::vector<std::string>& words, const AskOptions& options) {
  auto ran = run_command(with_plain_output(words), options.time_limit, options.stop, kMaxAnswerBytes);
  ASSIGN_OR_RETURN(CommandOutput output, with_context(std::move(ran), words[0]));
  if (output.status == "exit status 127") {  // env's word for it
    return fail(ErrorCode::kNotFound, "{} is not on PATH: is this a machine of a Slurm cluster?", words[0]);
  }
  if (!output.ok) {
    return fail(ErrorCode::kUnavailable, "{}: {}: {}", words[0], output.status,
                output.err.substr(0, output.err.find('\n')));
  }
  return std::move(output.out);
}

// "SelectType              = select/cons_tres"
std::string setting(std::string_view config, std::string_view name) {
  size_t at = config.find(std::string("\n").append(name).append(" "));
  if (at == std::string_view::npos) return {};
  at = config.find("= ", at);
  if (at == std::string_view::npos) return {};
  return std::string(config.substr(at + 2, config.find('\n', at) - at - 2));
}

}  // namespace

Result<Cluster> ask(const AskOptions& options) {
  Cluster cluster;
  ASSIGN_OR_RETURN(const std::string config, answer({"scontrol", "show", "config"}, options));
  cluster.version = setting(config, "SLURM_VERSION");
  cluster.select_type = setting(config, "SelectType");
  cluster.select_parameters = setting(config, "SelectTypeParameters");
  ASSIGN_OR_RETURN(const std::string partitions, answer({"scontrol", "-o", "show", "partition"}, options));
  ASSIGN_OR_RETURN(cluster.partitions, parse_partitions(partitions));
  ASSIGN_OR_RETURN(const std::string nodes, answer({"scontrol", "-o", "-d", "show", "node"}, options));
  ASSIGN_OR_RETURN(cluster.nodes, parse_nodes(nodes));
  ASSIGN_OR_RETURN(const std::string jobs, answer({"squeue", "-h", "-a", "-r", "-o", kJobFormat}, options));
  ASSIGN_OR_RETURN(cluster.jobs, parse_jobs(jobs));
  const bool all_known = std::all_of(cluster.jobs.begin(), cluster.jobs.end(), [](const Job& job) { return job.gpus; });
  if (all_known) return cluster;
  // Before 19.05 there are no such columns; the GPUs of some jobs are not known then.
  if (const auto tres = answer({"squeue", "-h", "-a", "-r", "-O", kJobTresFormat}, options)) {
    add_job_tres(*tres, cluster.jobs);
  }
  return cluster;
}

}  // namespace millrace::slurm
