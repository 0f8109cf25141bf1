// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/job_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "millrace/base/thread/sync.h"

namespace millrace::cli {

namespace {

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json number_or_null(std::optional<int64_t> value) {
  return value ? Json(*value) : Json(nullptr);
}

Json time_or_null(std::optional<int64_t> seconds) {
  return seconds ? Json(jobs::utc_time(*seconds)) : Json(nullptr);
}

// What a wait has seen of its jobs.
class Waiting {
 public:
  Waiting(std::vector<std::string> ids, Context& context) : left_(std::move(ids)), context_(context) {}

  bool done() const { return left_.empty(); }
  std::span<const std::string> left() const { return left_; }

  // Error: not_found.
  Status take(std::span<const jobs::RunState> states) {
    std::vector<std::string> left;
    for (const std::string& id : left_) {
      const auto found = std::find_if(states.begin(), states.end(),
                                      [&](const jobs::RunState& state) { return state.job_id == slurm::base_id(id); });
      if (found == states.end()) return fail(ErrorCode::kNotFound, "no job {}: Slurm does not know it", id);
      if (found->state.empty()) {
        return fail(ErrorCode::kNotFound, "Slurm has forgotten how job {} ended, and keeps no accounting of it", id);
      }
      tell(id, *found);
      if (!jobs::has_ended(*found)) left.push_back(id);
    }
    left_ = std::move(left);
    return {};
  }

  Status verdict() const {
    if (failures_.empty()) return {};
    return fail(ErrorCode::kUnavailable, "{}", failures_);
  }

 private:
  void tell(const std::string& id, const jobs::RunState& state) {
    const std::string text = state_text(state);
    if (jobs::has_ended(state)) {
      const std::string exit = exit_text(state.exit);
      const std::string how =
          fmt::format("job {} ({}) ended {}{}", id, state.name, text, exit.empty() ? "" : ", " + exit);
      context_.out.print(job_json(state), how + "\n");
      if (state.state != "COMPLETED") failures_ += (failures_.empty() ? "" : "; ") + how;
    } else if (std::string& last = told_[id]; last != text) {
      context_.out.note(fmt::format("job {} ({}): {}{}", id, state.name, text,
                                    state.reason.empty() ? "" : " (" + state.reason + ")"));
      last = text;
    }
  }

  std::vector<std::string> left_;
  Context& context_;
  std::map<std::string, std::string> told_;
  std::string failures_;
};

}  // namespace

slurm::AskOptions slurm_options(const Context& context) {
  return {.time_limit = std::chrono::seconds(8), .stop = context.stop};
}

Result<jobs::Ledger> open_ledger() {
  ASSIGN_OR_RETURN(std::string folder, jobs::default_ledger_folder());
  return jobs::Ledger(std::move(folder));
}

Result<jobs::LedgerContents> read_ledger(const jobs::Ledger& ledger, Context& context) {
  ASSIGN_OR_RETURN(jobs::LedgerContents contents, ledger.read());
  for (const std::string& damaged : contents.damaged) context.out.note("not read: " + damaged);
  return contents;
}

Result<jobs::TrainingRecord> find_record(const std::string& typed) {
  std::error_code unknown;
  if (std::filesystem::is_directory(typed, unknown)) return jobs::read_training(typed);
  std::optional<jobs::TrainingRecord> newest;
  if (const auto ledger = open_ledger()) {
    for (const std::string& folder : jobs::remembered_trainings(*ledger)) {
      auto record = jobs::read_training(folder);
      const bool meant = record && (record->name == typed || record->fact("job_id") == typed);
      if (meant && (!newest || newest->starts.back().begun < record->starts.back().begun)) newest = *std::move(record);
    }
  }
  if (newest) return *std::move(newest);
  return fail(ErrorCode::kNotFound, "{} is neither a folder with a record nor a run that `millrace runs ls` lists",
              typed);
}

Json job_json(const jobs::RunState& state) {
  return {{"type", "job"},
          {"job_id", state.job_id},
          {"run", state.run == nullptr ? Json(nullptr) : Json(state.run->record.run)},
          {"name", state.name},
          {"user", state.user},
          {"state", text_or_null(state.state)},
          {"tasks", Json(state.tasks)},
          {"failed_tasks", state.failed_tasks},
          {"partition", text_or_null(state.partition)},
          {"nodes", state.node_count},
          {"node_list", text_or_null(state.nodes)},
          {"reason", text_or_null(state.reason)},
          {"dependency", text_or_null(state.dependency)},
          {"exit", text_or_null(state.exit)},
          {"submitted", time_or_null(state.submitted)},
          {"started", time_or_null(state.started)},
          {"ended", jobs::has_ended(state) ? time_or_null(state.ended) : Json(nullptr)},
          {"elapsed_s", number_or_null(state.elapsed_s)},
          {"limit_s", number_or_null(state.limit_s)},
          {"last_step", number_or_null(state.last_step)},
          {"source", jobs::source_name(state.source)}};
}

std::string state_text(const jobs::RunState& state) {
  if (state.state.empty()) return "UNKNOWN";
  int64_t all = 0;
  for (const auto& [name, count] : state.tasks) all += count;
  if (all <= 1) return state.state;
  std::string text;
  for (const auto& [name, count] : state.tasks) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text;
}

std::string exit_text(const std::string& exit) {
  const size_t colon = exit.find(':');
  if (colon == std::string::npos || exit == "0:0") return {};
  const std::string signal = exit.substr(colon + 1);
  return signal == "0" ? "exit status " + exit.substr(0, colon) : "signal " + signal;
}

std::string duration_text(std::optional<int64_t> seconds) {
  if (!seconds) return {};
  constexpr int64_t kMinute = 60, kHour = 3600, kDay = 86400;
  const std::string rest =
      fmt::format("{:02}:{:02}:{:02}", *seconds % kDay / kHour, *seconds % kHour / kMinute, *seconds % kMinute);
  return *seconds >= kDay ? fmt::format("{}-{}", *seconds / kDay, rest) : rest;
}

Status wait_for_jobs(std::vector<std::string> ids, const jobs::Ledger& ledger, Context& context) {
  constexpr std::chrono::milliseconds kFirst{500}, kLongest{15'000};
  ASSIGN_OR_RETURN(const jobs::LedgerContents all, read_ledger(ledger, context));
  const jobs::LedgerContents contents = jobs::runs_of(all, ids);
  Waiting waiting(std::move(ids), context);
  std::string trouble;
  bool has_answered = false;  // a Slurm that never answers is an error, one that is away for a while is not
  for (auto pause = kFirst;; pause = std::min(kLongest, pause * 3 / 2)) {
    const jobs::AskedRuns asked = jobs::ask_runs(ledger, contents, waiting.left(), slurm_options(context));
    if (asked.slurm) {
      trouble.clear();
      has_answered = true;
      RETURN_IF_ERROR(waiting.take(asked.states));
      if (waiting.done()) return waiting.verdict();
    } else if (!has_answered || asked.slurm.error().code() == ErrorCode::kNotFound) {
      return asked.slurm;
    } else if (const std::string text = asked.slurm.error().to_string(); text != trouble) {
      context.out.note(text + "; waiting goes on");
      trouble = text;
    }
    if (!sleep_until(Clock::now() + pause, context.stop))
      return fail(ErrorCode::kCancelled, "stopped waiting; the jobs go on");
  }
}

}  // namespace millrace::cli
