// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/thread/numa.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "millrace/base/io/file_text.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  return read_text(path).value_or("");
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

std::optional<int> number_in(std::string_view text) {
  const auto value = parse_whole(text);
  return value && *value < INT_MAX ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

// As the kernel writes lists of processors: "0-3,8,10-11".
std::vector<int> cpus_in(std::string_view list) {
  std::vector<int> cpus;
  while (!list.empty() && list.back() == '\n') list.remove_suffix(1);
  for (const std::string& range : split_at_commas(list)) {
    const size_t dash = std::min(range.find('-'), range.size());
    const auto first = number_in(std::string_view(range).substr(0, dash));
    const auto last = dash == range.size() ? first : number_in(std::string_view(range).substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= CPU_SETSIZE) continue;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// The processors of `allowed` by NUMA node; nodes without any are left out.
std::map<int, std::vector<int>> allowed_by_node(std::span<const int> allowed, const fs::path& root) {
  std::map<int, std::vector<int>> nodes;
  std::error_code error;
  for (fs::directory_iterator at(root / "sys/devices/system/node", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename();
    const auto number = name.starts_with("node") ? number_in(std::string_view(name).substr(4)) : std::nullopt;
    if (!number) continue;
    std::vector<int> cpus = cpus_in(text_of(at->path() / "cpulist"));
    std::erase_if(cpus, [&](int cpu) { return std::ranges::find(allowed, cpu) == allowed.end(); });
    if (!cpus.empty()) nodes.emplace(*number, std::move(cpus));
  }
  return nodes;
}

// Addresses of the node's GPUs on the PCI bus, ascending, as CUDA numbers GPUs of one kind.
std::vector<std::string> gpu_addresses(const fs::path& root) {
  std::vector<std::string> addresses;
  std::error_code error;
  for (fs::directory_iterator at(root / "proc/driver/nvidia/gpus", error), end; !error && at != end;
       at.increment(error)) {
    addresses.push_back(at->path().filename());
  }
  std::ranges::sort(addresses);
  return addresses;
}

// The address of a GPU that CUDA_VISIBLE_DEVICES names by number or by the beginning of its UUID.
std::optional<std::string> address_of(std::string_view name, const fs::path& root) {
  const std::vector<std::string> addresses = gpu_addresses(root);
  if (const auto number = number_in(name)) {
    if (*number < 0 || *number >= std::ssize(addresses)) return std::nullopt;
    return addresses[static_cast<size_t>(*number)];
  }
  if (!name.starts_with("GPU-")) return std::nullopt;
  const auto is_named = [&](const std::string& address) {
    return text_of(root / "proc/driver/nvidia/gpus" / address / "information").find(name) != std::string::npos;
  };
  const auto found = std::ranges::find_if(addresses, is_named);
  return found == addresses.end() ? std::nullopt : std::optional(*found);
}

std::optional<int> node_of_gpu(const LocalRank& rank, const fs::path& root) {
  std::optional<std::string> address;
  if (rank.visible_gpus) {
    const std::vector<std::string> visible = split_at_commas(*rank.visible_gpus);
    const size_t at = visible.size() == 1 ? 0 : static_cast<size_t>(rank.rank);
    if (at < visible.size()) address = address_of(visible[at], root);
  } else {
    address = address_of(fmt::format("{}", rank.rank), root);
  }
  if (!address) return std::nullopt;
  std::string node = text_of(root / "sys/bus/pci/devices" / *address / "numa_node");
  while (!node.empty() && node.back() == '\n') node.pop_back();
  const auto number = number_in(node);
  return number && *number >= 0 ? number : std::nullopt;  // -1: the firmware does not say
}

}  // namespace

LocalRank local_rank() {
  LocalRank found{.ranks = local_ranks()};
  for (const char* name : {"LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* text = std::getenv(name);
    const auto rank = text == nullptr ? std::nullopt : number_in(text);
    if (!rank || *rank < 0) continue;
    found.rank = *rank;
    break;
  }
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) found.visible_gpus = visible;
  return found;
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> near_cpus(const LocalRank& rank, std::span<const int> allowed, const fs::path& root) {
  const auto nodes = allowed_by_node(allowed, root);
  if (nodes.size() < 2) return {};
  if (const auto node = node_of_gpu(rank, root)) {
    const auto found = nodes.find(*node);
    return found == nodes.end() ? std::vector<int>() : found->second;
  }
  if (rank.ranks < 2 || rank.rank >= rank.ranks) return {};
  // Ranks in a row share a node, or have several each.
  const auto count = std::ssize(nodes);
  const auto first = rank.rank * count / rank.ranks;
  const auto last = std::max(first + 1, (rank.rank + 1) * count / rank.ranks);
  std::vector<int> cpus;
  for (auto at = std::next(nodes.begin(), first); at != std::next(nodes.begin(), last); ++at) {
    cpus.insert(cpus.end(), at->second.begin(), at->second.end());
  }
  return cpus;
}

void stay_on(std::span<const int> cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  }
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

}  // namespace millrace
