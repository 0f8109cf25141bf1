// SPDX-License-Identifier: Apache-2.0
// How the nodes of a job find each other: SB38 and SB47.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

using shell::Part;
using shell::Statement;
using shell::Word;

// --- SB38

// Its words before the program, or the whole of it, may come from outside of the script.
bool has_unknown_arguments(const Job& job, const Launch& launch) {
  for (const Word& word : launch.command) {
    if (word.text().ends_with(".py") || word.source == "-m") return false;
    for (const Part& part : word.parts) {
      const bool alone = word.parts.size() == 1 && part.kind == Part::Kind::kVariable;
      if (part.kind == Part::Kind::kCommand || (alone && job.definition(part.text) == nullptr)) return true;
    }
  }
  return !job.not_followed().empty();
}

bool is_on_one_node(const Launch& launch) {
  return launch.options.number("nodes") == 1 || launch.options.number("ntasks") == 1 || launch.options.has("nodelist");
}

void check_rendezvous(const Job& job, const JobContext&, FindingReport& report) {
  if (job.nodes() < 2) return;
  const auto says = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return contains(job.text(), word); });
  };
  for (const Launch& launch : job.launches()) {
    if (!launch.srun || launch.kind != Launch::Kind::kTorchrun || is_on_one_node(launch)) continue;
    if (has_unknown_arguments(job, launch) || says({"PET_", "--standalone"})) continue;
    if (!says({"--nnodes"})) {
      report.add("SB38", launch.statement->place,
                 fmt::format("torchrun without --nnodes on {} nodes: each node trains by itself", job.nodes()));
    } else if (!says({"rdzv_endpoint", "rdzv-endpoint", "master_addr", "master-addr"})) {
      report.add("SB38", launch.statement->place,
                 "torchrun has --nnodes and no address, so each node waits for the others at itself");
    }
  }
}

// --- SB47

constexpr std::array<std::string_view, 10> kAddressNames = {
    "MASTER_ADDR", "master_addr", "MASTER_IP",    "MASTER_HOST",  "MASTER_NODE",
    "HEAD_NODE",   "head_node",   "HEAD_NODE_IP", "head_node_ip", "MAIN_PROCESS_IP"};

bool is_node_list(std::string_view name) {
  return name == "SLURM_JOB_NODELIST" || name == "SLURM_NODELIST" || name == "SLURM_STEP_NODELIST";
}

bool has_flag(const Statement& statement, std::initializer_list<std::string_view> flags) {
  return std::any_of(statement.words.begin(), statement.words.end(),
                     [&](const Word& word) { return is_one_of(word.source, flags); });
}

struct Source {
  std::string message, fix;
  std::optional<Severity> severity;
};

constexpr const char* kFirstHost = "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)";

bool expands_node_list(const Statement& statement) {
  bool found = false;
  shell::visit_words(statement, [&](const Word& word) {
    for (const Part& part : word.parts) {
      found = found || (part.kind == Part::Kind::kVariable && is_node_list(part.text));
    }
  });
  return found;
}

Source of_commands(const shell::Block& commands, bool in_step) {
  if (commands.empty()) return {};
  const Statement& first = commands.front();
  const std::string name = first.name();
  const bool alone = commands.size() == 1;
  if (name == "hostname" && in_step)
    return {"every task takes its own node for the master", "Set it in the batch shell, before srun.", {}};
  if (name == "hostname" && alone && has_flag(first, {"-I", "--all-ip-addresses"}))
    return {
        "`hostname -I` prints every address of the node, in one line", "Take the name: MASTER_ADDR=$(hostname).", {}};
  if (name == "hostname" && has_flag(first, {"-i", "--ip-address"}))
    return {"`hostname -i` prints 127.0.1.1 where /etc/hosts has the node's own name there",
            "Take the name: MASTER_ADDR=$(hostname).", Severity::kWarning};
  if (name == "srun") {
    const slurm::CommandLine line = slurm::read_command_line(first.words);
    const bool one = line.options.has("nodelist") || line.options.has("nodes") || line.options.has("ntasks") ||
                     line.options.has("relative");
    const bool prints = line.command < first.words.size() && base_name(first.words[line.command].source) == "hostname";
    if (prints && !one && !alone)
      return {"srun prints the names as they arrive, so the first one is any of the nodes", "", Severity::kWarning};
  }
  if (name == "scontrol" && alone && has_flag(first, {"hostnames", "hostname"}))
    return {"`scontrol show hostnames` prints all nodes, one a line", "Add `| head -n 1`.", {}};
  const bool expands_list = std::any_of(commands.begin(), commands.end(), expands_node_list);
  if (expands_list && is_one_of(name, {"echo", "printf", "cut", "awk", "sed", "tr", "head"}))
    return {"the list of nodes is written as n[1-4], so cutting it gives no name", "", {}};
  return {};
}

Source of_word(const Word& word, bool in_step, bool batch) {
  for (const Part& part : word.parts) {
    if (part.kind == Part::Kind::kCommand) {
      if (Source found = of_commands(part.commands, in_step); !found.message.empty()) return found;
    }
    if (part.kind != Part::Kind::kVariable) continue;
    if (is_node_list(part.text))
      return {fmt::format("{} is a list such as n[1-4], not the name of a host", part.text), "", {}};
    if (part.text == "SLURM_SUBMIT_HOST")
      return {"SLURM_SUBMIT_HOST is where sbatch was run, a login node as a rule", "", {}};
    if (part.text == "SLURM_LAUNCH_NODE_IPADDR" && batch && !in_step && part.operation.empty())
      return {"SLURM_LAUNCH_NODE_IPADDR is set in the tasks only, so it is empty here", "", {}};
    if (in_step && is_one_of(part.text, {"SLURMD_NODENAME", "HOSTNAME"}))
      return {"every task takes its own node for the master", "Set it in the batch shell, before srun.", {}};
  }
  return {};
}

void check_addresses(const Job& job, const JobContext&, FindingReport& report) {
  if (job.nodes() < 2 || job.runs_itself()) return;
  for (const Definition& each : job.definitions()) {
    const shell::Assignment& assignment = *each.assignment;
    if (assignment.is_array ||
        std::find(kAddressNames.begin(), kAddressNames.end(), assignment.name) == kAddressNames.end()) {
      continue;
    }
    Source found = of_word(assignment.value, each.in_step, job.is_batch());
    if (found.message.empty()) continue;
    report.add("SB47", assignment.place, std::move(found.message),
               found.fix.empty() ? fmt::format("Write {}.", kFirstHost) : std::move(found.fix), found.severity);
  }
}

constexpr JobCheck kMeetingChecks[] = {check_rendezvous, check_addresses};

}  // namespace

std::span<const JobCheck> meeting_checks() {
  return kMeetingChecks;
}

}  // namespace millrace::jobs
