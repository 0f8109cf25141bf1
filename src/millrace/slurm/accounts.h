// SPDX-License-Identifier: Apache-2.0
#pragma once

// The accounts and QOS that Slurm's accounting allows a user, with their limits (sacctmgr(1)). The parsers are pure;
// all functions are thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// Limits by name: "MaxWall" -> "1-00:00:00", "MaxTRESPerUser" -> "cpu=64,gres/gpu=8". Absent: no limit.
using Limits = std::map<std::string, std::string, std::less<>>;

// An account, partition and QOS that a user may combine.
struct Association {
  std::string account;
  std::string partition;  // empty: any
  std::vector<std::string> qos;
  std::string default_qos;
  Limits limits;
};

// An account. Its limits apply to all its users together, and to the accounts below it.
struct AccountLimits {
  std::string account;
  std::string parent;  // "": the root
  Limits limits;
};

struct Qos {
  std::string name;
  Limits limits;
};

struct Accounts {
  std::vector<Association> associations;  // those of one user
  std::vector<Qos> qos;                   // all of the cluster
  std::vector<AccountLimits> accounts;    // all of the cluster

  const Qos* find_qos(std::string_view name) const;
  // Returns this account, its parent and so on, up to the root.
  std::vector<const AccountLimits*> lineage(std::string_view account) const;
};

// Parses "cpu=64,gres/gpu=8" as {"cpu": 64, "gres/gpu": 8}; "mem=1T" is in MiB.
std::map<std::string, int64_t, std::less<>> parse_tres(std::string_view text);

// Parses `sacctmgr -n -P show assoc format=kAssociationFormat`: one association per line. Error: corruption.
inline constexpr const char* kAssociationFormat =
    "Account,Partition,QOS,DefaultQOS,MaxWall,MaxJobs,MaxSubmitJobs,MaxTRES,GrpJobs,GrpTRES";
[[nodiscard]] Result<std::vector<Association>> parse_associations(std::string_view text);
// Parses `sacctmgr -n -P show assoc where user='' format=kAccountFormat`: one account per line. Error: corruption.
inline constexpr const char* kAccountFormat = "Account,ParentName,MaxWall,MaxTRES,GrpJobs,GrpTRES";
[[nodiscard]] Result<std::vector<AccountLimits>> parse_account_limits(std::string_view text);
// Parses `sacctmgr -n -P show qos format=kQosFormat`: one QOS per line. Error: corruption.
inline constexpr const char* kQosFormat =
    "Name,MaxWall,MaxTRES,MaxTRESPerUser,MaxJobsPerUser,MaxSubmitJobsPerUser,GrpJobs,GrpTRES,MinTRES,"
    "MaxTRESPerAccount,MaxJobsPerAccount";
[[nodiscard]] Result<std::vector<Qos>> parse_qos(std::string_view text);

// Resources that a running job counts against the limits.
struct HeldResources {
  std::string user, qos, account;
  int64_t nodes = 0, cpus = 0;
  int64_t gpus = 0;  // only those requested per node
};
// Parses `squeue -h -a -r -t running -o kHeldFormat`: one job per line. Error: corruption.
inline constexpr const char* kHeldFormat = "%u|%q|%a|%D|%C|%b";
[[nodiscard]] Result<std::vector<HeldResources>> parse_held(std::string_view text);
// Calls squeue once. Errors: as for slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<HeldResources>> ask_held(const AskOptions& options);

// Calls sacctmgr three times. Errors: unsupported (no accounting), and as for slurm_answer (commands.h).
[[nodiscard]] Result<Accounts> ask_accounts(const std::string& user, const AskOptions& options);

}  // namespace millrace::slurm
