// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/env_lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/jobs/checks.h"
#include "millrace/jobs/suppressions.h"

namespace millrace::jobs {

namespace {

constexpr std::string_view kEnvModule = "env";

constexpr Rule kEnvRules[] = {
    {"EN01", Severity::kError, kEnvModule,
     "some program reads every NCCL_, FI_EFA_, OFI_NCCL_ and TORCH_NCCL_ variable",
     "A name that no program reads has no effect, and no message says so.", "Correct the name, or remove it.",
     "NCCL 2.30.7, aws-ofi-nccl and libfabric sources; PyTorch documentation"},
    {"EN02", Severity::kWarning, kEnvModule, "no variable is set that was removed or is deprecated",
     "Newer versions ignore it, or will.", "Use what replaced it.", "NCCL user guide"},
    {"EN03", Severity::kWarning, kEnvModule, "channels are not forced: at most 64, and at most 32 over EFA",
     "NCCL clamps at 64 channels, each of which takes an SM from the training and cuts messages into smaller pieces, "
     "which EFA carries badly.",
     "Leave it unset.", "NCCL source (MAXCHANNELS); AWS EFA notes"},
    {"EN04", Severity::kWarning, kEnvModule, "NCCL_ALGO and NCCL_PROTO are left to the tuner",
     "A fixed list excludes the algorithms of newer hardware (NVLS, NVLSTree, CollNet, PAT) and the plugin's choice.",
     "Leave it unset.", "NCCL user guide"},
    {"EN05", Severity::kWarning, kEnvModule, "buffer sizes are a power of two, and not above what the plugin sets",
     "16 MiB for each channel and peer takes gigabytes of GPU memory from each communicator.",
     "Leave it unset: aws-ofi-nccl sets 8 MiB and 512 KiB where that helps.", "aws-ofi-nccl source (platform-aws)"},
    {"EN06", Severity::kWarning, kEnvModule, "network interfaces are excluded, not listed",
     "Names differ between instance types and systems (ens32, enp71s0), and a list without a match leaves no interface "
     "at all.",
     "Write NCCL_SOCKET_IFNAME=^docker,lo,veth.", "NCCL user guide; NVIDIA/nccl#526, #1597"},
    {"EN07", Severity::kError, kEnvModule, "NCCL_DEBUG_FILE names a different file for each process",
     "NCCL replaces only %h and %p. With any other pattern all ranks truncate one file.", "Write nccl.%h.%p.log.",
     "NCCL source (debug.cc)"},
    {"EN08", Severity::kError, kEnvModule, "RDMAV_ variables are not set",
     "RDMAV_FORK_SAFE and RDMAV_HUGEPAGES_SAFE change how memory is registered, and break or slow EFA.",
     "Remove it; FI_EFA_USE_HUGE_PAGE=0 is what loaders that fork need.", "AWS EFA notes"},
    {"EN09", Severity::kNote, kEnvModule, "no setting is kept that no longer has an effect",
     "Old installers needed it. Now it has no effect, or it hides the real problem.", "Remove it.",
     "aws-ofi-nccl and libfabric release notes; AWS EFA notes"},
    {"EN10", Severity::kWarning, kEnvModule, "no debugging setting switches a transport off",
     "NCCL then copies through host memory or sockets, many times slower.", "Remove it.", "NCCL user guide"},
    {"EN11", Severity::kWarning, kEnvModule, "levels are words, not numbers",
     "The numbers of NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL changed their meaning between versions.",
     "Leave it unset, or write LOC, NVL, PIX, PXB, PHB or SYS.", "NCCL user guide"},
    {"EN12", Severity::kWarning, kEnvModule, "NCCL_DEBUG is WARN on many nodes",
     "INFO writes several hundred lines per rank into one log, at start-up when the file system is busiest.",
     "Write NCCL_DEBUG=WARN.", "AWS EFA notes"},
    {"EN13", Severity::kWarning, kEnvModule, "torch's own switches have their TORCH_ prefix",
     "torch 2.2 renamed NCCL_ASYNC_ERROR_HANDLING and similar variables. The old names warn, and will be removed.",
     "Put TORCH_ before it.", "PyTorch documentation"},
    {"EN14", Severity::kError, kEnvModule, "RANK, LOCAL_RANK and WORLD_SIZE are not exported by the batch shell",
     "Every task gets the same value: all of them believe that they are rank 0.",
     "Set them inside the task, from SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS, or use torchrun.",
     "Slurm 22.05, reproduced"},
    {"EN15", Severity::kWarning, kEnvModule, "CUDA_VISIBLE_DEVICES is left to Slurm",
     "A manual value overrides the allocation: on a shared node the job uses its neighbour's GPUs.", "Remove it.",
     "Slurm 22.05, reproduced"},
    {"EN16", Severity::kError, kEnvModule, "no secret stands in a script",
     "Scripts are copied and committed, and `scontrol show job` shows them to everybody.",
     "Read it from a file that only you can read, or export it before sbatch.", "Millrace"},
    {"EN17", Severity::kWarning, kEnvModule, "EFA settings are for nodes with EFA",
     "FI_PROVIDER=efa on a type without EFA finds no provider, and NCCL fails or falls back to sockets.",
     "Remove them for this partition.", "AWS EC2 documentation"},
    {"EN18", Severity::kWarning, kEnvModule, "paths of the OFI plugin are those of the current installer",
     "Newer images have it below /opt/amazon/ofi-nccl; a path that is not there silently means no plugin, or an old "
     "one.",
     "Leave the plugin and tuner to the image.", "aws-ofi-nccl source (platform-aws)"},
};

struct Look {
  const EnvVariable& variable;
  const EnvContext& context;
  FindingReport& report;
  std::string text() const { return variable.value.value_or(""); }
  bool is(std::string_view name) const { return variable.name == name; }
  void add(std::string_view id, std::string message, std::string fix = {},
           std::optional<Severity> severity = {}) const {
    report.add(id, variable.place, std::move(message), std::move(fix), severity);
  }
};

bool is_any_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_old_torch_name(std::string_view name) {
  return is_any_of(name,
                   {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING"});
}

// EN01, EN02, EN13
void check_name(const Look& look) {
  const std::string& name = look.variable.name;
  if (is_old_torch_name(name))
    return look.add("EN13", fmt::format("{} has been renamed", name), fmt::format("Write TORCH_{}.", name));
  if (!is_table_prefix(name)) return;
  const EnvName* known = find_env_name(name);
  if (known == nullptr) {
    if (look.variable.expanded) return;  // the script itself
    const std::string_view nearest = nearest_env_name(name);
    const std::string fix = name == "NCCL_COMM_TIMEOUT_SECONDS"
                                ? "The timeout is init_process_group(timeout=...) of torch."
                            : nearest.empty() ? ""
                                              : fmt::format("Write {}, if that is meant.", nearest);
    // Without a similar known name, it may belong to a plug-in that is unknown here.
    return look.add("EN01", fmt::format("nothing reads {}", name), fix,
                    fix.empty() ? std::optional(Severity::kWarning) : std::nullopt);
  }
  if (!known->gone.empty())
    look.add("EN02", fmt::format("{}: {}", name, known->gone), fmt::format("Use {}.", known->use_instead));
}

void check_channels(const Look& look) {
  if (!is_any_of(look.variable.name, {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
                                      "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"}))
    return;
  constexpr int64_t kMost = 64, kMostOverEfa = 32;
  const int64_t count = parse_whole(look.text()).value_or(0);
  if (count > kMost) {
    look.add("EN03", fmt::format("{} channels: NCCL has at most {}", count, kMost));
  } else if (look.context.efa && count > kMostOverEfa) {
    look.add("EN03", fmt::format("{} channels over EFA, which wants fewer and larger messages", count));
  }
}

void check_pinned(const Look& look) {
  if (!is_any_of(look.variable.name, {"NCCL_ALGO", "NCCL_PROTO"})) return;
  look.add("EN04", fmt::format("{}={} shuts all others out", look.variable.name, look.variable.written));
}

void check_buffers(const Look& look) {
  const bool buffer = look.is("NCCL_BUFFSIZE");
  if (!buffer && !look.is("NCCL_P2P_NET_CHUNKSIZE")) return;
  const int64_t most = buffer ? 8 << 20 : 512 << 10;
  const int64_t size = parse_whole(look.text()).value_or(0);
  if (size > most && (buffer || look.context.efa)) {
    look.add("EN05", fmt::format("{} bytes, and the plugin's own value is {}", size, most));
  } else if (size > 0 && (size & (size - 1)) != 0) {
    look.add("EN05", fmt::format("{} is not a power of two", size));
  }
}

void check_interfaces(const Look& look) {
  if (!look.is("NCCL_SOCKET_IFNAME") && !look.is("NCCL_IB_HCA") && !look.is("GLOO_SOCKET_IFNAME")) return;
  const std::string value = look.text();
  std::string_view rest = value;
  if (rest.starts_with('^')) return;  // those that are left out
  if (rest.starts_with('=')) rest.remove_prefix(1);
  bool classic = !rest.empty();
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    classic = classic && one.starts_with("eth");
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  if (classic) look.add("EN06", fmt::format("{} is a name that newer instance types and systems do not have", value));
}

void check_debug_file(const Look& look) {
  if (!look.is("NCCL_DEBUG_FILE")) return;
  const std::string value = look.variable.value.value_or(look.variable.written);
  if (is_any_of(value, {"/dev/stdout", "/dev/stderr", "stdout", "stderr"})) return;
  if (!look.variable.in_batch && contains(value, "$")) return;  // a task's own name
  for (size_t at = value.find('%'); at != std::string::npos; at = value.find('%', at + 2)) {
    const char token = at + 1 < value.size() ? value[at + 1] : ' ';
    if (token != 'h' && token != 'p' && token != '%')
      return look.add("EN07", fmt::format("%{} stays as it is, so all ranks write one file", token));
  }
  if (!contains(value, "%p")) look.add("EN07", "all processes of a node write one file");
}

void check_rdmav(const Look& look) {
  if (look.variable.name.starts_with("RDMAV_")) look.add("EN08", fmt::format("{} is set", look.variable.name));
}

struct Idle {
  std::string_view name, value, why;  // value "": any
};
constexpr Idle kIdle[] = {
    {"FI_PROVIDER", "efa", "plugins since 1.6 choose EFA themselves"},
    {"FI_EFA_USE_DEVICE_RDMA", "1", "libfabric 1.18 with plugin 1.7 and newer use RDMA wherever there is"},
    {"FI_EFA_FORK_SAFE", "", "the plugin sets it, and kernels since 5.15 do not need it"},
    {"FI_EFA_ENABLE_SHM_TRANSFER", "", "NCCL does not send within a node through libfabric"},
    {"NCCL_SOCKET_NTHREADS", "", "it is about TCP sockets, which EFA does not use"},
    {"NCCL_NSOCKS_PERTHREAD", "", "it is about TCP sockets, which EFA does not use"},
    {"NCCL_CROSS_NIC", "", "it is about rings that change the NIC between nodes, not about using several"},
    {"NCCL_P2P_LEVEL", "NVL", "with NVSwitch every pair is NVL already"},
    {"NCCL_NET_GDR_LEVEL", "PHB", "the plugin uses GPUDirect wherever the platform has it"},
};

void check_idle(const Look& look) {
  if (!look.context.efa) return;
  for (const Idle& each : kIdle) {
    if (look.is(each.name) && (each.value.empty() || look.text() == each.value))
      look.add("EN09", fmt::format("{} does nothing here: {}", each.name, each.why));
  }
}

void check_switched_off(const Look& look) {
  const bool off = is_any_of(look.variable.name, {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"}) ||
                   (look.is("NCCL_IB_DISABLE") && !look.context.efa);  // EFA is not InfiniBand
  if (off && look.text() == "1") look.add("EN10", fmt::format("{}=1 switches a fast way off", look.variable.name));
}

void check_levels(const Look& look) {
  if (!is_any_of(look.variable.name, {"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_PXN_LEVEL"}) ||
      look.is("NCCL_P2P_PXN_LEVEL"))
    return;
  if (parse_whole(look.text())) look.add("EN11", fmt::format("{}={}", look.variable.name, look.text()));
}

void check_debug_level(const Look& look) {
  constexpr int64_t kManyNodes = 16;
  const bool loud = look.is("NCCL_DEBUG") && is_any_of(look.text(), {"INFO", "TRACE"});
  if (loud && look.context.nodes > kManyNodes)
    look.add("EN12", fmt::format("NCCL_DEBUG={} on {} nodes", look.text(), look.context.nodes));
}

void check_ranks(const Look& look) {
  const std::string& name = look.variable.name;
  if (!look.variable.in_batch) return;
  if (name == "WORLD_SIZE") {
    look.add("EN14", "WORLD_SIZE of the batch shell is the job's, whatever the step has", {}, Severity::kWarning);
  } else if (is_any_of(name, {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"})) {
    look.add("EN14", fmt::format("{} is the same for all tasks", name));
  }
}

void check_devices(const Look& look) {
  if (look.variable.in_batch && look.is("CUDA_VISIBLE_DEVICES") && look.variable.value && !look.text().empty())
    look.add("EN15", fmt::format("CUDA_VISIBLE_DEVICES={}", look.text()));
}

bool is_secret_name(std::string_view name) {
  for (const std::string_view end :
       {"_TOKEN", "_API_KEY", "_SECRET", "_PASSWORD", "_SECRET_ACCESS_KEY", "_SECRET_KEY", "_PASSWD"}) {
    if (name.ends_with(end)) return true;
  }
  return is_any_of(name, {"HF_TOKEN", "PASSWORD", "AWS_SESSION_TOKEN", "WANDB_KEY"});
}

// "<Your Token>", "xxxx", "your_token_here", "changeme"
bool is_placeholder(std::string_view value) {
  const std::string lower = lower_case(value);
  for (const std::string_view sign : {"<", ">", " ", "your", "xxx", "changeme", "replace", "todo", "...", "***"}) {
    if (contains(lower, sign)) return true;
  }
  return false;
}

void check_secrets(const Look& look) {
  constexpr size_t kShortest = 8;  // what is shorter is a placeholder or a switch
  const bool literal = look.variable.in_script && look.variable.value && look.text().size() >= kShortest &&
                       !look.text().starts_with('/') && !is_placeholder(look.text());
  if (literal && is_secret_name(look.variable.name))
    look.add("EN16", fmt::format("the value of {} stands here in clear", look.variable.name));
}

void check_no_efa(const Look& look) {
  const bool efa = look.variable.name.starts_with("FI_EFA_") || (look.is("FI_PROVIDER") && look.text() == "efa");
  if (efa && look.context.has_efa == false)
    look.add("EN17", fmt::format("{} is set for {}, which has no EFA", look.variable.name, look.context.instance));
}

void check_plugin_path(const Look& look) {
  if (contains(look.variable.written, "/opt/aws-ofi-nccl"))
    look.add("EN18",
             fmt::format("{} leads to /opt/aws-ofi-nccl, where older installers put the plugin", look.variable.name));
}

// A variable of the script alone: a secret is one all the same, and one of NCCL's was meant to be exported.
void check_local(const Look& look) {
  check_secrets(look);
  const EnvName* known = is_table_prefix(look.variable.name) ? find_env_name(look.variable.name) : nullptr;
  if (known != nullptr && !look.variable.expanded)
    look.add("EN01", fmt::format("{} is set and not exported, so no program sees it", look.variable.name),
             fmt::format("Write export {}.", look.variable.name), Severity::kWarning);
}

constexpr void (*kEnvChecks[])(const Look&) = {
    check_name,    check_channels, check_pinned,       check_buffers,    check_interfaces,  check_debug_file,
    check_rdmav,   check_idle,     check_switched_off, check_levels,     check_debug_level, check_ranks,
    check_devices, check_secrets,  check_no_efa,       check_plugin_path};

// "A=1" of `env A=1 cmd` or `--export=ALL,A=1`.
void add_pair(std::string_view text, Place place, std::vector<EnvVariable>& out) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || !shell::is_name(text.substr(0, equals))) return;
  const std::string value(text.substr(equals + 1));
  out.push_back({std::string(text.substr(0, equals)), value, value, place, true, true});
}

void add_exports(const Options& options, std::vector<EnvVariable>& out) {
  const Option* option = options.find("export");
  if (option == nullptr) return;
  for (std::string_view rest = option->value; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    add_pair(one, option->place, out);
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
}

bool uses_efa(std::span<const EnvVariable> variables) {
  return std::any_of(variables.begin(), variables.end(), [](const EnvVariable& each) {
    return each.name.starts_with("FI_EFA_") || (each.name == "FI_PROVIDER" && each.value == "efa");
  });
}

std::vector<Rule> with_suppressions() {
  std::vector<Rule> all(std::begin(kEnvRules), std::end(kEnvRules));
  const auto more = suppression_rules();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

std::span<const Rule> env_rules() {
  return kEnvRules;
}

std::span<const Rule> all_env_rules() {
  static const std::vector<Rule> all = with_suppressions();
  return all;
}

std::vector<EnvVariable> variables_of(const Job& job) {
  std::vector<EnvVariable> out;
  for (const Definition& each : job.definitions()) {
    const shell::Assignment& assignment = *each.assignment;
    out.push_back({assignment.name, job.value(assignment.value), assignment.value.source, assignment.place, true,
                   job.is_batch() && !each.in_step && !each.prefix, each.exported || job.exports(assignment.name),
                   job.expands(assignment.name)});
  }
  add_exports(job.options(), out);
  for (const Launch& launch : job.launches()) add_exports(launch.options, out);
  for (const Command& command : job.commands()) {
    bool env = false;
    for (const shell::Word& word : command.statement->words) {
      if (base_name(word.source) == "env") {
        env = true;
      } else if (env && contains(word.text(), "=")) {
        add_pair(word.text(), word.place, out);
        out.back().in_batch = false;
      } else if (env && !word.source.starts_with('-')) {
        break;
      }
    }
  }
  return out;
}

std::optional<std::vector<EnvVariable>> parse_environment(std::string_view text) {
  std::vector<EnvVariable> out;
  int64_t number = 0, others = 0;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    ++number;
    const size_t equals = line.find('=');
    const bool pair =
        equals != std::string_view::npos && (shell::is_name(line.substr(0, equals)) || line.starts_with("BASH_FUNC_"));
    if (pair) {
      const std::string value(line.substr(equals + 1));
      out.push_back({std::string(line.substr(0, equals)), value, value, {number, 1}, false, false});
    } else if (!line.empty()) {
      ++others;  // a value of several lines; or this is not an environment
    }
  }
  if (out.empty() || others * 2 > number) return std::nullopt;
  return out;
}

std::vector<Finding> check_environment(std::string_view file, std::span<const EnvVariable> variables,
                                       const EnvContext& context) {
  FindingReport report(kEnvRules, std::string(file));
  EnvContext known = context;
  known.efa = context.efa || context.has_efa.value_or(false) || uses_efa(variables);
  for (const EnvVariable& variable : variables) {
    const Look look{variable, known, report};
    if (!variable.exported && !context.all_exported) {
      check_local(look);
      continue;
    }
    for (const auto check : kEnvChecks) check(look);
  }
  return report.take();
}

namespace {

// What a running environment says of itself: its size, and whether this is a task or the batch shell.
void read_running(std::vector<EnvVariable>& variables, EnvContext& context) {
  const auto find = [&](std::string_view name) -> const EnvVariable* {
    const auto found =
        std::find_if(variables.begin(), variables.end(), [&](const EnvVariable& each) { return each.name == name; });
    return found == variables.end() ? nullptr : &*found;
  };
  const EnvVariable* nodes = find("SLURM_JOB_NUM_NODES");
  if (nodes != nullptr && context.nodes == 0) context.nodes = parse_whole(*nodes->value).value_or(0);
  const bool batch = find("SLURM_JOB_ID") != nullptr && find("SLURM_STEP_ID") == nullptr;
  for (EnvVariable& each : variables)
    each.in_batch = batch && each.name != "CUDA_VISIBLE_DEVICES";  // Slurm itself sets that
}

// A script has blanks, quotes, comments or commands in its first lines; `env` has none.
bool looks_like_script(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line.starts_with('#') || line.starts_with("export ") || line.starts_with(' ') || line.starts_with('\t'))
      return true;
  }
  return false;
}

}  // namespace

std::vector<Finding> lint_environment(const ScriptFile& file, const EnvContext& context) {
  if (!looks_like_script(file.text)) {
    if (auto variables = parse_environment(file.text)) {
      EnvContext known = context;
      read_running(*variables, known);
      auto findings = check_environment(file.name, *variables, known);
      sort_findings(findings);
      return findings;
    }
  }
  const Job job(file.name, file.text);
  EnvContext known = context;
  if (known.nodes == 0) known.nodes = job.nodes();
  known.all_exported = !job.is_batch();
  auto findings = check_environment(file.name, variables_of(job), known);
  apply_job_suppressions(job, rules_of_scripts(), findings);
  sort_findings(findings);
  return findings;
}

}  // namespace millrace::jobs
