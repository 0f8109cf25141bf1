// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/strings.h"
#include "millrace/slurm/queue.h"
#include "millrace/slurm/slurm.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::slurm {

namespace {

using Record = std::map<std::string, std::string, std::less<>>;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines = split(text, '\n');
  std::erase_if(lines, [](std::string_view line) { return trimmed(line).empty(); });
  return lines;
}

bool is_nothing(std::string_view text) {
  return text.empty() || text == "(null)" || text == "N/A" || text == "None" || text == "(none)";
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  if (is_nothing(text)) return words;
  for (const std::string_view word : split(text, ',')) words.emplace_back(word);
  return words;
}

const std::string& value_of(const Record& record, std::string_view key) {
  static const std::string kNothing;
  const auto found = record.find(key);
  return found == record.end() ? kNothing : found->second;
}

// The number at the front; 0 where there is none. Large counts may end in K or M (thousands in squeue's %D).
int64_t number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return 0;
  const char unit = end < text.data() + text.size() ? *end : ' ';
  return static_cast<int64_t>(value * (unit == 'K' || unit == 'k' ? 1e3 : unit == 'M' ? 1e6 : 1));
}

// Length of a key at the front of `text` that a '=' follows; 0 where there is none.
size_t key_length(std::string_view text) {
  if (text.empty() || std::isupper(static_cast<unsigned char>(text[0])) == 0) return 0;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '=') return i;
    const auto c = static_cast<unsigned char>(text[i]);
    if (std::isalnum(c) == 0 && c != '_' && c != ':' && c != '/') return 0;
  }
  return 0;
}

// A state is words joined by '+', or a word with a mark behind it.
bool has_word(std::string_view state, std::string_view word) {
  for (std::string_view each : split(state, '+')) {
    while (!each.empty() && std::isalpha(static_cast<unsigned char>(each.back())) == 0) each.remove_suffix(1);
    if (each == word) return true;
  }
  return false;
}

bool is_usable(std::string_view state) {
  static constexpr std::array<std::string_view, 17> kClosed{
      "DOWN",    "DRAIN",       "DRAINED",        "DRAINING", "FAIL",         "FAILING",
      "MAINT",   "MAINTENANCE", "NOT_RESPONDING", "INVAL",    "INVALID_REG",  "POWERING_DOWN",
      "UNKNOWN", "ERROR",       "FUTURE",         "EXTERNAL", "REBOOT_ISSUED"};
  return state.find('*') == std::string_view::npos &&
         std::none_of(kClosed.begin(), kClosed.end(), [&](std::string_view word) { return has_word(state, word); });
}

int64_t gpus_in(const std::vector<Gres>& gres) {
  int64_t count = 0;
  for (const Gres& each : gres) count += each.name == "gpu" ? each.count : 0;
  return count;
}

Node node_of(const Record& record) {
  Node node;
  node.name = value_of(record, "NodeName");
  node.state = value_of(record, "State");
  node.usable = is_usable(node.state);
  const std::string reason = value_of(record, "Reason");  // "bad disk [root@2026-11-25T04:43:50]"
  if (!is_nothing(reason)) node.reason = reason.substr(0, reason.rfind(" ["));
  if (const size_t at = reason.rfind('@'); at != std::string::npos && reason.back() == ']') {
    node.reason_time = parse_local_time(std::string_view(reason).substr(at + 1, reason.size() - at - 2));
  }
  node.cloud = has_word(node.state, "CLOUD");
  node.powered_down = has_word(node.state, "POWERED_DOWN") || has_word(node.state, "POWER_DOWN") ||
                      node.state.find('~') != std::string::npos;
  node.partitions = words_of(value_of(record, "Partitions"));
  node.features = words_of(value_of(record, "AvailableFeatures"));
  node.cpus = number_of(value_of(record, "CPUTot"));
  node.cpus_used = number_of(value_of(record, "CPUAlloc"));
  node.memory_mib = number_of(value_of(record, "RealMemory"));
  node.memory_used_mib = number_of(value_of(record, "AllocMem"));
  node.tmp_mib = number_of(value_of(record, "TmpDisk"));
  node.gres = parse_gres(value_of(record, "Gres"));
  node.gres_used = parse_gres(value_of(record, "GresUsed"));
  return node;
}

// "ALL" and a missing value: no list.
std::vector<std::string> list_of(std::string_view text) {
  return text == "ALL" ? std::vector<std::string>() : words_of(text);
}

Partition partition_of(const Record& record) {
  Partition partition;
  partition.name = value_of(record, "PartitionName");
  partition.is_default = value_of(record, "Default") == "YES";
  partition.state = value_of(record, "State");
  partition.up = partition.state == "UP";
  // 26.05 tells it by Exclusive, where TOPO includes whole nodes.
  const std::string& exclusive = value_of(record, "Exclusive");
  partition.whole_nodes =
      value_of(record, "OverSubscribe").starts_with("EXCLUSIVE") || exclusive == "NODE" || exclusive == "TOPO";
  partition.nodes = value_of(record, "Nodes");
  partition.max_time_s = parse_time_limit(value_of(record, "MaxTime"));
  partition.priority_tier = std::max<int64_t>(1, number_of(value_of(record, "PriorityTier")));
  const std::string& preempt = value_of(record, "PreemptMode");
  partition.preempted = !preempt.empty() && preempt != "OFF";
  partition.default_time_s = parse_time_limit(value_of(record, "DefaultTime"));
  partition.min_nodes = number_of(value_of(record, "MinNodes"));
  const std::string& max_nodes = value_of(record, "MaxNodes");
  if (!max_nodes.empty() && !is_unlimited(max_nodes)) partition.max_nodes = number_of(max_nodes);
  // 22.05 prints it where it is set, later versions GLOBAL where it is not.
  if (const int64_t seconds = number_of(value_of(record, "ResumeTimeout")); seconds > 0) {
    partition.resume_timeout_s = seconds;
  }
  partition.groups = list_of(value_of(record, "AllowGroups"));
  partition.accounts = list_of(value_of(record, "AllowAccounts"));
  partition.qos = list_of(value_of(record, "AllowQos"));
  partition.denied_accounts = list_of(value_of(record, "DenyAccounts"));
  partition.denied_qos = list_of(value_of(record, "DenyQos"));
  return partition;
}

template <class T>
Result<std::vector<T>> parse_records(std::string_view text, std::string_view name, T (*make)(const Record&)) {
  std::vector<T> found;
  for (const std::string_view line : lines_of(text)) {
    const Record record = parse_record(line);
    if (!record.contains(name)) {
      return fail(ErrorCode::kCorruption, "scontrol's answer has no {} in: {}", name, line.substr(0, 200));
    }
    found.push_back(make(record));
  }
  return found;
}

}  // namespace

int64_t Node::gpus() const {
  return gpus_in(gres);
}

int64_t Node::gpus_used() const {
  return gpus_in(gres_used);
}

std::string Node::gpu_type() const {
  const auto found = std::find_if(gres.begin(), gres.end(), [](const Gres& each) { return each.name == "gpu"; });
  return found == gres.end() ? "" : found->type;
}

std::vector<GpuKind> Node::gpu_kinds() const {
  std::vector<GpuKind> kinds;
  const auto kind_of = [&](const std::string& type) {
    return std::find_if(kinds.begin(), kinds.end(), [&](const GpuKind& each) { return each.type == type; });
  };
  for (const Gres& each : gres) {
    if (each.name != "gpu") continue;
    const auto found = kind_of(each.type);
    if (found == kinds.end()) {
      kinds.push_back({.type = each.type, .count = each.count});
    } else {
      found->count += each.count;
    }
  }
  for (const Gres& each : gres_used) {
    const auto found = each.name == "gpu" ? kind_of(each.type) : kinds.end();
    if (found != kinds.end()) found->used += each.count;
  }
  // Used GPUs are untyped in some versions; with a single kind the type is clear.
  if (kinds.size() == 1) kinds[0].used = gpus_used();
  return kinds;
}

Record parse_record(std::string_view line) {
  Record record;
  std::string* value = nullptr;
  bool submit_line = false;  // of 25.11: what the user typed, whose words may look like keys, before WorkDir
  for (const std::string_view word : split(line, ' ')) {
    const size_t length = key_length(word);
    // A word in a comment may look like a key, too: the first one counts.
    const std::string key(word.substr(0, length));
    if (length > 0 && !record.contains(key) && (!submit_line || key == "WorkDir")) {
      submit_line = key == "SubmitLine";
      value = &record[key];
      *value = trimmed(word.substr(length + 1));
    } else if (value != nullptr && !word.empty()) {
      *value += ' ';
      *value += trimmed(word);
    }
  }
  return record;
}

Result<std::vector<Node>> parse_nodes(std::string_view text) {
  return parse_records<Node>(text, "NodeName", node_of);
}

Result<std::vector<Partition>> parse_partitions(std::string_view text) {
  return parse_records<Partition>(text, "PartitionName", partition_of);
}

std::vector<Gres> parse_gres(std::string_view text) {
  std::vector<Gres> found;
  for (const std::string& word : words_of(text)) {
    // "(S:0-1)" and "(IDX:0,2)" say which of them; a comma in there makes pieces without a colon or a name.
    std::string_view item = std::string_view(word).substr(0, word.find('('));
    if (item.starts_with("gres:") || item.starts_with("gres/")) item.remove_prefix(5);
    if (item.empty() || std::isalpha(static_cast<unsigned char>(item[0])) == 0) continue;
    std::string_view count = "1";
    if (const size_t at = item.find_last_of(":=");
        at != std::string_view::npos && at + 1 < item.size() && is_digit(item[at + 1]) &&
        item.find_first_not_of("0123456789KM", at + 1) == std::string_view::npos) {
      count = item.substr(at + 1);
      item = item.substr(0, at);
    }
    const std::vector<std::string_view> parts = split(item, ':');
    found.push_back({.name = std::string(parts[0]),
                     .type = std::string(parts.size() > 1 ? parts[1] : ""),
                     .count = number_of(count)});
  }
  return found;
}

Result<std::vector<Job>> parse_jobs(std::string_view text) {
  constexpr size_t kFields = 11;
  std::vector<Job> jobs;
  for (const std::string_view line : lines_of(text)) {
    const std::vector<std::string_view> fields = split(line, '|');
    if (fields.size() < kFields) {
      return fail(ErrorCode::kCorruption, "squeue's answer has {} fields for {} in: {}", fields.size(), kFields,
                  line.substr(0, 200));
    }
    Job job{.id = std::string(fields[0]),
            .name = std::string(line.substr(static_cast<size_t>(fields[kFields - 1].data() - line.data()))),
            .user = std::string(fields[8]),
            .partition = std::string(fields[1]),
            .state = std::string(fields[2]),
            .reason = std::string(fields[3]),
            .nodes = number_of(fields[4]),
            .cpus = number_of(fields[5])};
    if (!is_nothing(fields[6])) job.gpus = gpus_in(parse_gres(fields[6])) * std::max<int64_t>(1, job.nodes);
    job.time_left_s = parse_time_limit(fields[7]);
    if (!fields[9].empty()) {
      ASSIGN_OR_RETURN(job.node_list, expand_hostlist(fields[9]));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void add_job_tres(std::string_view text, std::vector<Job>& jobs) {
  constexpr std::array<size_t, 4> kWidths{64, 16, 64, 64};
  std::map<std::string, Job*> by_id;
  for (Job& job : jobs) by_id[job.id] = &job;
  for (std::string_view line : lines_of(text)) {
    std::array<std::string, 4> fields;
    for (size_t i = 0; i < fields.size(); ++i) {
      fields[i] = trimmed(line.substr(0, kWidths[i]));
      line.remove_prefix(std::min(kWidths[i], line.size()));
    }
    const auto found = by_id.find(fields[0]);
    if (found == by_id.end() || found->second->gpus) continue;
    const int64_t of_job = gpus_in(parse_gres(fields[2]));
    const int64_t of_tasks = gpus_in(parse_gres(fields[3])) * std::max<int64_t>(1, number_of(fields[1]));
    found->second->gpus = of_job > 0 ? of_job : of_tasks;
  }
}

}  // namespace millrace::slurm
