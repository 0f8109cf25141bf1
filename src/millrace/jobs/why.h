// SPDX-License-Identifier: Apache-2.0
#pragma once

// Explains why a job waits, or how it ended: Slurm's reason in words, the facts that show it, and the change that
// would help. The reasons are data (reasons.cpp). Pure functions; thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/slurm/accounts.h"
#include "millrace/slurm/details.h"
#include "millrace/slurm/queue.h"
#include "millrace/slurm/reservations.h"
#include "millrace/slurm/slurm.h"
#include "millrace/slurm/steps.h"

namespace millrace::jobs {

// Whether the job will run, or how it ended.
enum class Outlook {
  kWaits,  // it waits for something that will come by itself
  kNever,  // it does not start until someone changes something
  kRuns,
  kDone,    // it completed
  kFailed,  // it ended other than completed
};
std::string_view outlook_name(Outlook outlook);  // "waits", "never", "runs", "done", "failed"

// A row of the table. `reason` is Slurm's word. A * at its end matches all words with this beginning.
struct ReasonRule {
  std::string_view reason;
  Outlook outlook;
  std::string_view meaning;
  std::string_view fix;
};
std::span<const ReasonRule> waiting_reasons();  // reasons of a waiting job
std::span<const ReasonRule> end_states();       // states of an ended job, or EXIT and its status ("EXIT 127")

struct Explanation {
  std::string id, state, reason;  // as Slurm prints them
  Outlook outlook = Outlook::kWaits;
  std::string meaning;
  std::vector<std::string> evidence;
  std::string fix;
};

// Further facts for the explanation. Empty if Slurm was not asked.
struct WhyFacts {
  const slurm::Cluster* cluster = nullptr;
  std::span<const slurm::JobState> queue;
  const slurm::Accounts* accounts = nullptr;   // accounts of the job's user
  std::span<const slurm::HeldResources> held;  // resources held by running jobs
  std::span<const slurm::Reservation> reservations;
  std::span<const slurm::StepEnd> steps;  // steps of the job, when it ended
  std::string cancelled_by;               // a user's name
  std::string log_error;                  // first_error() of its log
  int64_t now = 0;                        // UTC seconds since 1970
};

// Whether the reason of a waiting job is a limit of its QOS or account.
bool is_limit(std::string_view reason);

// Whether the job ended because one of its cloud nodes never booted, as far as node, job and accounting data show
// that.
bool never_booted(const slurm::JobDetails& job, const WhyFacts& facts);

Explanation explain(const slurm::JobDetails& job, const WhyFacts& facts);

// Returns the first line of a log that names an error of its own. In a Python traceback, that is the line with the
// raised exception. Skips lines that other ranks or launchers print because one rank failed. "" if there is none.
std::string first_error(std::string_view log);

}  // namespace millrace::jobs
