// SPDX-License-Identifier: Apache-2.0
#pragma once

// Jobs from pending to ended, as squeue and sacct list them, with one call for all jobs. Times are UTC seconds since
// 1970. The parsers are pure; all functions are thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// One job. `state`: "PENDING", "RUNNING" and so on, without any text after it ("CANCELLED by 1000").
struct JobState {
  std::string id;       // "15", "15_2" in an array, "15_[3-9%2]" for the waiting elements
  std::string base_id;  // "15": the id that sbatch printed
  std::string name, user, partition, state;
  std::string reason;      // for a pending or ended job: "Resources", "NonZeroExitCode"; "": none
  std::string dependency;  // "afterok:12(failed)"; "": none
  std::string nodes;       // a host list; "" while the job waits
  int64_t tasks = 1;       // number of array elements in this line
  int64_t node_count = 0, cpus = 0;
  std::optional<int64_t> submitted, started, ended;  // `ended` of a running job: when its limit ends it
  std::optional<int64_t> elapsed_s, limit_s;         // `limit_s`: nullopt also for no limit
  std::string exit;                                  // "3:0", status and signal; "": unknown
};

// Returns whether the state is COMPLETED, FAILED, TIMEOUT, CANCELLED or similar: the job does not run again by itself.
bool is_ended(std::string_view state);
// Returns "15" for "15_2" and "15_[3-9%2]".
std::string_view base_id(std::string_view id);
// Returns the number of elements in "15_[1,3-9:2%2]"; 1 for any other id.
int64_t count_tasks(std::string_view id);

// Parses `squeue -h -a -t all -o kQueueFormat`: one job per line. Error: corruption, a line with too few fields.
inline constexpr const char* kQueueFormat = "%i|%P|%T|%r|%D|%C|%V|%S|%e|%M|%l|%u|%N|%E|%j";
[[nodiscard]] Result<std::vector<JobState>> parse_queue(std::string_view text);
// Parses `squeue -h -a -t all -O kExitFormat`, one job per line, and adds `exit` to `jobs`. Skips unknown jobs.
inline constexpr const char* kExitFormat = "JobArrayID:64,exit_code:16";
void add_exits(std::string_view text, std::span<JobState> jobs);
// Parses `sacct -n -X -P -o kAccountingFormat`: one job per line. Error: corruption.
inline constexpr const char* kAccountingFormat =
    "JobID,Partition,State,Reason,NNodes,NCPUS,Submit,Start,End,ElapsedRaw,TimelimitRaw,User,NodeList,ExitCode,JobName";
[[nodiscard]] Result<std::vector<JobState>> parse_accounting(std::string_view text);

// Returns all jobs that the controller remembers (ended ones for MinJobAge, 300 s by default), or those of `ids`.
// Leaves out an id that it does not know. Calls squeue once. Errors: as for slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<JobState>> ask_queue(std::span<const std::string> ids, const AskOptions& options);
// Adds `exit` to ended jobs. Calls squeue once. Errors: as for ask_queue().
[[nodiscard]] Status ask_exits(std::span<JobState> jobs, const AskOptions& options);
// Returns the states of `ids` from accounting, for jobs submitted after `since`. Calls sacct once. Errors: unsupported
// (no accounting), and as for ask_queue().
[[nodiscard]] Result<std::vector<JobState>> ask_accounting(std::span<const std::string> ids, int64_t since,
                                                           const AskOptions& options);
// Returns the cluster's name. Errors: as for ask_queue().
[[nodiscard]] Result<std::string> ask_cluster_name(const AskOptions& options);

// Converts a local time, "2026-11-25T04:43:50", to UTC seconds; nullopt for "N/A", "Unknown" and the like.
std::optional<int64_t> parse_local_time(std::string_view text);

}  // namespace millrace::slurm
