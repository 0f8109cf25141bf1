// SPDX-License-Identifier: Apache-2.0
// Which rank did not come to a collective, by the dumps of PyTorch's flight recorder.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/doctor/checks.h"

namespace millrace::doctor {

namespace {

struct OfRank {
  int rank = 0;
  const FlightGroup* group = nullptr;
  const FlightCall* call(int64_t number) const {
    const auto found = group->calls.find(number);
    return found == group->calls.end() ? nullptr : &found->second;
  }
};

// "all_reduce of [8,8] Float, in step (train.py:17)"
std::string call_text(const FlightCall* call) {
  if (call == nullptr) return "which the dump no longer has";
  std::string text = call->name.empty() ? "a collective" : call->name;
  if (!call->sizes.empty()) text += " of " + call->sizes;
  if (!call->frames.empty()) text += ", in " + call->frames;
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kMost ? text + fmt::format(" and {} more", ranks.size() - kMost) : text;
}

// Some ranks are in a collective that others have not begun.
void check_behind(const std::string& title, const std::vector<OfRank>& ranks, int64_t furthest, Verdicts& verdicts) {
  std::vector<int> waiting;
  const OfRank* first = nullptr;
  for (const OfRank& each : ranks) {
    if (each.group->last == furthest) waiting.push_back(each.rank);
    if (each.group->last == furthest && first == nullptr) first = &each;
  }
  const FlightCall* const waited = first->call(furthest);
  verdicts.add("DR11", fmt::format("group {}: {} {} in collective {}{}: {}", title, ranks_text(waiting),
                                   waiting.size() == 1 ? "waits" : "wait", furthest,
                                   waited != nullptr && waited->created > 0 ? " since " + moment(waited->created) : "",
                                   call_text(waited)));
  constexpr int kMost = 8;
  int shown = 0;
  for (const OfRank& each : ranks) {
    if (each.group->last >= furthest || ++shown > kMost) continue;
    verdicts.add("DR11", fmt::format("group {}: rank {} has not come to it; its last one is {}: {}", title, each.rank,
                                     each.group->last, call_text(each.call(each.group->last))));
  }
}

// All have begun the same number, but not the same call: the program took two paths.
bool check_same(const std::string& title, const std::vector<OfRank>& ranks, int64_t number, Verdicts& verdicts) {
  const OfRank* first = nullptr;
  for (const OfRank& each : ranks) {
    const FlightCall* const call = each.call(number);
    if (call == nullptr) continue;
    if (first == nullptr) {
      first = &each;
      continue;
    }
    const FlightCall* const other = first->call(number);
    if (call->name == other->name && (call->sizes == other->sizes || call->name.starts_with("all_to_all"))) continue;
    verdicts.add(
        "DR11", fmt::format("group {}: collective {} is not the same on all ranks: {} on rank {}, {} on rank {}", title,
                            number, call_text(other), first->rank, call_text(call), each.rank));
    verdicts.advise("DR11",
                    "The ranks take different paths through the program: compare the lines named above. A condition "
                    "on the rank or on data that differs must not skip or change a collective.");
    return false;
  }
  return true;
}

}  // namespace

void check_flights(const Facts& facts, Verdicts& verdicts) {
  std::map<std::string, std::vector<OfRank>> groups;
  for (size_t i = 0; i < facts.flights.size(); ++i) {
    const FlightDump& dump = facts.flights[i];
    for (const auto& [name, group] : dump.groups)
      groups[name].push_back({dump.rank >= 0 ? dump.rank : static_cast<int>(i), &group});
  }
  for (auto& [name, ranks] : groups) {
    if (ranks.size() < 2) continue;  // one alone shows no difference
    std::ranges::sort(ranks, {}, &OfRank::rank);
    const std::string title = ranks[0].group->title.empty() ? name : ranks[0].group->title;
    const auto [least, most] =
        std::ranges::minmax_element(ranks, {}, [](const OfRank& each) { return each.group->last; });
    if (!check_same(title, ranks, least->group->last, verdicts)) continue;
    const int64_t furthest = most->group->last;
    const FlightCall* const call = most->call(furthest);
    if (call != nullptr && call->is_done) continue;  // it does not wait
    if (least->group->last < furthest) {
      check_behind(title, ranks, furthest, verdicts);
    } else if (call != nullptr) {
      verdicts.add("DR11", fmt::format("group {}: all {} ranks are in collective {} and none has ended it: {}", title,
                                       ranks.size(), furthest, call_text(call)));
      verdicts.advise("DR11",
                      "All ranks came, so it is the network or a GPU: `millrace job new validate` on these nodes, and "
                      "NCCL_DEBUG=INFO for the link in use.");
    }
  }
}

}  // namespace millrace::doctor
