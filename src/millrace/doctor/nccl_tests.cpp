// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>

#include "millrace/doctor/diagnose.h"
#include "millrace/monitor/text.h"
#include "millrace/plan/instances.h"

namespace millrace::doctor {

namespace {

// GB/s of one GPU's NVLinks, both ways together: links of an architecture and GB/s of a link (25 a way in generations 3
// and 4, 50 a way in 5), as NVIDIA's data sheets of the SXM boards give them.
struct NvlinkBoard {
  std::string_view gpu;
  double gb_per_s;
  std::string_view source;
};
constexpr NvlinkBoard kBoards[] = {
    {"A100", 600, "NVIDIA A100 SXM: NVLink 600 GB/s both ways"},
    {"H100", 900, "NVIDIA H100 SXM: NVLink 900 GB/s both ways"},
    {"H200", 900, "NVIDIA H200 SXM: NVLink 900 GB/s both ways"},
    {"B200", 1800, "NVIDIA B200 SXM: NVLink 1,800 GB/s both ways"},
};

bool is_number(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789.") == std::string_view::npos;
}

double as_double(std::string_view word) {
  return std::strtod(std::string(word).c_str(), nullptr);
}

int64_t as_whole(std::string_view word) {
  int64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

// size count type [redop] root | time algbw busbw wrong | time algbw busbw wrong. Old versions print no `wrong`.
std::optional<NcclRow> row_of(const std::vector<std::string_view>& words) {
  if (words.size() < 8 || !is_number(words[0]) || !is_number(words[1]) || is_number(words[2])) return std::nullopt;
  NcclRow row{.bytes = as_whole(words[0])};
  size_t begin = 3;  // of the first measurement: behind the type, the operation and the root
  while (begin < words.size() && begin < 5 && (!is_number(words[begin]) || words.size() - begin > 8)) ++begin;
  const size_t in_half = (words.size() - begin) / 2;
  if (in_half < 3) return std::nullopt;
  for (const size_t half : {begin, begin + in_half}) {
    row.busbw = std::max(row.busbw, as_double(words[half + 2]));
    // Old versions print the largest difference ("4e-07") in place of a count.
    if (in_half >= 4 && is_number(words[half + 3])) row.wrong += as_whole(words[half + 3]);
  }
  return row;
}

}  // namespace

std::vector<NcclRun> parse_nccl_tests(std::string_view text, const std::string& file) {
  std::vector<NcclRun> runs;
  NcclRun run{.file = file};
  std::set<std::string, std::less<>> hosts;
  bool in_table = false;
  const auto finish = [&] {
    if (!run.rows.empty()) {
      run.nodes = static_cast<int64_t>(hosts.size());
      runs.push_back(run);
      run = NcclRun{.file = file};
      hosts.clear();
    }
    in_table = false;
  };
  for (const std::string_view line : monitor::lines_of(text)) {
    const auto words = monitor::words_of(line);
    if (words.empty()) continue;
    if (const size_t at = line.find("_perf"); at != std::string_view::npos) {
      const size_t begin = line.find_last_of(" /\t", at) + 1;
      if (in_table) finish();
      run.collective = std::string(line.substr(begin, at - begin));
    } else if (words[0] == "#" && words.size() > 6 && words[1] == "Rank") {
      // # Rank  0 Group  0 Pid  1234 on  host device  0 [0x07] NVIDIA H100 80GB HBM3
      if (in_table) finish();
      ++run.ranks;
      for (size_t i = 2; i + 1 < words.size(); ++i) {
        if (words[i] == "on") hosts.emplace(words[i + 1]);
      }
      if (const size_t end = line.find("] "); end != std::string_view::npos)
        run.gpu = std::string(line.substr(end + 2));
    } else if (words[0] == "#") {
      if (line.find("busbw") != std::string_view::npos) in_table = true;
      if (line.find("Avg bus bandwidth") != std::string_view::npos) finish();
    } else if (in_table) {
      if (const auto row = row_of(words)) run.rows.push_back(*row);
    }
  }
  finish();
  return runs;
}

LinkLimit link_limit(const NcclRun& run, const std::string& instance) {
  if (run.nodes > 1) {
    const plan::Instance* found = plan::find_instance(instance);
    if (found == nullptr || found->network_mbps <= 0) return {};
    constexpr double kMbpsInGBps = 8000;
    return {static_cast<double>(found->network_mbps) / kMbpsInGBps,
            std::string(found->name) + ": network of a node, by the planner's table of instances"};
  }
  if (run.ranks < 2) return {};
  for (const NvlinkBoard& board : kBoards) {
    const bool is_card = run.gpu.find("PCIe") != std::string::npos || run.gpu.find("NVL") != std::string::npos;
    if (run.gpu.find(board.gpu) != std::string::npos && !is_card)
      return {board.gb_per_s / 2, std::string(board.source)};
  }
  return {};
}

}  // namespace millrace::doctor
