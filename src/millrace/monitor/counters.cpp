// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/counters.h"

#include <unistd.h>

#include <algorithm>

#include "millrace/base/io/file_text.h"
#include "millrace/monitor/text.h"

namespace millrace::monitor {

namespace {

constexpr Series kCpu{"millrace_node_cpu_seconds_total", "Time of all processors by mode", true};
constexpr Series kProcessors{"millrace_node_processors", "Processors that the kernel counts"};
constexpr Series kPressure{"millrace_node_pressure_seconds_total",
                           "Time in which some or all tasks waited for a resource (PSI)", true};
constexpr Series kMemory{"millrace_node_memory_bytes", "Memory by kind, from meminfo"};
constexpr Series kCgroupMemory{"millrace_cgroup_memory_bytes", "Memory of the cgroup without inactive file cache"};
constexpr Series kCgroupLimit{"millrace_cgroup_memory_limit_bytes",
                              "The least memory limit of the cgroup and those above"};
constexpr Series kOomKills{"millrace_cgroup_oom_kills_total", "Processes of the cgroup that the kernel killed", true};
constexpr Series kThrottled{"millrace_cgroup_cpu_throttled_seconds_total",
                            "Time in which the cgroup's processor limit held it back", true};
constexpr Series kDiskRead{"millrace_disk_read_bytes_total", "Bytes read from the disk", true};
constexpr Series kDiskWritten{"millrace_disk_written_bytes_total", "Bytes written to the disk", true};
constexpr Series kDiskBusy{"millrace_disk_busy_seconds_total", "Time in which the disk had a request", true};
constexpr Series kReceived{"millrace_network_receive_bytes_total", "Bytes received", true};
constexpr Series kSent{"millrace_network_transmit_bytes_total", "Bytes sent", true};
constexpr Series kNetErrors{"millrace_network_errors_total", "Packets with errors, and dropped ones, both ways", true};
constexpr Series kRdmaReceived{"millrace_rdma_receive_bytes_total", "Bytes received by RDMA", true};
constexpr Series kRdmaSent{"millrace_rdma_transmit_bytes_total", "Bytes sent by RDMA", true};
constexpr Series kRdmaHardware{"millrace_rdma_hardware_total", "Counters of the RDMA or EFA device by name", true};

void read_cpu(const Roots& roots, Sample& sample) {
  const auto text = read_text(roots.proc / "stat");
  if (!text) return sample.missing.push_back("processors: cannot read stat"), void();
  static const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  constexpr const char* kModes[] = {"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"};
  double processors = 0;
  for (const std::string_view line : lines_of(*text)) {
    const auto words = words_of(line);
    if (!words[0].starts_with("cpu")) continue;
    if (words[0] != "cpu") {
      ++processors;
      continue;
    }
    for (size_t mode = 0; mode < std::size(kModes) && mode + 1 < words.size(); ++mode) {
      sample.add(kCpu, to_number(words[mode + 1]).value_or(0) / ticks, {{"mode", kModes[mode]}});
    }
  }
  sample.add(kProcessors, processors);
}

void read_pressure(const Roots& roots, Sample& sample) {
  for (const char* resource : {"cpu", "io", "memory"}) {
    const auto text = read_text(roots.proc / "pressure" / resource);
    if (!text) return sample.missing.push_back("pressure: this kernel has no PSI"), void();
    for (const std::string_view line : lines_of(*text)) {
      const size_t at = line.find("total=");
      if (at == std::string_view::npos) continue;
      const auto total_us = to_number(line.substr(at + 6));
      if (!total_us) continue;
      sample.add(kPressure, *total_us / 1e6,
                 {{"resource", resource}, {"kind", std::string(line.substr(0, line.find(' ')))}});
    }
  }
}

void read_memory(const Roots& roots, Sample& sample) {
  const auto text = read_text(roots.proc / "meminfo");
  if (!text) return sample.missing.push_back("memory: cannot read meminfo"), void();
  constexpr std::pair<std::string_view, const char*> kKinds[] = {
      {"MemTotal:", "total"}, {"MemFree:", "free"}, {"MemAvailable:", "available"},
      {"Cached:", "cached"},  {"Dirty:", "dirty"},  {"Writeback:", "writeback"},
      {"Shmem:", "shared"}};
  for (const std::string_view line : lines_of(*text)) {
    const auto words = words_of(line);
    if (words.size() < 2) continue;
    for (const auto& [name, kind] : kKinds) {
      if (words[0] == name) sample.add(kMemory, to_number(words[1]).value_or(0) * 1024, {{"kind", kind}});
    }
  }
}

// The number behind `name` in lines of "name number".
std::optional<double> named_number(const std::filesystem::path& path, std::string_view name) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  for (const std::string_view line : lines_of(*text)) {
    const auto words = words_of(line);
    if (words.size() >= 2 && words[0] == name) return to_number(words[1]);
  }
  return std::nullopt;
}

struct CgroupNames {
  const char *usage, *limit, *stat_name;
};
constexpr CgroupNames kV2{"memory.current", "memory.max", "inactive_file"};
constexpr CgroupNames kV1{"memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"};

// A limit of a parent holds for its children. 2^63 less a page is v1's word for none.
std::optional<double> least_limit(std::filesystem::path folder, const std::filesystem::path& top, const char* name) {
  constexpr double kNoLimit = 9e18;
  std::optional<double> least;
  for (;; folder = folder.parent_path()) {
    const auto limit = read_number(folder / name);
    if (limit && *limit < kNoLimit) least = std::min(least.value_or(*limit), *limit);
    if (folder == top || folder == folder.root_path()) return least;
  }
}

bool read_cgroup_memory(const std::filesystem::path& top, std::string_view below, const CgroupNames& names,
                        Sample& sample) {
  const std::filesystem::path folder = below == "/" ? top : top / below.substr(1);
  const auto usage = read_number(folder / names.usage);
  if (!usage) return false;
  sample.add(kCgroupMemory, *usage - named_number(folder / "memory.stat", names.stat_name).value_or(0));
  if (const auto limit = least_limit(folder, top, names.limit)) sample.add(kCgroupLimit, *limit);
  for (const char* file : {"memory.events", "memory.oom_control"}) {
    if (const auto kills = named_number(folder / file, "oom_kill")) sample.add(kOomKills, *kills);
  }
  if (const auto us = named_number(folder / "cpu.stat", "throttled_usec")) sample.add(kThrottled, *us / 1e6);
  return true;
}

// Both versions may be named while v2 has no controllers, so the one that has the files counts.
void read_cgroup(const Roots& roots, Sample& sample) {
  const auto text = read_text(roots.proc / "self/cgroup");
  const std::filesystem::path top = roots.sys / "fs/cgroup";
  bool found = false;
  for (const std::string_view line : lines_of(text ? std::string_view(*text) : std::string_view())) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view below = line.substr(second + 1);
    if (below.empty() || found) continue;
    if (controllers.empty()) found = read_cgroup_memory(top, below, kV2, sample);
    if (controllers == "memory") found = read_cgroup_memory(top / "memory", below, kV1, sample);
  }
  if (!found) sample.missing.push_back("cgroup: no memory controller for this process");
}

void read_disks(const Roots& roots, Sample& sample) {
  const auto text = read_text(roots.proc / "diskstats");
  if (!text) return sample.missing.push_back("disks: cannot read diskstats"), void();
  constexpr double kSectorBytes = 512;  // whatever the disk's own sectors are
  for (const std::string_view line : lines_of(*text)) {
    const auto words = words_of(line);
    if (words.size() < 13 || words[2].starts_with("loop") || words[2].starts_with("ram")) continue;
    const std::string device(words[2]);
    const double read = to_number(words[5]).value_or(0);
    const double written = to_number(words[9]).value_or(0);
    if (read == 0 && written == 0) continue;
    sample.add(kDiskRead, read * kSectorBytes, {{"device", device}});
    sample.add(kDiskWritten, written * kSectorBytes, {{"device", device}});
    sample.add(kDiskBusy, to_number(words[12]).value_or(0) / 1e3, {{"device", device}});
  }
}

void read_network(const Roots& roots, Sample& sample) {
  const auto text = read_text(roots.proc / "net/dev");
  if (!text) return sample.missing.push_back("network: cannot read net/dev"), void();
  for (const std::string_view line : lines_of(*text)) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto name = words_of(line.substr(0, colon));
    const auto numbers = words_of(line.substr(colon + 1));
    if (name.size() != 1 || name[0] == "lo" || numbers.size() < 12) continue;
    const std::string device(name[0]);
    const auto number = [&](size_t at) { return to_number(numbers[at]).value_or(0); };
    sample.add(kReceived, number(0), {{"device", device}});
    sample.add(kSent, number(8), {{"device", device}});
    sample.add(kNetErrors, number(2) + number(3) + number(10) + number(11), {{"device", device}});
  }
}

void read_rdma_port(const std::filesystem::path& folder, const std::string& device, const std::string& port,
                    Sample& sample) {
  constexpr double kWordBytes = 4;
  const Labels labels = {{"device", device}, {"port", port}};
  if (const auto words = read_number(folder / "counters/port_rcv_data"))
    sample.add(kRdmaReceived, *words * kWordBytes, labels);
  if (const auto words = read_number(folder / "counters/port_xmit_data"))
    sample.add(kRdmaSent, *words * kWordBytes, labels);
  for (const std::string& counter : names_in(folder / "hw_counters")) {
    const auto value = read_number(folder / "hw_counters" / counter);
    if (!value || counter == "lifespan") continue;
    sample.add(kRdmaHardware, *value, {{"device", device}, {"port", port}, {"counter", counter}});
  }
}

void read_rdma(const Roots& roots, Sample& sample) {
  const std::filesystem::path folder = roots.sys / "class/infiniband";
  const auto devices = names_in(folder);
  if (devices.empty()) sample.missing.push_back("RDMA: no InfiniBand or EFA device");
  for (const std::string& device : devices) {
    for (const std::string& port : names_in(folder / device / "ports")) {
      read_rdma_port(folder / device / "ports" / port, device, port, sample);
    }
  }
}

}  // namespace

void read_node(const Roots& roots, Sample& sample) {
  read_cpu(roots, sample);
  read_pressure(roots, sample);
  read_memory(roots, sample);
  read_cgroup(roots, sample);
  read_disks(roots, sample);
  read_network(roots, sample);
  read_rdma(roots, sample);
}

}  // namespace millrace::monitor
