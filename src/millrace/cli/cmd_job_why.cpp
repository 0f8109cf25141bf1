// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "millrace/cli/job_states.h"
#include "millrace/jobs/log_files.h"
#include "millrace/jobs/log_tail.h"
#include "millrace/jobs/secrets.h"
#include "millrace/jobs/why.h"

namespace millrace::cli {

namespace {

struct JobWhyArgs {
  std::string id;
};

// As far as an earlier end, or the accounting, tells them.
slurm::JobDetails forgotten_details(const jobs::RunState& state) {
  slurm::JobDetails job{
      .number = state.job_id, .name = state.name, .user = state.user, .state = state.state, .reason = state.reason};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) job.fields[name] = value;
  };
  add("ExitCode", state.exit);
  add("NodeList", state.nodes);
  add("Partition", state.partition);
  add("RunTime", duration_text(state.elapsed_s));
  add("TimeLimit", duration_text(state.limit_s));
  return job;
}

Result<std::vector<slurm::JobDetails>> known_details(const std::string& id, const jobs::Ledger& ledger,
                                                     const jobs::LedgerContents& contents, Context& context) {
  ASSIGN_OR_RETURN(std::vector<slurm::JobDetails> details, slurm::ask_details(id, slurm_options(context)));
  if (!details.empty()) return details;
  const jobs::AskedRuns asked = jobs::ask_runs(ledger, contents, std::span(&id, 1), slurm_options(context));
  RETURN_IF_ERROR(asked.slurm);
  if (asked.states.empty()) {
    return fail(ErrorCode::kNotFound, "no job {}: neither Slurm nor the ledger {} knows it", id, ledger.folder());
  }
  if (asked.states[0].state.empty()) {
    return fail(ErrorCode::kNotFound, "Slurm has forgotten how job {} ended, and keeps no accounting of it", id);
  }
  details.push_back(forgotten_details(asked.states[0]));
  return details;
}

// The first error in the job's files, without secrets; a log of more than 64 MiB is read to there.
std::string log_error(const slurm::JobDetails& job, const jobs::RunRecord* run) {
  constexpr int kMostPieces = 64;
  for (const jobs::LogPattern& pattern : jobs::log_patterns(job, run, {})) {
    for (const std::string& path : jobs::matching_files(pattern.glob)) {
      jobs::LogTail tail(path);
      for (int piece = 0; piece < kMostPieces; ++piece) {
        const auto news = tail.read(true);
        if (!news) break;
        if (std::string error = jobs::first_error(news->text); !error.empty()) return jobs::without_secrets(error);
        if (!news->more) break;
      }
    }
  }
  return {};
}

// What accounting tells of the job's steps; none where there is no accounting, or it does not answer.
std::vector<slurm::StepEnd> known_steps(const slurm::JobDetails& job, Context& context) {
  auto steps = slurm::ask_steps(job.id(), slurm_options(context));
  return steps ? *std::move(steps) : std::vector<slurm::StepEnd>();
}

// A name; "" where nobody cancelled the job itself, or Slurm does not tell who.
std::string canceller_of(std::span<const slurm::StepEnd> steps) {
  for (const slurm::StepEnd& step : steps) {
    if (step.is_job() && step.cancelled_by) return jobs::name_of_user(*step.cancelled_by);
  }
  return {};
}

Json explanation_json(const jobs::Explanation& why, const std::vector<std::string>& ids) {
  return {{"type", "job_why"},
          {"job_id", why.id},
          {"state", why.state},
          {"reason", why.reason},
          {"outlook", jobs::outlook_name(why.outlook)},
          {"meaning", why.meaning},
          {"evidence", why.evidence},
          {"fix", why.fix.empty() ? Json(nullptr) : Json(why.fix)},
          {"same", ids}};
}

std::string explanation_text(const jobs::Explanation& why, const std::vector<std::string>& same) {
  const bool reason_matters = !why.reason.empty() && why.reason != "None";
  std::string text =
      fmt::format("job {}: {}{}{}\n  {}\n", why.id, why.state, reason_matters ? " (" + why.reason + ")" : "",
                  same.empty() ? "" : fmt::format(", and {} more", same.size()), why.meaning);
  if (why.outlook == jobs::Outlook::kNever) text += "  It does not start until this is changed.\n";
  for (const std::string& line : why.evidence) text += "  - " + printable(line) + "\n";
  if (!why.fix.empty()) text += "  way out: " + why.fix + "\n";
  return text;
}

// Elements of an array that wait or ended for the same reason are explained once. Slurm's reason of a node that died
// and of one that never booted is the same.
std::vector<std::pair<slurm::JobDetails, std::vector<std::string>>> grouped(const std::vector<slurm::JobDetails>& all,
                                                                            const jobs::WhyFacts& facts) {
  std::vector<std::pair<slurm::JobDetails, std::vector<std::string>>> groups;
  std::map<std::tuple<std::string, std::string, std::string, bool>, size_t> places;
  for (const slurm::JobDetails& job : all) {
    const auto exit = job.fields.find("ExitCode");
    const std::string how = exit == job.fields.end() ? "" : exit->second;
    const auto [place, fresh] =
        places.try_emplace({job.state, job.reason, how, jobs::never_booted(job, facts)}, groups.size());
    if (fresh) {
      groups.push_back({job, {}});
    } else {
      groups[place->second].second.push_back(job.id());
    }
  }
  return groups;
}

Status run_job_why(const JobWhyArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::Ledger ledger, open_ledger());
  ASSIGN_OR_RETURN(const jobs::LedgerContents all, read_ledger(ledger, context));
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, jobs::job_ids(ledger, all, std::span(&args.id, 1)));
  const jobs::LedgerContents contents = jobs::runs_of(all, ids);
  const jobs::RunRecord* run = contents.runs.empty() ? nullptr : &contents.runs[0].record;
  ASSIGN_OR_RETURN(const auto details, known_details(ids[0], ledger, contents, context));

  std::optional<slurm::Cluster> cluster;
  std::vector<slurm::JobState> queue;
  const auto any = [&](auto test) { return std::any_of(details.begin(), details.end(), test); };
  if (any([](const slurm::JobDetails& job) { return job.waits(); })) {
    ASSIGN_OR_RETURN(cluster, slurm::ask(slurm_options(context)));
    ASSIGN_OR_RETURN(queue, slurm::ask_queue({}, slurm_options(context)));
  }
  // The end is explained without these, too.
  if (!cluster &&
      any([](const slurm::JobDetails& job) { return job.state == "NODE_FAIL" || job.state == "BOOT_FAIL"; })) {
    if (auto found = slurm::ask(slurm_options(context))) cluster = *std::move(found);
  }
  if (queue.empty() && any([](const slurm::JobDetails& job) { return job.state == "PREEMPTED"; })) {
    if (auto found = slurm::ask_queue({}, slurm_options(context))) queue = *std::move(found);
  }
  std::vector<slurm::Reservation> reservations;
  if (cluster) {
    if (auto found = slurm::ask_reservations(slurm_options(context))) reservations = *std::move(found);
  }
  const auto limited = std::find_if(details.begin(), details.end(), [](const slurm::JobDetails& job) {
    return job.waits() && jobs::is_limit(job.reason);
  });
  std::optional<slurm::Accounts> accounts;
  std::vector<slurm::HeldResources> held;
  if (limited != details.end()) {
    // Without them the reason is explained all the same.
    if (auto found = slurm::ask_accounts(limited->user, slurm_options(context))) accounts = *std::move(found);
    if (auto found = slurm::ask_held(slurm_options(context))) held = *std::move(found);
  }
  jobs::WhyFacts facts{.cluster = cluster ? &*cluster : nullptr,
                       .queue = queue,
                       .accounts = accounts ? &*accounts : nullptr,
                       .held = held,
                       .reservations = reservations};
  constexpr int64_t kNanoseconds = 1'000'000'000;
  facts.now = jobs::now_ns() / kNanoseconds;
  for (const auto& [job, same] : grouped(details, facts)) {
    const bool failed = slurm::is_ended(job.state) && job.state != "COMPLETED";
    facts.log_error = failed ? log_error(job, run) : "";
    const std::vector<slurm::StepEnd> steps = failed ? known_steps(job, context) : std::vector<slurm::StepEnd>();
    facts.steps = steps;
    facts.cancelled_by = canceller_of(steps);
    const jobs::Explanation why = jobs::explain(job, facts);
    context.out.print(explanation_json(why, same), explanation_text(why, same));
  }
  return {};
}

}  // namespace

void add_job_why(Verbs& verbs, CLI::App& job) {
  auto args = std::make_shared<JobWhyArgs>();
  CLI::App& why = verbs.add(job, "why", "Say why a job waits or how it ended, with what shows it and what would help",
                            {"millrace job why 1234", "millrace job why 1234_7 --json", "millrace job why pretrain"},
                            [args](Context& context) { return run_job_why(*args, context); });
  why.add_option("ID", args->id, "Number of a job (12), element of an array (12_3), or name of a run")
      ->required()
      ->option_text(" ");
}

}  // namespace millrace::cli
