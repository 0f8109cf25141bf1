// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/new.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/jobs/container_image.h"
#include "millrace/jobs/script.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/groot_guide.h"
#include "millrace/slurm/options.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

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

bool is_training(const JobSpec& spec) {
  return spec.kind == JobKind::kTrain || spec.kind == JobKind::kGroot;
}

// One task per node for programs that start their processes themselves, else one per GPU.
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
    out.option(spec.gpus_per_node > 0 ? "mem-per-gpu" : "mem", *slurm_memory(spec.mem_per_gpu));
  } else if (array) {
    // prepare needs 256 MiB and 64 MiB per thread, plus the tokenizer when its vocabulary is large.
    out.option("mem", fmt::format("{}G", 2 + cpus_per_task(spec) / 8));
  }
  if (is_training(spec) && spec.signal_s == 0) out.line("# millrace: ignore SB07 -- no signal was asked for");
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
  if (array && spec.tasks > kDefaultArrayTasks) {
    out.line(fmt::format("# sbatch takes more than {} tasks only where MaxArraySize of slurm.conf is raised:",
                         kDefaultArrayTasks));
    out.line("#     scontrol show config | grep MaxArraySize");
  }
  out.line("set -euo pipefail");
  out.line("");
}

}  // namespace

void ScriptText::option(std::string_view name, std::string_view value) {
  text_ += fmt::format("#SBATCH --{}{}{}\n", name, value.empty() ? "" : "=", option_value(value));
}

Launcher launcher_of(const JobSpec& spec) {
  if (spec.torchrun) return Launcher::kTorchrun;
  return spec.kind == JobKind::kGroot ? Launcher::kSingle : Launcher::kSrun;
}

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

namespace {

// Whether `path` lies below the DST of a mount "SRC:DST[:FLAGS]".
bool is_mounted(std::string_view mount, std::string_view path) {
  const size_t colon = mount.find(':');
  std::string_view shown = colon == std::string_view::npos ? mount : mount.substr(colon + 1);
  shown = shown.substr(0, shown.find(':'));
  return path == shown || (path.starts_with(shown) && path[shown.size()] == '/');
}

}  // namespace

std::string container_flags(const JobSpec& spec, std::string_view also) {
  if (spec.image.empty()) return {};
  std::string mounts;
  bool mounted = also.empty();
  for (const std::string& mount : spec.mounts) {
    mounts += (mounts.empty() ? "" : ",") + mount;
    mounted = mounted || is_mounted(mount, also);
  }
  if (!mounted) mounts += fmt::format("{}{}:{}", mounts.empty() ? "" : ",", also, also);
  const std::string with_mounts = mounts.empty() ? "" : " --container-mounts=" + shell_quoted(mounts);
  return " --container-image=" + shell_quoted(with_registry_mark(spec.image)) + with_mounts;
}

void write_staging(const JobSpec& spec, ScriptText& out) {
  if (spec.stage.empty()) return;
  out.line("# To every node; what is there already is left alone.");
  for (const Copy& copy : spec.stage) {
    out.line(fmt::format("{} {} \\\n  millrace sync {} {}", kOnEachNode, kStepCpus, shell_quoted(copy.source),
                         shell_quoted(copy.target)));
  }
  out.line("");
}

namespace {

void write_preprocess(const JobSpec& spec, ScriptText& out) {
  out.line(
      "# A task that is run again goes on where it was. When all have ended, one short job joins what they recorded:");
  out.line(fmt::format(
      "#     sbatch --dependency=afterok:ID --kill-on-invalid-dep=yes --time=30 --wrap 'millrace prepare --finish {}'",
      spec.output));
  write_staging(spec, out);
  out.line(fmt::format("srun {}{} \\", kStepCpus, container_flags(spec)));
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
  out.line(fmt::format("  {} {} --label \"$@\" || failed=1", kOnEachNode, kStepCpus));
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
  out.line(fmt::format("  srun --mpi=pmix {}{} \\", kStepCpus, container_flags(spec)));
  out.line("    \"${NCCL_TESTS:-/opt/nccl-tests/build}/${test}_perf\" -b 8 -e 4G -f 2 -g 1 -n 50 || failed=1");
  out.line("done");
  out.line("exit \"$failed\"");
}

// Each task works on the files of the next task, which is on another node where there are several.
constexpr std::string_view kStorageFunctions =
    R"sh(# Random, as file systems that compress (LZ4 on Lustre) write zeros in no time. Where there is openssl a core makes
# gigabytes a second, else some hundred megabytes.
# shellcheck disable=SC2317  # called in the tasks
random_bytes() {
  if command -v openssl >/dev/null; then
    openssl enc -aes-128-ctr -nosalt -K "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" -iv 0 </dev/zero 2>/dev/null
  else
    cat /dev/urandom
  fi
}
# shellcheck disable=SC2317
storage_task() {  # write|read|create|stat|remove FOLDER DIRECT BLOCKS FILES: one task's part; prints nanoseconds
  local mine=$2/$SLURM_PROCID next=$2/$(((SLURM_PROCID + 1) % SLURM_NTASKS)) begin i
  begin=$(date +%s%N)
  case $1 in
    write) random_bytes | dd of="$mine" bs=4M count="$4" iflag=fullblock ${3:+oflag="$3"} conv=fsync status=none ;;
    read) dd if="$next" of=/dev/null bs=4M ${3:+iflag="$3"} status=none ;;
    create) mkdir "$mine.files" && for ((i = 0; i < $5; ++i)); do : >"$mine.files/$i" || return; done ;;
    stat) for ((i = 0; i < $5; ++i)); do [ -f "$next.files/$i" ] || return; done ;;
    remove) rm -r "$mine.files" ;;
  esac || return
  echo $(($(date +%s%N) - begin))
}
export -f random_bytes storage_task
)sh";

constexpr std::string_view kStorageMeasure = R"sh(# All tasks at once; the slowest counts.
measure() {  # measure WHAT AMOUNT UNIT
  # shellcheck disable=SC2016  # the names are the task's
  srun STEP_CPUS bash -c 'storage_task "$@"' storage "$1" "$folder" "$direct" BLOCKS FILES |
    awk -v what="$1" -v amount="$2" -v unit="$3" '
      $1 > ns { ns = $1 }
      END { if (ns > 0) printf "%-6s %d %s in %.2f s: %.1f %s/s\n", what, amount, unit, ns / 1e9, amount * 1e9 / ns, unit }'
}
echo "$SLURM_NTASKS tasks on $SLURM_JOB_NUM_NODES nodes, ${direct:-through the page cache}"
measure write $((SLURM_NTASKS * MIB)) MiB
measure read $((SLURM_NTASKS * MIB)) MiB
for what in create stat remove; do measure "$what" $((SLURM_NTASKS * FILES)) files; done
)sh";

void write_storage_test(const JobSpec& spec, ScriptText& out) {
  constexpr int64_t kBlockMib = 4;
  out.line(fmt::format("folder={}/millrace-storage-test-$SLURM_JOB_ID", shell_quoted(spec.folder)));
  out.line("mkdir \"$folder\"");
  out.line("trap 'rm -r \"$folder\"' EXIT");
  out.line("# Past the page cache where the file system can.");
  out.line("direct=direct");
  out.line("dd if=/dev/zero of=\"$folder/probe\" bs=4096 count=1 oflag=direct status=none 2>/dev/null || direct=");
  out.line("");
  out.lines(kStorageFunctions);
  out.line("");
  const int64_t blocks = std::max<int64_t>(1, spec.file_mib / kBlockMib);
  const std::pair<std::string_view, std::string> values[] = {{"STEP_CPUS", std::string(kStepCpus)},
                                                             {"BLOCKS", std::to_string(blocks)},
                                                             {"MIB", std::to_string(blocks * kBlockMib)},
                                                             {"FILES", std::to_string(spec.files)}};
  std::string text(kStorageMeasure);
  for (const auto& [name, value] : values) text = replaced(text, name, value);
  out.lines(text);
}

// How a step of the global batch is divided: `count` times `samples` on each GPU.
struct MicroBatches {
  int64_t count = 1, samples = 0;
  std::string why;  // a comment; empty when nothing is divided
};

// What a GPU of this type should hold; nullopt where the catalogue or the plan does not say.
std::optional<int64_t> recommended_batch(const std::string& gpu_type) {
  const auto gpu = plan::find_gpu(gpu_type);
  if (gpu_type.empty() || !gpu) return std::nullopt;
  const auto batches = plan::plan_batch(plan::groot_guide_model(), gpu->memory_mib.value / 1024);
  if (!batches) return std::nullopt;
  for (const plan::Level& level : batches->levels) {
    if (level.name == "recommended" && level.batch_low > 0) return level.batch_low;
  }
  return std::nullopt;
}

// The fewest parts that divide it evenly and that a GPU holds.
MicroBatches micro_batches(const JobSpec& spec) {
  MicroBatches out{.samples = spec.global_batch_size / std::max<int64_t>(1, spec.gpus_per_node)};
  const auto planned = spec.micro_batch_size > 0 ? std::nullopt : recommended_batch(spec.gpu_type);
  const int64_t most = spec.micro_batch_size > 0 ? spec.micro_batch_size : planned.value_or(out.samples);
  const int64_t all = out.samples;
  while (all % out.count != 0 || all / out.count > most) ++out.count;
  out.samples = all / out.count;
  if (out.count == 1) return out;
  out.why = fmt::format("# {} samples a step: {} times {} on each of {} GPUs", spec.global_batch_size, out.count,
                        out.samples, spec.gpus_per_node);
  if (planned) {
    out.why += fmt::format("; {} is what `millrace plan batch --gpu {} --preset {}` recommends", *planned,
                           spec.gpu_type, plan::kGrootGuidePreset);
  }
  return out;
}

bool is_n15(const JobSpec& spec) {
  return spec.groot_version == "1.5";
}

std::string base_model(const JobSpec& spec) {
  return spec.base_model.empty() ? fmt::format("nvidia/GR00T-N{}-3B", spec.groot_version) : spec.base_model;
}

// N1.5's script starts torchrun itself. With --resume it stops where there is no checkpoint, so the flag is given only
// where there is one: the words before the script's are a small program.
std::vector<std::string> n15_command(const JobSpec& spec) {
  constexpr const char* kResume =
      "import glob, os, sys; out, *command = sys.argv[1:]; found = glob.glob(glob.escape(out) + \"/checkpoint-*/\"); "
      "os.execvp(command[0], command + [\"--resume\"] * bool(found))";
  const auto number = [](int64_t value) { return fmt::format("{}", value); };
  return {"python3",
          "-c",
          kResume,
          spec.output,
          "python3",
          "scripts/gr00t_finetune.py",
          "--base-model-path",
          base_model(spec),
          "--dataset-path",
          spec.inputs[0],
          "--data-config",
          spec.data_config,
          "--embodiment-tag",
          spec.embodiment,
          "--output-dir",
          spec.output,
          "--num-gpus",
          number(spec.gpus_per_node),
          "--batch-size",
          number(spec.global_batch_size / std::max<int64_t>(1, spec.gpus_per_node)),
          "--max-steps",
          number(spec.max_steps),
          "--save-steps",
          number(spec.save_steps)};
}

// The fine-tuning command of Isaac-GR00T on one node. N1.6 and N1.7: torchrun for several GPUs, python alone for one,
// which its README does.
std::vector<std::string> groot_command(const JobSpec& spec) {
  if (is_n15(spec)) return n15_command(spec);
  const MicroBatches micro = micro_batches(spec);
  const auto number = [](int64_t value) { return fmt::format("{}", value); };
  std::vector<std::string> command;
  if (spec.gpus_per_node == 1) command.emplace_back("python3");
  for (const std::string& word : std::initializer_list<std::string>{
           "gr00t/experiment/launch_finetune.py", "--base-model-path", base_model(spec), "--dataset-path",
           spec.inputs[0], "--embodiment-tag", spec.embodiment, "--output-dir", spec.output, "--num-gpus",
           number(spec.gpus_per_node), "--global-batch-size", number(spec.global_batch_size / micro.count),
           "--max-steps", number(spec.max_steps), "--save-steps", number(spec.save_steps)}) {
    command.push_back(word);
  }
  if (micro.count > 1) {
    command.emplace_back("--gradient-accumulation-steps");
    command.push_back(number(micro.count));
  }
  if (!spec.modality_config.empty()) {
    command.emplace_back("--modality-config-path");
    command.push_back(spec.modality_config);
  }
  return command;
}

// Before GPUs wait for it: what that version refuses or, worse, takes.
void write_groot_checks(const JobSpec& spec, ScriptText& out) {
  if (const MicroBatches micro = micro_batches(spec); !micro.why.empty()) out.line(micro.why);
  if (!spec.modality_config.empty()) {
    out.line(fmt::format("[ -f {0} ] || {{ echo {0}': this file of --modality-config is missing' >&2; exit 1; }}",
                         shell_quoted(spec.modality_config)));
  }
  out.line("# Metadata, footers and indexes, no rows; an error ends the job.");
  out.line("if command -v millrace >/dev/null; then");
  out.line(fmt::format("  millrace lerobot validate {} --groot --groot-version {} --quick",
                       shell_quoted(spec.inputs[0]), spec.groot_version));
  out.line("else");
  out.line("  echo 'millrace is not on this node: the dataset is not checked' >&2");
  out.line("fi");
  out.line("");
}

Status need(bool given, std::string_view flag, std::string_view what) {
  if (given) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is missing: {}", flag, what);
}

Status check_torchrun_command(const std::string& first) {
  if (first.starts_with("python"))
    return fail(ErrorCode::kInvalidArgument, "COMMAND: torchrun takes the script and its arguments, without {}", first);
  if (first.starts_with('-') && first != "-m")
    return fail(ErrorCode::kInvalidArgument,
                "COMMAND: {} stands where the script should; begin with the script, or with -m MODULE", first);
  return {};
}

Status check_torchrun_options(const JobSpec& spec) {
  const char* given = !spec.numa_binding.empty()        ? "--numa-binding"
                      : !spec.event_log_handler.empty() ? "--event-log-handler"
                      : spec.virtual_local_rank         ? "--virtual-local-rank"
                                                        : nullptr;
  if (given == nullptr) return {};
  if (spec.kind != JobKind::kTrain || !spec.torchrun)
    return fail(ErrorCode::kInvalidArgument, "{}: an option of torchrun, which starts the processes of train only",
                given);
  if (!spec.numa_binding.empty() && spec.gpus_per_node == 0)
    return fail(ErrorCode::kInvalidArgument, "--numa-binding: processes are bound to the CPUs near their GPUs");
  return {};
}

// The version's own flags, and what N1.5 has none for.
Status check_groot_version(const JobSpec& spec) {
  if (!is_n15(spec)) {
    if (spec.data_config.empty()) return {};
    return fail(ErrorCode::kInvalidArgument, "--data-config: it is of --groot-version 1.5; {} takes --modality-config",
                spec.groot_version);
  }
  if (!spec.modality_config.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--modality-config: it is of 1.6 and 1.7; 1.5 takes --data-config");
  }
  RETURN_IF_ERROR(need(!spec.data_config.empty(), "--data-config",
                       "the name of the robot's data in N1.5's DATA_CONFIG_MAP, such as so100"));
  const MicroBatches micro = micro_batches(spec);
  if (micro.count == 1) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      "--global-batch-size: {} samples are {} on each of {} GPUs, too many at once, and N1.5 cannot accumulate; "
      "write {} or less, or --micro-batch-size if they hold more",
      spec.global_batch_size, spec.global_batch_size / spec.gpus_per_node, spec.gpus_per_node,
      micro.samples * spec.gpus_per_node);
}

Status check_groot(const JobSpec& spec) {
  if (spec.nodes > 1)
    return fail(ErrorCode::kInvalidArgument, "--nodes: the fine-tuning script of GR00T runs on one node");
  if (!spec.command.empty()) return {};
  RETURN_IF_ERROR(need(!spec.inputs.empty(), "--input", "the LeRobot dataset, in version 2 with its modality.json"));
  RETURN_IF_ERROR(need(!spec.output.empty(), "--output", "the folder of the checkpoints"));
  RETURN_IF_ERROR(need(!spec.embodiment.empty(), "--embodiment",
                       "the robot, as Isaac-GR00T names it; new_embodiment for one of your own"));
  if (equal_ignoring_case(spec.embodiment, "new_embodiment") && !is_n15(spec))
    RETURN_IF_ERROR(need(!spec.modality_config.empty(), "--modality-config",
                         "the Python file that registers the new embodiment's cameras, states and actions"));
  if (spec.gpus_per_node > 0 && spec.global_batch_size % spec.gpus_per_node != 0)
    return fail(ErrorCode::kInvalidArgument, "--global-batch-size: {} samples cannot be divided among {} GPUs",
                spec.global_batch_size, spec.gpus_per_node);
  return check_groot_version(spec);
}

Status check_spec(const JobSpec& spec) {
  RETURN_IF_ERROR(need(spec.log_dir.starts_with('/'), "--log-dir", "the whole path of a folder that every node sees"));
  RETURN_IF_ERROR(check_header(spec));
  if (spec.kind == JobKind::kTrain) RETURN_IF_ERROR(need(!spec.command.empty(), "COMMAND", "what to run, behind --"));
  if (spec.kind == JobKind::kTrain && spec.torchrun) RETURN_IF_ERROR(check_torchrun_command(spec.command[0]));
  RETURN_IF_ERROR(check_torchrun_options(spec));
  if (spec.kind == JobKind::kGroot) RETURN_IF_ERROR(check_groot(spec));
  if (spec.max_restarts > 0 && spec.signal_s == 0)
    return fail(ErrorCode::kInvalidArgument, "--max-restarts: a job without --signal is not requeued");
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
  if (!slurm::parse_time_limit(spec.time))
    return fail(ErrorCode::kInvalidArgument, "--time: '{}' is not a time limit; write minutes, HH:MM:SS or D-HH:MM:SS",
                spec.time);
  for (const std::string& each :
       {job_name(spec), spec.partition, spec.account, spec.log_dir, spec.image, spec.output, spec.event_log_handler}) {
    if (each.find_first_of("\n\r") != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "a line's end in '{}'", each);
  }
  return {};
}

}  // namespace

std::string replaced(std::string_view text, std::string_view what, std::string_view with) {
  std::string out(text);
  for (size_t at = out.find(what); at != std::string::npos; at = out.find(what, at + with.size()))
    out.replace(at, what.size(), with);
  return out;
}

Status check_header(const JobSpec& spec) {
  constexpr int64_t kLongestSignal = 65535;
  if (spec.name.find('/') != std::string::npos)
    return fail(ErrorCode::kInvalidArgument,
                "--name: with the '/' in '{}' the log would go to a folder that Slurm does not make", spec.name);
  if (spec.log_dir.find('%') != std::string::npos)
    return fail(ErrorCode::kInvalidArgument,
                "--log-dir: Slurm makes no folder, so {} cannot hold what it replaces (%); the log's name has the "
                "number of the job",
                spec.log_dir);
  if (spec.gpu_type.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
          std::string::npos ||
      parse_whole(spec.gpu_type))
    return fail(ErrorCode::kInvalidArgument, "--gpu-type: '{}' is no type such as h200; --gpus gives the number",
                spec.gpu_type);
  if (spec.signal_s > kLongestSignal)
    return fail(ErrorCode::kInvalidArgument, "--signal: sbatch takes at most {} seconds before the limit",
                kLongestSignal);
  if (!spec.mounts.empty() && spec.image.empty())
    return fail(ErrorCode::kInvalidArgument, "--mount: it is of a container, and there is no --image");
  if (!spec.mem_per_gpu.empty()) {
    if (const auto memory = slurm_memory(spec.mem_per_gpu); !memory) {
      return fail(ErrorCode::kInvalidArgument, "--mem: {}", memory.error().message());
    }
  }
  return {};
}

Result<std::string> slurm_memory(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  const bool has_unit = !text.empty() && kUnits.find(upper_case(text.substr(text.size() - 1))) != kUnits.npos;
  if (const auto count = parse_whole(has_unit ? text.substr(0, text.size() - 1) : text); count && *count > 0)
    return upper_case(text);
  ASSIGN_OR_RETURN(int64_t amount, parse_bytes(text));
  if (amount == 0) return fail(ErrorCode::kInvalidArgument, "'{}' is no memory", text);
  amount = (amount + 1023) / 1024;
  size_t unit = 0;
  for (; unit + 1 < kUnits.size() && amount % 1024 == 0; ++unit) amount /= 1024;
  return fmt::format("{}{}", amount, kUnits[unit]);
}

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

namespace {

Status choose_partition(JobSpec& spec, const ClusterFacts& cluster, const ClusterFacts::Partition*& out) {
  out = nullptr;
  std::string names;
  for (const ClusterFacts::Partition& each : cluster.partitions) {
    names += (names.empty() ? "" : ", ") + each.name;
    if (each.name == spec.partition || (spec.partition.empty() && cluster.partitions.size() == 1)) out = &each;
  }
  if (out == nullptr && !spec.partition.empty())
    return fail(ErrorCode::kInvalidArgument, "--partition: {} has no partition {}; it has {}", cluster.source,
                spec.partition, names);
  return {};
}

}  // namespace

Status fit_to_cluster(JobSpec& spec, const ClusterFacts& cluster, Chosen chosen) {
  const ClusterFacts::Partition* partition = nullptr;
  RETURN_IF_ERROR(choose_partition(spec, cluster, partition));
  if (partition == nullptr) return {};
  if (partition->nodes > 0 && spec.nodes > partition->nodes)
    return fail(ErrorCode::kInvalidArgument, "--nodes: {} has {} nodes in {}, not {}", cluster.source, partition->nodes,
                partition->name, spec.nodes);
  spec.wait_all_nodes = spec.wait_all_nodes || (partition->dynamic && spec.nodes > 1);
  if (!partition->known_instance) return {};
  const bool wants_gpus = spec.gpus_per_node > 0;
  if (wants_gpus && !chosen.gpus && partition->gpus > 0) spec.gpus_per_node = partition->gpus;
  if (wants_gpus && spec.gpu_type.empty()) spec.gpu_type = partition->gpu_type;
  spec.efa = spec.efa || partition->efa_interfaces > 0;
  if (chosen.cpus || partition->cpus == 0) return {};
  const int64_t share = partition->cpus / std::max<int64_t>(1, wants_gpus ? partition->gpus : 1);
  spec.cpus_per_gpu = spec.exclusive || wants_gpus ? share : std::min(spec.cpus_per_gpu, share);
  return {};
}

Result<std::string> write_job(const JobSpec& wanted) {
  RETURN_IF_ERROR(check_spec(wanted));
  JobSpec spec = wanted;
  if (spec.kind == JobKind::kGroot) {
    spec.torchrun = spec.command.empty() && spec.gpus_per_node > 1 && !is_n15(spec);
    if (spec.command.empty()) spec.command = groot_command(spec);
  }
  ScriptText out;
  write_header(spec, out);
  switch (spec.kind) {
    case JobKind::kTrain:
    case JobKind::kGroot:
      if (wanted.kind == JobKind::kGroot && wanted.command.empty()) write_groot_checks(spec, out);
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

}  // namespace millrace::jobs
