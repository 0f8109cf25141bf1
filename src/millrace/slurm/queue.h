// SPDX-License-Identifier: Apache-2.0
#pragma once

// Jobs as squeue and sacct list them, pending to ended: one call for all jobs. Times are UTC seconds since 1970. The
// parsers are pure; all functions are thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// "PENDING", "RUNNING" and so on, without what may follow ("CANCELLED by 1000").
struct JobState {
  std::string id;       // "15", "15_2" of an array, "15_[3-9%2]" for the elements that wait
  std::string base_id;  // "15": the id that sbatch printed
  std::string name, user, partition, state;
  std::string reason;      // of a pending or ended job: "Resources", "NonZeroExitCode"; "" for none
  std::string dependency;  // "afterok:12(failed)"; "" for none
  std::string nodes;       // a host list; "" while it waits
  int64_t tasks = 1;       // the jobs of an array that this line stands for
  int64_t node_count = 0, cpus = 0;
  std::optional<int64_t> submitted, started, ended;  // of a running job: when its limit ends it
  std::optional<int64_t> elapsed_s, limit_s;         // limit: nullopt also for no limit
  std::string exit;                                  // "3:0", status and signal; "" where it is unknown
};

// COMPLETED, FAILED, TIMEOUT, CANCELLED and their like: the job does not run again by itself.
bool is_ended(std::string_view state);
// "15" of "15_2" and "15_[3-9%2]".
std::string_view base_id(std::string_view id);
// Elements that "15_[1,3-9:2%2]" stands for; 1 for any other id.
int64_t count_tasks(std::string_view id);

// A line a job of `squeue -h -a -t all -o kQueueFormat`. Error: corruption, a line of too few fields.
inline constexpr const char* kQueueFormat = "%i|%P|%T|%r|%D|%C|%V|%S|%e|%M|%l|%u|%N|%E|%j";
[[nodiscard]] Result<std::vector<JobState>> parse_queue(std::string_view text);
// A line a job of `squeue -h -a -t all -O kExitFormat`: adds `exit`. Unknown jobs are skipped.
inline constexpr const char* kExitFormat = "JobArrayID:64,exit_code:16";
void add_exits(std::string_view text, std::span<JobState> jobs);
// A line a job of `sacct -n -X -P -o kAccountingFormat`. Error: corruption.
inline constexpr const char* kAccountingFormat =
    "JobID,Partition,State,Reason,NNodes,NCPUS,Submit,Start,End,ElapsedRaw,TimelimitRaw,User,NodeList,ExitCode,JobName";
[[nodiscard]] Result<std::vector<JobState>> parse_accounting(std::string_view text);

// All jobs that the controller remembers (ended ones for MinJobAge, 300 s by default), or those of `ids`; an id that it
// does not know is left out. One call of squeue. Errors: as of slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<JobState>> ask_queue(std::span<const std::string> ids, const AskOptions& options);
// Adds `exit` to ended jobs. One call of squeue. Errors: as above.
[[nodiscard]] Status ask_exits(std::span<JobState> jobs, const AskOptions& options);
// The states of `ids` from accounting, for jobs submitted after `since`. One call of sacct. Errors: unsupported (no
// accounting), and as above.
[[nodiscard]] Result<std::vector<JobState>> ask_accounting(std::span<const std::string> ids, int64_t since,
                                                           const AskOptions& options);
// The cluster's name. Errors: as above.
[[nodiscard]] Result<std::string> ask_cluster_name(const AskOptions& options);

// UTC seconds of a local time, "2026-11-25T04:43:50"; nullopt for "N/A", "Unknown" and the like.
std::optional<int64_t> parse_local_time(std::string_view text);

}  // namespace millrace::slurm
