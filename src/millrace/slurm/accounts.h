// SPDX-License-Identifier: Apache-2.0
#pragma once

// The accounts and QOS that Slurm's accounting lets a user have, with their limits (sacctmgr(1)). The parsers are pure;
// all functions are thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// "MaxWall" -> "1-00:00:00", "MaxTRESPerUser" -> "cpu=64,gres/gpu=8"; without those that do not limit.
using Limits = std::map<std::string, std::string, std::less<>>;

// An account, partition and QOS that a user may combine.
struct Association {
  std::string account;
  std::string partition;  // empty: any
  std::vector<std::string> qos;
  std::string default_qos;
  Limits limits;
};

// An account itself, whose limits hold for all its users together, and for the accounts below it.
struct AccountLimits {
  std::string account;
  std::string parent;  // "" at the root
  Limits limits;
};

struct Qos {
  std::string name;
  Limits limits;
};

struct Accounts {
  std::vector<Association> associations;  // of one user
  std::vector<Qos> qos;                   // of the cluster
  std::vector<AccountLimits> accounts;    // of the cluster

  const Qos* find_qos(std::string_view name) const;
  // This account, its parent and so on, to the root.
  std::vector<const AccountLimits*> lineage(std::string_view account) const;
};

// "cpu=64,gres/gpu=8" -> {"cpu": 64, "gres/gpu": 8}; "mem=1T" in MiB.
std::map<std::string, int64_t, std::less<>> parse_tres(std::string_view text);

// A line an association of `sacctmgr -n -P show assoc format=kAssociationFormat`. Error: corruption.
inline constexpr const char* kAssociationFormat =
    "Account,Partition,QOS,DefaultQOS,MaxWall,MaxJobs,MaxSubmitJobs,MaxTRES,GrpJobs,GrpTRES";
[[nodiscard]] Result<std::vector<Association>> parse_associations(std::string_view text);
// A line an account of `sacctmgr -n -P show assoc where user='' format=kAccountFormat`. Error: corruption.
inline constexpr const char* kAccountFormat = "Account,ParentName,MaxWall,MaxTRES,GrpJobs,GrpTRES";
[[nodiscard]] Result<std::vector<AccountLimits>> parse_account_limits(std::string_view text);
// A line a QOS of `sacctmgr -n -P show qos format=kQosFormat`. Error: corruption.
inline constexpr const char* kQosFormat =
    "Name,MaxWall,MaxTRES,MaxTRESPerUser,MaxJobsPerUser,MaxSubmitJobsPerUser,GrpJobs,GrpTRES,MinTRES,"
    "MaxTRESPerAccount,MaxJobsPerAccount";
[[nodiscard]] Result<std::vector<Qos>> parse_qos(std::string_view text);

// Resources that a running job counts against the limits.
struct HeldResources {
  std::string user, qos, account;
  int64_t nodes = 0, cpus = 0;
  int64_t gpus = 0;  // as far as they were asked for by node
};
// A line a job of `squeue -h -a -r -t running -o kHeldFormat`. Error: corruption.
inline constexpr const char* kHeldFormat = "%u|%q|%a|%D|%C|%b";
[[nodiscard]] Result<std::vector<HeldResources>> parse_held(std::string_view text);
// One call of squeue. Errors: as of slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<HeldResources>> ask_held(const AskOptions& options);

// Three calls of sacctmgr. Errors: unsupported (no accounting), and as of slurm_answer (commands.h).
[[nodiscard]] Result<Accounts> ask_accounts(const std::string& user, const AskOptions& options);

}  // namespace millrace::slurm
