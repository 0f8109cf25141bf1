// SPDX-License-Identifier: Apache-2.0
#include "millrace/doctor/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/doctor/checks.h"
#include "millrace/jobs/ledger.h"

namespace millrace::doctor {

Verdict& Verdicts::of(std::string_view rule) {
  const auto found =
      std::find_if(verdicts_.begin(), verdicts_.end(), [&](const Verdict& each) { return each.rule->id == rule; });
  if (found != verdicts_.end()) return *found;
  return verdicts_.emplace_back(Verdict{.rule = find_rule(doctor_rules(), rule), .evidence = {}, .advice = {}});
}

void Verdicts::add(std::string_view rule, std::string evidence) {
  of(rule).evidence.push_back(std::move(evidence));
}

void Verdicts::advise(std::string_view rule, std::string advice) {
  if (Verdict& verdict = of(rule); verdict.advice.empty()) verdict.advice = std::move(advice);
}

bool Verdicts::holds(std::string_view rule) const {
  return std::any_of(verdicts_.begin(), verdicts_.end(), [&](const Verdict& each) { return each.rule->id == rule; });
}

bool Verdicts::any_error() const {
  return std::any_of(verdicts_.begin(), verdicts_.end(),
                     [](const Verdict& each) { return each.rule->severity == Severity::kError; });
}

std::vector<Verdict> Verdicts::take() {
  std::sort(verdicts_.begin(), verdicts_.end(), [](const Verdict& a, const Verdict& b) { return a.rule < b.rule; });
  return std::move(verdicts_);
}

std::string process_name(const ProcessFacts& process) {
  return fmt::format("{}process {}{}", process.rank >= 0 ? fmt::format("rank {}, ", process.rank) : "", process.pid,
                     process.host.empty() ? "" : " of " + process.host);
}

std::string moment(double seconds) {
  return jobs::utc_time(static_cast<int64_t>(seconds));
}

std::string percent(double share) {
  return fmt::format("{:.{}f} %", share * 100, share < 0.1 ? 1 : 0);
}

std::vector<Verdict> diagnose(const Facts& facts) {
  Verdicts verdicts;
  check_processes(facts, verdicts);
  check_mounts(facts, verdicts);
  check_nccl(facts, verdicts);
  check_flights(facts, verdicts);
  check_nodes(facts, verdicts);
  check_ranks(facts, verdicts);
  check_shown(facts, verdicts);
  check_logs(facts, verdicts);
  check_record(facts, verdicts);  // the last: a failure without another reason
  return verdicts.take();
}

}  // namespace millrace::doctor
