// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/job_states.h"
#include "millrace/jobs/record.h"
#include "millrace/slurm/submit.h"

namespace millrace::cli {

namespace {

constexpr int64_t kRunSecondNs = 1'000'000'000;  // in nanoseconds

struct JobLsArgs {
  bool all = false, all_users = false;
  int64_t days = 7;
};

int64_t seconds_now() {
  return jobs::now_ns() / kRunSecondNs;
}

bool is_listed(const jobs::RunState& state, const JobLsArgs& args, const std::string& user, int64_t since) {
  if (!args.all_users && state.user != user) return false;
  const bool open = !jobs::has_ended(state) && !state.state.empty();
  return args.all || open || state.ended.value_or(state.submitted.value_or(0)) >= since;
}

// The reason why it waits, else where it runs or ran, else how it ended.
std::string note_of(const jobs::RunState& state) {
  if (state.state.empty()) return "Slurm has forgotten it";
  if (!jobs::has_ended(state)) return state.nodes.empty() ? state.reason : state.nodes;
  const std::string exit = exit_text(state.exit);
  return exit.empty() ? state.nodes : exit + (state.nodes.empty() ? "" : " on " + state.nodes);
}

Status run_job_ls(const JobLsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::Ledger ledger, open_ledger());
  ASSIGN_OR_RETURN(const jobs::LedgerContents contents, read_ledger(ledger, context));
  const jobs::AskedRuns asked = jobs::ask_runs(ledger, contents, {}, slurm_options(context));
  constexpr int64_t kDay = 86400;
  const int64_t since = seconds_now() - args.days * kDay;
  const std::string user = jobs::user_name();
  TextTable table({{"JOB", true},
                   {"NAME"},
                   {"STATE"},
                   {"PARTITION"},
                   {"NODES", true},
                   {"TIME", true},
                   {"LIMIT", true},
                   {"SUBMITTED"},
                   {""}});
  for (const jobs::RunState& state : asked.states) {
    if (!is_listed(state, args, user, since)) continue;
    if (context.out.json()) {
      context.out.print_json(job_json(state));
      continue;
    }
    constexpr size_t kLongest = 40;
    table.add({state.job_id, printable(state.name, kLongest), state_text(state), state.partition,
               std::to_string(state.node_count), duration_text(state.elapsed_s), duration_text(state.limit_s),
               state.submitted ? jobs::utc_time(*state.submitted) : "", printable(note_of(state), kLongest)});
  }
  if (!context.out.json()) context.out.print_text(table.empty() ? "no jobs\n" : table.to_string());
  return asked.slurm;
}

struct JobIdArgs {
  std::vector<std::string> ids;
  bool script = false;
};

struct AskedJob {
  jobs::Ledger ledger;
  jobs::LedgerContents contents;
  std::vector<std::string> ids;
};

Result<AskedJob> typed_jobs(const std::vector<std::string>& typed, Context& context) {
  ASSIGN_OR_RETURN(const jobs::Ledger ledger, open_ledger());
  ASSIGN_OR_RETURN(const jobs::LedgerContents all, read_ledger(ledger, context));
  ASSIGN_OR_RETURN(std::vector<std::string> ids, jobs::job_ids(ledger, all, typed));
  jobs::LedgerContents contents = jobs::runs_of(all, ids);
  return AskedJob{ledger, std::move(contents), std::move(ids)};
}

// The state of each id; an unknown job is an error.
Result<std::vector<const jobs::RunState*>> known_states(const AskedJob& job, const jobs::AskedRuns& asked) {
  std::vector<const jobs::RunState*> known;
  for (const std::string& id : job.ids) {
    const auto found = std::find_if(asked.states.begin(), asked.states.end(),
                                    [&](const jobs::RunState& state) { return state.job_id == slurm::base_id(id); });
    if (found != asked.states.end()) {
      known.push_back(&*found);
    } else if (!asked.slurm) {
      return tl::unexpected(asked.slurm.error());
    } else {
      return fail(ErrorCode::kNotFound, "no job {}: neither Slurm nor the ledger {} knows it", id, job.ledger.folder());
    }
  }
  return known;
}

// The record of the training that ran in the job (millrace.Run), where there is one.
std::optional<jobs::TrainingRecord> training_of(const jobs::RunState& state, const jobs::Ledger& ledger) {
  std::optional<jobs::TrainingRecord> newest;
  for (const std::string& folder : jobs::remembered_trainings(ledger)) {
    auto record = jobs::read_training(folder);
    if (!record || record->fact("job_id") != state.job_id) continue;
    // Slurm uses numbers again: a training that began before its job was submitted belongs to another.
    if (state.submitted && record->starts.back().begun < static_cast<double>(*state.submitted)) continue;
    if (!newest || newest->starts.back().begun < record->starts.back().begun) newest = *std::move(record);
  }
  return newest;
}

Json training_json(const jobs::TrainingRecord& training) {
  return {{"name", training.name},
          {"folder", training.folder},
          {"steps", training.last_step() < 0 ? Json(nullptr) : Json(training.last_step())},
          {"status", training.status().empty() ? Json(nullptr) : Json(training.status())}};
}

std::string training_text(const jobs::TrainingRecord& training) {
  const std::string status = training.status().empty() ? "runs, or was killed" : training.status();
  return fmt::format("{}: step {}, {}; `millrace runs show {}`", training.name, training.last_step(), status,
                     training.folder);
}

Json run_json(const jobs::RunState& state, const jobs::Ledger& ledger,
              const std::optional<jobs::TrainingRecord>& training) {
  Json object = job_json(state);
  const Json more = {{"type", "run"}, {"ledger", ledger.folder()}, {"record", nullptr}, {"events", Json::array()}};
  object.update(more);
  object["training"] = training ? training_json(*training) : Json(nullptr);
  if (state.run == nullptr) return object;
  object["record"] = jobs::record_json(state.run->record);
  for (const jobs::RunEvent& event : state.run->events) object["events"].push_back(jobs::event_json(event));
  return object;
}

class Lines {
 public:
  void add(std::string_view name, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("{:<12}{}\n", name, printable(value));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_record_lines(const jobs::LedgerRun& run, Lines& lines) {
  const jobs::RunRecord& record = run.record;
  lines.add("run", record.run);
  lines.add("script", fmt::format("{} (xxh3-128 {})", record.script, record.script_hash));
  lines.add("arguments", fmt::format("{}", fmt::join(record.arguments, " ")));
  lines.add("options", fmt::format("{}", fmt::join(record.options, " ")));
  std::string asked;
  for (const auto& [name, value] : record.asked) {
    asked += fmt::format("{}{}{}{}", asked.empty() ? "" : " ", name, value.empty() ? "" : "=", value);
  }
  lines.add("asked for", asked);
  lines.add("folder", record.work_dir);
  lines.add("log", record.output);
  lines.add("errors", record.error);
  if (record.git) lines.add("commit", record.git->commit + (record.git->dirty ? ", and changed files" : ""));
  lines.add("millrace", record.millrace);
  for (const auto& [name, value] : record.environment) lines.add("environment", name + "=" + value);
  for (const jobs::RunEvent& event : run.events) {
    if (event.kind != "end")
      lines.add(event.kind, fmt::format("{} by {}", jobs::utc_time(event.time_ns / kRunSecondNs), event.user));
  }
}

std::string run_text(const jobs::RunState& state, const std::optional<jobs::TrainingRecord>& training) {
  Lines lines;
  lines.add("job", state.job_id);
  lines.add("name", state.name);
  lines.add("user", state.user);
  lines.add("state",
            state_text(state) + (state.state.empty() ? ": Slurm has forgotten it, and keeps no accounting of it" : ""));
  lines.add("reason", state.reason);
  lines.add("waits for", state.dependency);
  lines.add("exit", exit_text(state.exit));
  if (!state.failed_tasks.empty() && state.tasks.size() + state.failed_tasks.size() > 2) {
    lines.add("failed", fmt::format("{}", fmt::join(state.failed_tasks, " ")));
  }
  lines.add("partition", state.partition);
  lines.add("nodes", state.nodes);
  const auto time = [](std::optional<int64_t> seconds) { return seconds ? jobs::utc_time(*seconds) : std::string(); };
  lines.add("submitted", time(state.submitted));
  lines.add("started", time(state.started));
  if (jobs::has_ended(state)) lines.add("ended", time(state.ended));
  lines.add("time", duration_text(state.elapsed_s));
  lines.add("limit", duration_text(state.limit_s));
  if (state.last_step && !training) lines.add("last step", std::to_string(*state.last_step));
  if (state.source == jobs::StateSource::kJob) lines.add("known from", "what the job itself left");
  if (training) lines.add("training", training_text(*training));
  if (state.run != nullptr) add_record_lines(*state.run, lines);
  return lines.take();
}

Status print_script(const jobs::RunState& state, const jobs::Ledger& ledger, Context& context) {
  if (state.run == nullptr) {
    return fail(ErrorCode::kNotFound,
                "job {} was not submitted by `millrace job submit`, so the ledger {} has no script of it", state.job_id,
                ledger.folder());
  }
  ASSIGN_OR_RETURN(const std::string text, ledger.script_text(state.run->record));
  context.out.print({{"type", "run_script"}, {"job_id", state.job_id}, {"script", printable(text, text.size())}}, text);
  return {};
}

Status run_job_show(const JobIdArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const AskedJob job, typed_jobs(args.ids, context));
  const jobs::AskedRuns asked = jobs::ask_runs(job.ledger, job.contents, job.ids, slurm_options(context));
  ASSIGN_OR_RETURN(const auto states, known_states(job, asked));
  for (const jobs::RunState* state : states) {
    if (args.script) {
      RETURN_IF_ERROR(print_script(*state, job.ledger, context));
    } else {
      const auto training = training_of(*state, job.ledger);
      context.out.print(run_json(*state, job.ledger, training), run_text(*state, training));
    }
  }
  return asked.slurm;
}

Status run_job_wait(const JobIdArgs& args, Context& context) {
  ASSIGN_OR_RETURN(AskedJob job, typed_jobs(args.ids, context));
  return wait_for_jobs(std::move(job.ids), job.ledger, context);
}

enum class Change { kCancel, kRequeue };

// Tells the ledger of a change by us. That the ledger cannot be written does not undo it.
void record_change(const AskedJob& job, const jobs::RunState& state, Change change, Context& context) {
  if (state.run == nullptr) return;
  const jobs::RunEvent event{
      .kind = change == Change::kCancel ? "cancel" : "requeue", .time_ns = jobs::now_ns(), .user = jobs::user_name()};
  if (const Status written = job.ledger.add_event(state.run->record, event); !written) {
    context.out.note("the ledger does not know of it: " + written.error().to_string());
  }
}

Status run_job_change(const JobIdArgs& args, Change change, Context& context) {
  ASSIGN_OR_RETURN(const AskedJob job, typed_jobs(args.ids, context));
  const jobs::AskedRuns asked = jobs::ask_runs(job.ledger, job.contents, job.ids, slurm_options(context));
  RETURN_IF_ERROR(asked.slurm);
  ASSIGN_OR_RETURN(const auto states, known_states(job, asked));
  std::vector<std::string> ids;
  std::vector<const jobs::RunState*> changed;
  for (size_t i = 0; i < states.size(); ++i) {
    const bool ended = jobs::has_ended(*states[i]) || states[i]->state.empty();
    if (change == Change::kCancel && ended) {
      context.out.note(
          fmt::format("job {} has ended ({}); there is no job to cancel", job.ids[i], state_text(*states[i])));
      continue;
    }
    if (states[i]->source != jobs::StateSource::kQueue) {
      return fail(ErrorCode::kNotFound,
                  "Slurm has forgotten job {}, so it cannot be requeued; submit its script again: "
                  "`millrace job show {} --script` prints it",
                  job.ids[i], job.ids[i]);
    }
    ids.push_back(job.ids[i]);
    changed.push_back(states[i]);
  }
  if (ids.empty()) return {};
  RETURN_IF_ERROR(change == Change::kCancel ? slurm::cancel(ids, slurm_options(context))
                                            : slurm::requeue(ids, slurm_options(context)));
  for (size_t i = 0; i < ids.size(); ++i) {
    record_change(job, *changed[i], change, context);
    const std::string_view what = change == Change::kCancel ? "cancelled" : "requeued";
    context.out.print_done(
        {{"type", "job_changed"}, {"job_id", ids[i]}, {"name", changed[i]->name}, {"change", what}},
        fmt::format("job {} ({}): {}{}\n", ids[i], printable(changed[i]->name), what,
                    change == Change::kRequeue ? "; Slurm holds it back for up to two minutes (BeginTime)" : ""));
  }
  return {};
}

void add_ids(CLI::App& app, JobIdArgs& args) {
  app.add_option("ID", args.ids, "Number of a job (12), element of an array (12_3), or name of a run")
      ->required()
      ->option_text(" ");
}

}  // namespace

void add_job_runs(Verbs& verbs, CLI::App& job) {
  auto ls_args = std::make_shared<JobLsArgs>();
  CLI::App& ls = verbs.add(job, "ls", "List your jobs: those in Slurm's queue, and submitted runs that have ended",
                           {"millrace job ls", "millrace job ls --days 30 --json", "millrace job ls --all --all-users"},
                           [ls_args](Context& context) { return run_job_ls(*ls_args, context); });
  ls.add_option("--days", ls_args->days, "Show runs that ended in the last N days (default: 7)")
      ->check(CLI::Range(int64_t{0}, int64_t{36500}))
      ->option_text("N");
  ls.add_flag("--all", ls_args->all, "Ended runs of any age")->excludes("--days");
  ls.add_flag("--all-users", ls_args->all_users, "Jobs of all users");

  const auto add = [&](const char* name, const char* description, const std::array<std::string, 3>& examples,
                       Status (*run)(const JobIdArgs&, Context&)) -> std::pair<CLI::App&, std::shared_ptr<JobIdArgs>> {
    auto args = std::make_shared<JobIdArgs>();
    CLI::App& app =
        verbs.add(job, name, description, examples, [args, run](Context& context) { return run(*args, context); });
    add_ids(app, *args);
    return {app, args};
  };
  auto [show, show_args] = add(
      "show", "Show a job's state and what was submitted",
      {"millrace job show 1234", "millrace job show pretrain --json", "millrace job show 1234 --script"}, run_job_show);
  show.add_flag("--script", show_args->script, "Print the script as it was submitted, without its secrets");
  add("wait", "Wait for the end of jobs; exit status 1 when one did not complete",
      {"millrace job wait 1234", "millrace job wait 1234 1235 --json", "millrace job wait pretrain && ./evaluate.sh"},
      run_job_wait);
  add("cancel", "Cancel jobs",
      {"millrace job cancel 1234", "millrace job cancel 1234_7", "millrace job cancel pretrain"},
      [](const JobIdArgs& args, Context& context) { return run_job_change(args, Change::kCancel, context); });
  add("requeue", "Run jobs again under the same number, from the queue",
      {"millrace job requeue 1234", "millrace job requeue 1234_7", "millrace job requeue pretrain"},
      [](const JobIdArgs& args, Context& context) { return run_job_change(args, Change::kRequeue, context); });
}

}  // namespace millrace::cli
