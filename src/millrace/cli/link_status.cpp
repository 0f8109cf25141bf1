// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/link_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/base/text/units.h"
#include "millrace/link/guardian.h"
#include "millrace/link/status.h"

namespace millrace::cli {
namespace {

std::string ago(const std::string& seconds, int64_t now) {
  const auto then = parse_whole(seconds);
  // A clock that was set back since makes no time of it.
  return then ? format_duration(static_cast<double>(std::max<int64_t>(now - *then, 0))) + " ago" : "never";
}

}  // namespace

Status print_link_status(const link::LinkConfig& config, const link::LinkHome& home, Context& context) {
  constexpr size_t kShown = 20;
  ASSIGN_OR_RETURN(link::LinkStatus status, link::read_status(home, kShown));
  const link::StateCounts& counts = status.counts;
  std::map<std::string, std::string>& facts = status.facts;
  const auto now = static_cast<int64_t>(std::time(nullptr));
  Json told_conflicts = Json::array(), told_problems = Json::array();
  std::string text = fmt::format("{}: {} and {}\n", config.name, config.directory, config.url);
  const std::string doing = status.running ? facts["doing"] : "not running: `millrace link run " + config.name + "`";
  text += fmt::format("  now        {}\n", doing);
  text += fmt::format("  behind     {}\n", format_duration(static_cast<double>(status.behind_s)));
  if (status.silent_since > 0) {
    text += fmt::format("  bucket     has not answered since {}\n", ago(std::to_string(status.silent_since), now));
  }
  text += fmt::format("  equal      {}, {}; {} proven to be in the bucket\n", counted(counts.files, "file"),
                      format_bytes(counts.bytes), format_count(counts.proven));
  text += fmt::format("  released   {}, {}\n", counted(counts.released, "file"), format_bytes(counts.released_bytes));
  text += fmt::format("  all seen   {}, in {} s; {} files not finished, {} about to be looked at\n",
                      ago(facts["last_sweep"], now), facts["sweep_s"].empty() ? "?" : facts["sweep_s"],
                      facts["postponed"].empty() ? "0" : facts["postponed"],
                      facts["waiting"].empty() ? "0" : facts["waiting"]);
  if (parse_whole(facts["passed"]).value_or(0) > 0) {
    text += fmt::format("  passed     {} not plain files: links, devices, folder markers\n", facts["passed"]);
  }
  for (const char* name : {"error", "not_deleted"}) {
    if (!facts[name].empty())
      text += fmt::format("  {:10} {}\n", name == std::string_view("error") ? "error" : "kept", facts[name]);
  }
  for (const link::Problem& each : status.problems) {
    told_problems.push_back({{"path", each.path}, {"since", each.since}, {"error", each.error}});
    text += fmt::format("  problem    {}, since {}: {}\n", printable(each.path), ago(std::to_string(each.since), now),
                        printable(each.error));
  }
  for (const link::Conflict& each : status.conflicts) {
    told_conflicts.push_back(
        {{"path", each.path}, {"time", each.time}, {"reason", each.reason}, {"outcome", each.outcome}});
    text += fmt::format("  conflict   {}, {}: {}; {}\n", printable(each.path), ago(std::to_string(each.time), now),
                        printable(each.reason), printable(each.outcome));
  }
  const auto number = [&](const char* name) { return Json(parse_whole(facts[name]).value_or(0)); };
  Json guardian = nullptr;
  if (!config.show_at.empty()) {
    const auto found = link::find_guardian(home);
    if (found) guardian = found->process;
    text += found ? fmt::format("  guardian   process {}, {} at {} wait for content\n", found->process,
                                counted(found->waiting, "program"), config.show_at)
                  : "  guardian   none: root would read zeros in files without content\n";
  }
  context.out.print({{"type", "link_status"},
                     {"name", config.name},
                     {"directory", config.directory},
                     {"url", config.url},
                     {"running", status.running},
                     {"doing", facts["doing"]},
                     {"files", counts.files},
                     {"bytes", counts.bytes},
                     {"proven", counts.proven},
                     {"released", counts.released},
                     {"released_bytes", counts.released_bytes},
                     {"unfinished", number("postponed")},
                     {"passed", number("passed")},
                     {"waiting", number("waiting")},
                     {"behind_s", status.behind_s},
                     {"silent_since", status.silent_since > 0 ? Json(status.silent_since) : Json(nullptr)},
                     {"last_sweep", facts["last_sweep"].empty() ? Json(nullptr) : number("last_sweep")},
                     {"error", facts["error"]},
                     {"not_deleted", facts["not_deleted"]},
                     {"guardian", guardian},
                     {"conflicts", counts.conflicts},
                     {"problems", counts.problems},
                     {"latest_conflicts", told_conflicts},
                     {"latest_problems", told_problems}},
                    text);
  if (counts.problems > 0 || !facts["error"].empty() || status.silent_since > 0) context.out.count_finding();
  return {};
}

}  // namespace millrace::cli
