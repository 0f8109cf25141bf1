// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/accounts.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "millrace/base/text/strings.h"
#include "millrace/slurm/commands.h"

namespace millrace::slurm {

namespace {

// Fields of each line by their names in `format`.
Result<std::vector<Limits>> parse_table(std::string_view text, std::string_view format) {
  const std::vector<std::string_view> names = split(format, ',');
  std::vector<Limits> rows;
  for (const std::string_view line : split(text, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = split(line, '|');
    if (fields.size() < names.size()) {
      return fail(ErrorCode::kCorruption, "sacctmgr's answer has {} fields for {} in: {}", fields.size(), names.size(),
                  line.substr(0, 200));
    }
    Limits& row = rows.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) {
      if (!fields[i].empty()) row[std::string(names[i])] = fields[i];
    }
  }
  return rows;
}

std::string taken(Limits& row, std::string_view name) {
  const auto found = row.find(name);
  if (found == row.end()) return {};
  std::string value = std::move(found->second);
  row.erase(found);
  return value;
}

}  // namespace

const Qos* Accounts::find_qos(std::string_view name) const {
  const auto found = std::find_if(qos.begin(), qos.end(), [&](const Qos& each) { return each.name == name; });
  return found == qos.end() ? nullptr : &*found;
}

std::vector<const AccountLimits*> Accounts::lineage(std::string_view account) const {
  std::vector<const AccountLimits*> found;
  std::string_view next = account;
  while (!next.empty() && found.size() < accounts.size()) {
    const auto at =
        std::find_if(accounts.begin(), accounts.end(), [&](const AccountLimits& each) { return each.account == next; });
    if (at == accounts.end()) break;
    found.push_back(&*at);
    next = at->parent;
  }
  return found;
}

std::map<std::string, int64_t, std::less<>> parse_tres(std::string_view text) {
  std::map<std::string, int64_t, std::less<>> counts;
  for (const std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    double value = 0;
    if (equals == std::string::npos) continue;
    const char* const end = item.data() + item.size();
    const auto [rest, error] = std::from_chars(item.data() + equals + 1, end, value);
    if (error != std::errc()) continue;
    constexpr double kKibi = 1024;
    if (rest < end && *rest == 'G') value *= kKibi;
    if (rest < end && *rest == 'T') value *= kKibi * kKibi;
    counts[std::string(item.substr(0, equals))] = static_cast<int64_t>(value);
  }
  return counts;
}

Result<std::vector<Association>> parse_associations(std::string_view text) {
  ASSIGN_OR_RETURN(std::vector<Limits> rows, parse_table(text, kAssociationFormat));
  std::vector<Association> found;
  for (Limits& row : rows) {
    Association each{.account = taken(row, "Account"),
                     .partition = taken(row, "Partition"),
                     .qos = {},
                     .default_qos = {},
                     .limits = {}};
    if (const std::string qos = taken(row, "QOS"); !qos.empty()) {
      for (const std::string_view name : split(qos, ',')) each.qos.emplace_back(name);
    }
    each.default_qos = taken(row, "DefaultQOS");
    each.limits = std::move(row);
    found.push_back(std::move(each));
  }
  return found;
}

Result<std::vector<AccountLimits>> parse_account_limits(std::string_view text) {
  ASSIGN_OR_RETURN(std::vector<Limits> rows, parse_table(text, kAccountFormat));
  std::vector<AccountLimits> found;
  for (Limits& row : rows) {
    std::string account = taken(row, "Account"), parent = taken(row, "ParentName");
    found.push_back({std::move(account), std::move(parent), std::move(row)});
  }
  return found;
}

Result<std::vector<Qos>> parse_qos(std::string_view text) {
  ASSIGN_OR_RETURN(std::vector<Limits> rows, parse_table(text, kQosFormat));
  std::vector<Qos> found;
  for (Limits& row : rows) {
    std::string name = taken(row, "Name");
    found.push_back({std::move(name), std::move(row)});
  }
  return found;
}

Result<std::vector<HeldResources>> parse_held(std::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<Limits> rows, parse_table(text, "user,qos,account,nodes,cpus,gres"));
  std::vector<HeldResources> held;
  const auto text_of = [](const Limits& row, std::string_view name) {
    const auto found = row.find(name);
    return found == row.end() ? std::string() : found->second;
  };
  for (const Limits& row : rows) {
    HeldResources each{.user = text_of(row, "user"), .qos = text_of(row, "qos"), .account = text_of(row, "account")};
    each.nodes = std::atoll(text_of(row, "nodes").c_str());
    each.cpus = std::atoll(text_of(row, "cpus").c_str());
    for (const Gres& gres : parse_gres(text_of(row, "gres")))
      each.gpus += gres.name == "gpu" ? gres.count * each.nodes : 0;
    held.push_back(std::move(each));
  }
  return held;
}

Result<std::vector<HeldResources>> ask_held(const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text,
                   slurm_answer({"squeue", "-h", "-a", "-r", "-t", "running", "-o", kHeldFormat}, options));
  return parse_held(text);
}

Result<Accounts> ask_accounts(const std::string& user, const AskOptions& options) {
  const auto table = [&](std::vector<std::string> what, const char* format) -> Result<std::string> {
    std::vector<std::string> words{"sacctmgr", "-n", "-P", "show"};
    words.insert(words.end(), what.begin(), what.end());
    words.push_back(std::string("format=") + format);
    ASSIGN_OR_RETURN(const CommandOutput output, run_slurm(words, options));
    if (output.ok) return output.out;
    const std::string why = reason_of(output);
    const bool none = why.find("accounting_storage") != std::string::npos;
    return fail(none ? ErrorCode::kUnsupported : ErrorCode::kUnavailable, "sacctmgr: {}", why);
  };
  Accounts accounts;
  ASSIGN_OR_RETURN(const std::string associations, table({"assoc", "where", "user=" + user}, kAssociationFormat));
  ASSIGN_OR_RETURN(accounts.associations, parse_associations(associations));
  ASSIGN_OR_RETURN(const std::string above, table({"assoc", "where", "user=''"}, kAccountFormat));
  ASSIGN_OR_RETURN(accounts.accounts, parse_account_limits(above));
  ASSIGN_OR_RETURN(const std::string qos, table({"qos"}, kQosFormat));
  ASSIGN_OR_RETURN(accounts.qos, parse_qos(qos));
  return accounts;
}

}  // namespace millrace::slurm
