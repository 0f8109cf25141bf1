// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "millrace/base/log.h"
#include "millrace/base/text/ascii.h"

namespace millrace::jobs {

namespace {

using slurm::JobState;

constexpr int64_t kDay = 86400;

int64_t now_s() {
  return now_ns() / 1'000'000'000;
}

// Adds one line of squeue or sacct to the state of its run.
void add_line(const JobState& line, RunState& state) {
  const auto earliest = [](std::optional<int64_t>& to, std::optional<int64_t> from) {
    if (from && (!to || *from < *to)) to = from;
  };
  const auto latest = [](std::optional<int64_t>& to, std::optional<int64_t> from) {
    if (from && (!to || *from > *to)) to = from;
  };
  state.tasks[line.state] += line.tasks;
  if (slurm::is_ended(line.state) && line.state != "COMPLETED") state.failed_tasks.push_back(line.id);
  if (state.name.empty()) state.name = line.name;
  if (state.user.empty()) state.user = line.user;
  if (state.partition.empty()) state.partition = line.partition;
  if (state.reason.empty()) state.reason = line.reason;
  if (state.dependency.empty()) state.dependency = line.dependency;
  // Elements of an array share nodes.
  const bool known = ("," + state.nodes + ",").find("," + line.nodes + ",") != std::string::npos;
  if (!line.nodes.empty() && !known) state.nodes += (state.nodes.empty() ? "" : ",") + line.nodes;
  // The exit of the first failure says more than a later success.
  if (state.exit.empty() || state.exit == "0:0") state.exit = line.exit;
  state.node_count = std::max(state.node_count, line.node_count);
  earliest(state.submitted, line.submitted);
  earliest(state.started, line.started);
  latest(state.ended, line.ended);
  latest(state.elapsed_s, line.elapsed_s);
  latest(state.limit_s, line.limit_s);
}

std::string joint_state(const std::map<std::string, int64_t>& tasks) {
  for (const std::string_view alive : {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "PENDING"}) {
    if (tasks.count(std::string(alive)) > 0) return std::string(alive);
  }
  for (const auto& [state, count] : tasks) {
    if (!slurm::is_ended(state)) return state;
  }
  for (const auto& [state, count] : tasks) {
    if (state != "COMPLETED") return state;
  }
  return tasks.empty() ? "" : "COMPLETED";
}

RunState joined_state(const std::vector<const JobState*>& lines, StateSource source) {
  RunState state{.job_id = lines[0]->base_id, .source = source};
  for (const JobState* line : lines) add_line(*line, state);
  state.state = joint_state(state.tasks);
  return state;
}

std::optional<int64_t> fact_number(const RunEvent& event, const char* name) {
  const auto found = event.facts.find(name);
  if (found == event.facts.end()) return {};
  int64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [at, error] = std::from_chars(found->second.data(), end, value);
  return error == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

std::string fact(const RunEvent& event, const char* name) {
  const auto found = event.facts.find(name);
  return found == event.facts.end() ? "" : found->second;
}

// "COMPLETED:3,FAILED:1"
std::string tasks_text(const std::map<std::string, int64_t>& tasks) {
  std::string text;
  for (const auto& [state, count] : tasks) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", state, count);
  return text;
}

std::map<std::string, int64_t> parse_tasks(std::string_view text) {
  std::map<std::string, int64_t> tasks;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos) continue;
    int64_t count = 0;
    std::from_chars(item.data() + colon + 1, item.data() + item.size(), count);
    tasks[std::string(item.substr(0, colon))] = count;
  }
  return tasks;
}

RunState recorded_end(const LedgerRun& run, const RunEvent& end) {
  return RunState{.job_id = run.record.job_id,
                  .partition = fact(end, "partition"),
                  .state = fact(end, "state"),
                  .tasks = parse_tasks(fact(end, "tasks")),
                  .reason = fact(end, "reason"),
                  .nodes = fact(end, "nodes"),
                  .exit = fact(end, "exit"),
                  .node_count = fact_number(end, "node_count").value_or(0),
                  .started = fact_number(end, "started"),
                  .ended = fact_number(end, "ended"),
                  .elapsed_s = fact_number(end, "elapsed_s"),
                  .limit_s = fact_number(end, "limit_s"),
                  .last_step = fact_number(end, "last_step"),
                  .source = StateSource::kLedger};
}

RunState left_state(const LedgerRun& run, const LeftEnd& end) {
  RunState state{.job_id = run.record.job_id,
                 .state = end.state,
                 .tasks = {{end.state, 1}},
                 .reason = end.reason,
                 .nodes = end.nodes,
                 .exit = end.exit ? fmt::format("{}:0", *end.exit) : "",
                 .started = end.started,
                 .ended = end.ended,
                 .last_step = end.last_step,
                 .source = StateSource::kJob};
  if (const auto nodes = slurm::expand_hostlist(end.nodes)) state.node_count = std::ssize(*nodes);
  if (end.started && end.ended) state.elapsed_s = std::max<int64_t>(0, *end.ended - *end.started);
  return state;
}

RunEvent end_event(const RunState& state) {
  RunEvent event{.kind = "end", .time_ns = now_ns(), .user = user_name()};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) event.facts[name] = value;
  };
  const auto add_number = [&](const char* name, std::optional<int64_t> value) {
    if (value) event.facts[name] = std::to_string(*value);
  };
  add("state", state.state);
  add("partition", state.partition);
  add("reason", state.reason);
  add("nodes", state.nodes);
  add("exit", state.exit);
  add("tasks", tasks_text(state.tasks));
  add("source", std::string(source_name(state.source)));
  add_number("node_count", state.node_count);
  add_number("started", state.started);
  add_number("ended", state.ended);
  add_number("elapsed_s", state.elapsed_s);
  add_number("limit_s", state.limit_s);
  add_number("last_step", state.last_step);
  return event;
}

using Lines = std::map<std::string_view, std::vector<const JobState*>>;

Lines lines_by_id(std::span<const JobState> jobs) {
  Lines lines;
  for (const JobState& job : jobs) lines[job.base_id].push_back(&job);
  return lines;
}

// Slurm gives an id again after its numbers were reset; what was submitted long before the run is another job. A
// requeue sets a later time of submission, so only this side counts.
bool is_of(const LedgerRun& run, const std::vector<const JobState*>& lines) {
  return !lines[0]->submitted || *lines[0]->submitted + kDay >= run.record.submitted;
}

const std::vector<const JobState*>* lines_of_run(const Lines& lines, const LedgerRun& run) {
  const auto found = lines.find(run.record.job_id);
  return found != lines.end() && is_of(run, found->second) ? &found->second : nullptr;
}

bool is_on(const LedgerRun& run, std::string_view cluster) {
  return run.record.cluster.empty() || cluster.empty() || run.record.cluster == cluster;
}

// By job id, of the cluster that was asked: a later run takes the id.
std::map<std::string_view, const LedgerRun*> newest_runs(std::span<const LedgerRun> runs, std::string_view cluster) {
  std::map<std::string_view, const LedgerRun*> newest;
  for (const LedgerRun& run : runs) {
    if (is_on(run, cluster)) newest[run.record.job_id] = &run;
  }
  return newest;
}

void add_record(const LedgerRun& run, RunState& state) {
  state.run = &run;
  state.name = run.record.name;
  state.user = run.record.user;
  state.submitted = run.record.submitted;
  if (state.partition.empty()) {
    const auto asked = run.record.asked.find("partition");
    if (asked != run.record.asked.end()) state.partition = asked->second;
  }
}

bool is_end_of(const RunState& state, const RunEvent& end) {
  return fact(end, "state") == state.state && fact_number(end, "ended") == state.ended;
}

RunState state_of_run(const LedgerRun& run, bool newest, const Lines& queue, const Lines& accounting,
                      const std::map<std::string, LeftEnd>& left) {
  RunState state{.job_id = run.record.job_id};
  if (const auto* lines = newest ? lines_of_run(queue, run) : nullptr) {
    state = joined_state(*lines, StateSource::kQueue);
    // squeue tells it in another form, which is asked for once.
    if (run.end() != nullptr && state.exit.empty() && is_end_of(state, *run.end()))
      state.exit = fact(*run.end(), "exit");
  } else if (const RunEvent* end = run.end()) {
    state = recorded_end(run, *end);
  } else if (const auto* kept = newest ? lines_of_run(accounting, run) : nullptr) {
    state = joined_state(*kept, StateSource::kAccounting);
  } else if (const auto said = left.find(run.record.run); said != left.end()) {
    state = left_state(run, said->second);
  }
  add_record(run, state);
  return state;
}

// Runs of which neither the queue nor the ledger knows an end.
std::vector<const LedgerRun*> forgotten_runs(std::span<const LedgerRun> runs, std::span<const JobState> queue,
                                             std::string_view cluster) {
  const Lines lines = lines_by_id(queue);
  std::vector<const LedgerRun*> forgotten;
  for (const auto& [id, run] : newest_runs(runs, cluster)) {
    if (run->end() == nullptr && lines_of_run(lines, *run) == nullptr) forgotten.push_back(run);
  }
  return forgotten;
}

Result<std::vector<JobState>> ask_forgotten(const std::vector<const LedgerRun*>& forgotten,
                                            const slurm::AskOptions& options) {
  if (forgotten.empty()) return std::vector<JobState>();
  std::vector<std::string> ids;
  int64_t since = now_s();
  for (const LedgerRun* run : forgotten) {
    ids.push_back(run->record.job_id);
    since = std::min(since, run->record.submitted);
  }
  auto kept = slurm::ask_accounting(ids, since - kDay, options);
  if (!kept && kept.error().code() == ErrorCode::kUnsupported) return std::vector<JobState>();
  return kept;
}

bool is_new_end(const RunState& state) {
  const bool told = state.source != StateSource::kLedger && state.source != StateSource::kNone;
  if (state.run == nullptr || !told || !has_ended(state)) return false;
  const RunEvent* known = state.run->end();
  return known == nullptr || !is_end_of(state, *known);
}

void record_ends(const Ledger& ledger, std::span<const RunState> states) {
  for (const RunState& state : states) {
    if (!is_new_end(state)) continue;
    if (const Status written = ledger.add_event(state.run->record, end_event(state)); !written) {
      log(LogLevel::kWarning, "the ledger does not keep how job {} ended: {}", state.job_id,
          written.error().to_string());
      return;
    }
  }
}

// The exit statuses of jobs that ended since the last call: squeue's short form lacks them.
void add_new_exits(std::span<const LedgerRun> runs, std::vector<JobState>& queue, const slurm::AskOptions& options) {
  std::set<std::string_view> open;
  for (const LedgerRun& run : runs) {
    if (run.end() == nullptr) open.insert(run.record.job_id);
  }
  const bool any = std::any_of(queue.begin(), queue.end(), [&](const JobState& job) {
    return slurm::is_ended(job.state) && open.count(job.base_id) > 0;
  });
  if (!any) return;
  if (const Status asked = slurm::ask_exits(queue, options); !asked) {
    log(LogLevel::kWarning, "exit statuses are unknown: {}", asked.error().to_string());
  }
}

// Costs a call, so it is asked only where the ledger holds runs of several.
std::string cluster_of(std::span<const LedgerRun> runs, const slurm::AskOptions& options) {
  std::set<std::string_view> names;
  for (const LedgerRun& run : runs) {
    if (!run.record.cluster.empty()) names.insert(run.record.cluster);
  }
  return names.size() > 1 ? slurm::ask_cluster_name(options).value_or("") : "";
}

// "12_3"
bool is_element(std::string_view id) {
  return id.find('_') != std::string_view::npos;
}

bool is_job_id(std::string_view id) {
  return !id.empty() && is_digit(id[0]) && id.find_first_not_of("0123456789_") == std::string_view::npos;
}

}  // namespace

std::string_view source_name(StateSource source) {
  switch (source) {
    case StateSource::kQueue:
      return "squeue";
    case StateSource::kAccounting:
      return "sacct";
    case StateSource::kLedger:
      return "ledger";
    case StateSource::kJob:
      return "job";
    case StateSource::kNone:
      break;
  }
  return "none";
}

bool has_ended(const RunState& state) {
  return slurm::is_ended(state.state);
}

std::vector<RunState> join_runs(std::span<const LedgerRun> runs, std::span<const JobState> queue,
                                std::span<const JobState> accounting, std::string_view cluster,
                                const std::map<std::string, LeftEnd>& left) {
  const Lines queued = lines_by_id(queue), kept = lines_by_id(accounting);
  const auto newest = newest_runs(runs, cluster);
  std::vector<RunState> states;
  for (const LedgerRun& run : runs) {
    const auto found = newest.find(run.record.job_id);
    states.push_back(state_of_run(run, found != newest.end() && found->second == &run, queued, kept, left));
  }
  for (const auto& [id, lines] : queued) {
    const auto found = newest.find(id);
    if (found == newest.end() || !is_of(*found->second, lines))
      states.push_back(joined_state(lines, StateSource::kQueue));
  }
  std::stable_sort(states.begin(), states.end(), [](const RunState& a, const RunState& b) {
    return a.submitted.value_or(0) < b.submitted.value_or(0);
  });
  return states;
}

AskedRuns ask_runs(const Ledger& ledger, const LedgerContents& contents, std::span<const std::string> ids,
                   const slurm::AskOptions& options) {
  const std::span<const LedgerRun> runs = contents.runs;
  auto queue = slurm::ask_queue(ids, options);
  // The accounting is not asked after a failure, so that a dead controller costs one time limit.
  if (!queue) return {join_runs(runs, {}, {}, ""), tl::unexpected(queue.error())};
  const std::string cluster = cluster_of(runs, options);
  add_new_exits(runs, *queue, options);
  std::vector<const LedgerRun*> forgotten = forgotten_runs(runs, *queue, cluster);
  const auto kept = ask_forgotten(forgotten, options);
  const std::span<const JobState> accounting = kept ? std::span<const JobState>(*kept) : std::span<const JobState>();
  const Lines accounted = lines_by_id(accounting);
  std::erase_if(forgotten, [&](const LedgerRun* run) { return lines_of_run(accounted, *run) != nullptr; });
  AskedRuns asked{join_runs(runs, *queue, accounting, cluster, find_left_ends(ledger, forgotten)), {}};
  if (!kept) asked.slurm = tl::unexpected(kept.error());
  // One element does not tell how its array ended.
  const bool whole = std::none_of(ids.begin(), ids.end(), [](const std::string& id) { return is_element(id); });
  if (whole) record_ends(ledger, asked.states);
  return asked;
}

LedgerContents runs_of(const LedgerContents& contents, std::span<const std::string> ids) {
  std::map<std::string_view, const LedgerRun*> newest;
  for (const std::string& id : ids) newest[slurm::base_id(id)] = nullptr;
  for (const LedgerRun& run : contents.runs) {
    if (const auto found = newest.find(run.record.job_id); found != newest.end()) found->second = &run;
  }
  LedgerContents some;
  for (const auto& [id, run] : newest) {
    if (run != nullptr) some.runs.push_back(*run);
  }
  return some;
}

Result<std::vector<std::string>> job_ids(const Ledger& ledger, const LedgerContents& contents,
                                         std::span<const std::string> typed) {
  std::vector<std::string> ids;
  for (const std::string& text : typed) {
    if (is_job_id(text)) {
      ids.push_back(text);
      continue;
    }
    const auto found = std::find_if(contents.runs.rbegin(), contents.runs.rend(), [&](const LedgerRun& run) {
      return run.record.run == text || run.record.name == text;
    });
    if (found == contents.runs.rend()) {
      return fail(ErrorCode::kNotFound,
                  "'{}' is neither the number of a job nor the name of a run in {}; `millrace job "
                  "ls --all` lists them",
                  text, ledger.folder());
    }
    ids.push_back(found->record.job_id);
  }
  return ids;
}

}  // namespace millrace::jobs
