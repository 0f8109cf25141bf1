// SPDX-License-Identifier: Apache-2.0
#include "millrace/cluster/job_new.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "millrace/cluster/shell/job_options.h"

namespace millrace::cluster {

namespace {

std::string_view kind_name(JobKind kind) {
  constexpr std::string_view kKindNames[] = {"train", "preprocess", "validate", "nccl", "storage-test", "groot"};
  return kKindNames[static_cast<size_t>(kind)];
}

std::string job_name(const JobSpec& spec) {
  return spec.name.empty() ? std::string(kind_name(spec.kind)) : spec.name;
}

// As sbatch reads it: in double quotes where a blank, a quote or a # would end it.
std::string option_value(std::string_view value) {
  if (value.find_first_of(" \t#'\"\\") == std::string_view::npos) return std::string(value);
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

class ScriptText {
 public:
  void option(std::string_view name, std::string_view value = {}) {
    text_ += fmt::format("#SBATCH --{}{}{}\n", name, value.empty() ? "" : "=", option_value(value));
  }
  void option(std::string_view name, int64_t value) { option(name, fmt::format("{}", value)); }
  void line(std::string_view line) { (text_ += line) += '\n'; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_ = "#!/bin/bash\n";
};

bool is_training(const JobSpec& spec) {
  return spec.kind == JobKind::kTrain || spec.kind == JobKind::kGroot;
}

bool has_torchrun(const JobSpec& spec) {
  return spec.kind == JobKind::kTrain && spec.torchrun;
}

// One task a node for what starts its own processes, else one a GPU.
int64_t tasks_per_node(const JobSpec& spec) {
  const bool one_per_gpu = spec.kind == JobKind::kNccl || (spec.kind == JobKind::kTrain && !spec.torchrun);
  return one_per_gpu ? std::max<int64_t>(1, spec.gpus_per_node) : 1;
}

int64_t cpus_per_task(const JobSpec& spec) {
  return spec.cpus_per_gpu * std::max<int64_t>(1, spec.gpus_per_node) / tasks_per_node(spec);
}

void write_header(const JobSpec& spec, ScriptText& out) {
  const bool array = spec.kind == JobKind::kPreprocess;
  out.option("job-name", job_name(spec));
  if (!spec.partition.empty()) out.option("partition", spec.partition);
  if (!spec.account.empty()) out.option("account", spec.account);
  if (array) {
    const std::string at_once = spec.tasks_at_once > 0 ? fmt::format("%{}", spec.tasks_at_once) : "";
    out.option("array", fmt::format("0-{}{}", spec.tasks - 1, at_once));
  }
  out.option("nodes", spec.nodes);
  out.option("ntasks-per-node", tasks_per_node(spec));
  if (spec.gpus_per_node > 0) {
    out.option("gpus-per-node",
               (spec.gpu_type.empty() ? "" : spec.gpu_type + ":") + fmt::format("{}", spec.gpus_per_node));
  }
  out.option("cpus-per-task", cpus_per_task(spec));
  if (spec.exclusive) {
    out.option("exclusive");
    out.option("mem", "0");
  } else if (!spec.mem_per_gpu.empty()) {
    out.option(spec.gpus_per_node > 0 ? "mem-per-gpu" : "mem", spec.mem_per_gpu);
  }
  out.option("time", spec.time);
  if (is_training(spec) && spec.signal_s > 0) out.option("signal", fmt::format("B:USR1@{}", spec.signal_s));
  if ((is_training(spec) && spec.signal_s > 0) || array) {
    out.option("requeue");
    out.option("open-mode", "append");
  }
  if (spec.wait_all_nodes) out.option("wait-all-nodes", "1");
  out.option("output", spec.log_dir + (array ? "/%x-%A_%a.log" : "/%x-%j.log"));
  out.line("");
  out.line(fmt::format("# Written by `millrace job new {}`. The folder of the log must be there before sbatch:",
                       kind_name(spec.kind)));
  out.line(fmt::format("#     mkdir -p {}", shell_quoted(spec.log_dir)));
  out.line("set -euo pipefail");
  out.line("");
}

constexpr std::string_view kCpus = "--cpus-per-task=\"$SLURM_CPUS_PER_TASK\"";
constexpr std::string_view kOnEachNode = "srun --ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1";

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + shell_quoted(word);
  return out;
}

void write_network(const JobSpec& spec, ScriptText& out) {
  out.line("# The tuner of NCCL and of the plugin decides the rest; see `millrace env lint --rules`.");
  out.line("export NCCL_DEBUG=WARN");
  out.line("export NCCL_SOCKET_IFNAME=^docker,lo,veth");
  if (spec.efa) out.line("export FI_EFA_USE_HUGE_PAGE=0  # loader processes fork");
  if (is_training(spec)) {
    out.line(
        "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1  # what each rank was doing when one "
        "hangs");
  }
  out.line("");
}

std::string container_flags(const JobSpec& spec) {
  if (spec.image.empty()) return {};
  std::string mounts;
  for (const std::string& mount : spec.mounts) mounts += (mounts.empty() ? "" : ",") + mount;
  const std::string with_mounts = mounts.empty() ? "" : " --container-mounts=" + shell_quoted(mounts);
  return " --container-image=" + shell_quoted(spec.image) + with_mounts;
}

void write_staging(const JobSpec& spec, ScriptText& out) {
  if (spec.stage.empty()) return;
  out.line("# To every node; what is there already is left alone.");
  for (const Copy& copy : spec.stage) {
    out.line(fmt::format("{} {} \\\n  millrace sync {} {}", kOnEachNode, kCpus, shell_quoted(copy.source),
                         shell_quoted(copy.target)));
  }
  out.line("");
}

void write_monitor(const JobSpec& spec, ScriptText& out) {
  if (spec.monitor_s == 0 || spec.gpus_per_node == 0) return;
  out.line("# One on every node, beside the training; a file of its own for each node and start.");
  out.line("# shellcheck disable=SC2016  # the names are the task's");
  out.line(fmt::format("{} --overlap --cpus-per-task=1 bash -c \\", kOnEachNode));
  out.line(fmt::format(
      "  'exec nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,temperature.gpu,power.draw "
      "--format=csv -l {} \\",
      spec.monitor_s));
  out.line("    >\"$1-$SLURMD_NODENAME-${SLURM_RESTART_COUNT:-0}.csv\"' monitor \\");
  out.line(fmt::format("  {}\"/gpu-$SLURM_JOB_ID\" &", shell_quoted(spec.log_dir)));
  out.line("monitor=$!");
  out.line("trap 'kill \"$monitor\" 2>/dev/null || true' EXIT");
  out.line("");
}

void write_rendezvous(ScriptText& out) {
  out.line("MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)");
  out.line("MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))  # another for each job that shares the node");
  out.line("export MASTER_ADDR MASTER_PORT");
  out.line("");
}

void write_step(const JobSpec& spec, ScriptText& out) {
  const std::string flags = fmt::format("{} --kill-on-bad-exit=1{}", kCpus, container_flags(spec));
  if (has_torchrun(spec)) {
    out.line(fmt::format("srun {} \\", flags));
    out.line(fmt::format("  torchrun --nnodes=\"$SLURM_JOB_NUM_NODES\" --nproc_per_node={} --rdzv_backend=c10d \\",
                         std::max<int64_t>(1, spec.gpus_per_node)));
    out.line(
        "    --rdzv_id=\"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}\" --rdzv_endpoint=\"$MASTER_ADDR:$MASTER_PORT\" \\");
    out.line(fmt::format("    {} &", joined(spec.command)));
  } else if (spec.kind == JobKind::kGroot) {
    out.line(fmt::format("srun {} \\\n  {} &", flags, joined(spec.command)));
  } else {
    out.line("# The ranks are known inside the tasks only.");
    out.line("# shellcheck disable=SC2016");
    out.line(fmt::format("srun {} \\", flags));
    out.line("  bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec \"$@\"' task \\");
    out.line(fmt::format("  {} &", joined(spec.command)));
  }
  out.line("step=$!");
}

// A trap runs only while the shell waits, and ends the wait: so wait until the step is gone.
void write_waiting(const JobSpec& spec, ScriptText& out) {
  out.line("");
  if (spec.signal_s > 0) {
    out.line("limit=0 ended=0");
    out.line("# shellcheck disable=SC2317  # called by the trap");
    out.line("before_limit() {");
    out.line("  limit=1");
    out.line("  kill -TERM \"$step\" 2>/dev/null || true  # srun gives it to every task, which saves and ends");
    out.line("}");
    out.line("trap before_limit USR1");
    out.line("# shellcheck disable=SC2317");
    out.line("end() {  # preempted or cancelled: Slurm itself decides whether it runs again");
    out.line("  ended=1");
    out.line("  kill -TERM \"$step\" 2>/dev/null || true");
    out.line("}");
    out.line("trap end TERM");
  }
  out.line("while kill -0 \"$step\" 2>/dev/null; do wait \"$step\" || true; done");
  out.line("code=0");
  out.line("wait \"$step\" || code=$?");
  out.line("");
  if (spec.signal_s > 0) {
    out.line("# 75: the program stopped early with its state saved and wants to run again.");
    out.line(
        "if [ \"$ended\" -eq 0 ] && { [ \"$code\" -eq 75 ] || { [ \"$limit\" -eq 1 ] && [ \"$code\" -ne 0 ]; }; }; "
        "then");
    out.line("  echo \"requeue after exit status $code, start ${SLURM_RESTART_COUNT:-0}\"");
    out.line("  scontrol requeue \"$SLURM_JOB_ID\"");
    out.line("  exit 0");
    out.line("fi");
  }
  if (!spec.save.empty()) {
    out.line("if [ \"$code\" -eq 0 ]; then");
    for (const Copy& copy : spec.save)
      out.line(fmt::format("  millrace sync {} {}", shell_quoted(copy.source), shell_quoted(copy.target)));
    out.line("fi");
  }
  out.line("exit \"$code\"");
}

void write_training(const JobSpec& spec, ScriptText& out) {
  write_network(spec, out);
  if (spec.kind == JobKind::kTrain) write_rendezvous(out);
  write_staging(spec, out);
  write_monitor(spec, out);
  write_step(spec, out);
  write_waiting(spec, out);
}

void write_preprocess(const JobSpec& spec, ScriptText& out) {
  out.line(
      "# A task that is run again goes on where it was. When all have ended, one short job joins what they recorded:");
  out.line(fmt::format(
      "#     sbatch --dependency=afterok:ID --kill-on-invalid-dep=yes --time=30 --wrap 'millrace prepare --finish {}'",
      spec.output));
  write_staging(spec, out);
  out.line(fmt::format("srun {}{} \\", kCpus, container_flags(spec)));
  out.line(fmt::format("  millrace prepare {} --tokenizer {} --out {} \\", joined(spec.inputs),
                       shell_quoted(spec.tokenizer), shell_quoted(spec.output)));
  const std::string more = joined(spec.command);
  // Not SLURM_ARRAY_TASK_COUNT, which is 1 when one task is submitted again.
  out.line(fmt::format("  --task \"$SLURM_ARRAY_TASK_ID/{}\"{}{}", spec.tasks, more.empty() ? "" : " ", more));
}

void write_validation(const JobSpec& spec, ScriptText& out) {
  out.line("failed=0");
  out.line("check() {  # check WHAT COMMAND...: on every node");
  out.line("  echo \"=== $1\"");
  out.line("  shift");
  out.line(fmt::format("  {} {} --label \"$@\" || failed=1", kOnEachNode, kCpus));
  out.line("}");
  out.line("# shellcheck disable=SC2016  # the names are the task's");
  out.line(
      fmt::format("check 'GPUs: {} of them' bash -c 'count=$(nvidia-smi --list-gpus | wc -l); echo \"$count\"; [ "
                  "\"$count\" -eq \"$1\" ]' count {}",
                  spec.gpus_per_node, spec.gpus_per_node));
  out.line(
      "check 'memory, errors, clocks' nvidia-smi "
      "--query-gpu=index,name,memory.total,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active "
      "--format=csv");
  out.line("check 'NVLink' nvidia-smi nvlink --status");
  out.line("check 'topology' nvidia-smi topo -m");
  if (spec.efa) out.line("check 'EFA' fi_info -p efa -t FI_EP_RDM");
  out.line("exit \"$failed\"");
}

void write_nccl(const JobSpec& spec, ScriptText& out) {
  write_network(spec, out);
  out.line("srun --mpi=list 2>&1 | grep -q pmix || { echo 'this Slurm has no pmix' >&2; exit 1; }");
  out.line("failed=0");
  out.line("for test in all_reduce all_gather broadcast reduce reduce_scatter alltoall; do");
  out.line("  echo \"=== $test\"");
  out.line(fmt::format("  srun --mpi=pmix {}{} \\", kCpus, container_flags(spec)));
  out.line("    \"${NCCL_TESTS:-/opt/nccl-tests/build}/${test}_perf\" -b 8 -e 4G -f 2 -g 1 -n 50 || failed=1");
  out.line("done");
  out.line("exit \"$failed\"");
}

// Each task writes a file and reads the one of the next task, which another node has written where there are several.
void write_storage_test(const JobSpec& spec, ScriptText& out) {
  out.line(fmt::format("folder={}/millrace-storage-test-$SLURM_JOB_ID", shell_quoted(spec.folder)));
  out.line("mkdir \"$folder\"");
  out.line("trap 'rm -r \"$folder\"' EXIT");
  out.line("# Past the page cache where the file system can.");
  out.line("direct=direct");
  out.line("dd if=/dev/zero of=\"$folder/probe\" bs=4096 count=1 oflag=direct status=none 2>/dev/null || direct=");
  out.line("");
  out.line("measure() {  # measure write|read: all tasks at once, then the sum");
  out.line("  local begin end");
  out.line("  begin=$(date +%s%N)");
  out.line("  # shellcheck disable=SC2016  # the names are the task's");
  out.line(fmt::format("  srun {} bash -c '", kCpus));
  out.line("    if [ \"$1\" = write ]; then");
  out.line(
      "      exec dd if=/dev/zero of=\"$2/$SLURM_PROCID\" bs=4M count=\"$3\" ${4:+oflag=\"$4\"} conv=fsync "
      "status=none");
  out.line("    fi");
  out.line(
      "    exec dd if=\"$2/$(((SLURM_PROCID + 1) % SLURM_NTASKS))\" of=/dev/null bs=4M ${4:+iflag=\"$4\"} status=none");
  out.line(fmt::format("  ' storage \"$1\" \"$folder\" {} \"$direct\"", std::max<int64_t>(1, spec.file_mib / 4)));
  out.line("  end=$(date +%s%N)");
  out.line(fmt::format("  awk -v what=\"$1\" -v mib=$((SLURM_NTASKS * {})) -v ns=$((end - begin)) \\",
                       std::max<int64_t>(4, spec.file_mib / 4 * 4)));
  out.line("    'BEGIN { printf \"%-5s %d MiB in %.2f s: %.1f MiB/s\\n\", what, mib, ns / 1e9, mib * 1e9 / ns }'");
  out.line("}");
  out.line("echo \"$SLURM_NTASKS tasks on $SLURM_JOB_NUM_NODES nodes, ${direct:-through the page cache}\"");
  out.line("measure write");
  out.line("measure read");
}

// The fine-tuning script of Isaac-GR00T N1.5, which starts a process for each GPU by itself.
std::vector<std::string> groot_command(const JobSpec& spec) {
  const auto number = [](int64_t value) { return fmt::format("{}", value); };
  return {"python",         "scripts/gr00t_finetune.py",
          "--dataset-path", spec.inputs[0],
          "--output-dir",   spec.output,
          "--num-gpus",     number(spec.gpus_per_node),
          "--batch-size",   number(spec.batch_size),
          "--max-steps",    number(spec.max_steps),
          "--save-steps",   number(spec.save_steps),
          "--resume"};
}

Status check_spec(const JobSpec& spec) {
  const auto need = [](bool given, std::string_view flag, std::string_view what) -> Status {
    if (given) return {};
    return fail(ErrorCode::kInvalidArgument, "{} is missing: {}", flag, what);
  };
  RETURN_IF_ERROR(need(spec.log_dir.starts_with('/'), "--log-dir", "the whole path of a folder that every node sees"));
  if (spec.kind == JobKind::kTrain) RETURN_IF_ERROR(need(!spec.command.empty(), "COMMAND", "what to run, behind --"));
  if (has_torchrun(spec) && spec.command[0].starts_with("python")) {
    return fail(ErrorCode::kInvalidArgument, "COMMAND: torchrun takes the script and its arguments, without {}",
                spec.command[0]);
  }
  if (spec.kind == JobKind::kGroot && spec.command.empty()) {
    RETURN_IF_ERROR(need(!spec.inputs.empty(), "--input", "the LeRobot dataset"));
    RETURN_IF_ERROR(need(!spec.output.empty(), "--output", "the folder of the checkpoints"));
  }
  if (spec.kind == JobKind::kGroot && spec.nodes > 1)
    return fail(ErrorCode::kInvalidArgument, "--nodes: the fine-tuning script of GR00T runs on one node");
  if (spec.kind == JobKind::kStorage)
    RETURN_IF_ERROR(need(spec.folder.starts_with('/'), "--folder", "the whole path of the shared folder to test"));
  if (spec.kind == JobKind::kPreprocess) {
    RETURN_IF_ERROR(need(!spec.inputs.empty(), "--input", "raw text, as millrace prepare takes it"));
    RETURN_IF_ERROR(need(!spec.tokenizer.empty(), "--tokenizer", "a tokenizer.json"));
    RETURN_IF_ERROR(need(!spec.output.empty(), "--output", "where the shards go"));
  }
  const bool needs_gpus =
      spec.kind != JobKind::kTrain && spec.kind != JobKind::kPreprocess && spec.kind != JobKind::kStorage;
  if (needs_gpus) RETURN_IF_ERROR(need(spec.gpus_per_node > 0, "--gpus", "how many GPUs a node has"));
  if (!parse_time_limit(spec.time))
    return fail(ErrorCode::kInvalidArgument, "--time: '{}' is no time limit; write minutes, HH:MM:SS or D-HH:MM:SS",
                spec.time);
  for (const std::string& each :
       {job_name(spec), spec.partition, spec.account, spec.log_dir, spec.image, spec.output}) {
    if (each.find_first_of("\n\r") != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "a line's end in '{}'", each);
  }
  return {};
}

}  // namespace

std::string shell_quoted(std::string_view text) {
  constexpr std::string_view kSafe = "-._/:=,@%+^";
  const bool safe = !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kSafe.find(c) != std::string_view::npos;
  });
  if (safe) return std::string(text);
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + '\'';
}

Result<std::string> write_job(const JobSpec& wanted) {
  RETURN_IF_ERROR(check_spec(wanted));
  JobSpec spec = wanted;
  if (spec.kind == JobKind::kGroot && spec.command.empty()) spec.command = groot_command(spec);
  ScriptText out;
  write_header(spec, out);
  switch (spec.kind) {
    case JobKind::kTrain:
    case JobKind::kGroot:
      write_training(spec, out);
      break;
    case JobKind::kPreprocess:
      write_preprocess(spec, out);
      break;
    case JobKind::kValidate:
      write_validation(spec, out);
      break;
    case JobKind::kNccl:
      write_nccl(spec, out);
      break;
    case JobKind::kStorage:
      write_storage_test(spec, out);
      break;
  }
  return out.take();
}

}  // namespace millrace::cluster
