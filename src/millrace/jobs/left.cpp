// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/left.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "millrace/base/io/file_text.h"
#include "millrace/base/text/json_members.h"
#include "millrace/jobs/record.h"

namespace millrace::jobs {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int64_t kEndVersion = 1;

// Slurm uses numbers again: what is older than the run is another job's. Clocks of two machines may differ.
bool is_of(const LedgerRun& run, std::optional<int64_t> time) {
  constexpr int64_t kClocks = 60;
  return time && *time + kClocks >= run.record.submitted;
}

std::optional<LeftEnd> of_script(const LedgerRun& run) {
  const fs::path folder = fs::path(run.record.output).parent_path();
  if (folder.empty() || folder.string().find('%') != std::string::npos) return {};
  const std::string path = (folder / left_end_name(run.record.job_id)).string();
  const auto text = read_text(path);
  if (!text) return {};
  auto end = parse_left_end(*text);
  if (!end || !is_of(run, end->ended)) return {};
  end->file = path;
  return *std::move(end);
}

std::optional<LeftEnd> of_training(const TrainingEnd& training) {
  if (training.status != "completed" && training.status != "failed") return {};
  const bool fine = training.status == "completed";
  LeftEnd end{.file = training.file,
              .state = fine ? "COMPLETED" : "FAILED",
              .reason = training.error,
              .exit = {},
              .last_step = {},
              .nodes = {},
              .started = static_cast<int64_t>(training.begun),
              .ended = static_cast<int64_t>(training.last)};
  if (training.last_step >= 0) end.last_step = training.last_step;
  return end;
}

}  // namespace

std::string left_end_name(std::string_view job_id) {
  return fmt::format("ended-{}.json", job_id);
}

Result<LeftEnd> parse_left_end(std::string_view text) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (text_or_empty(object, "format") != "millrace-job-end" || !integer_at(object, "exit")) {
    return fail(ErrorCode::kCorruption, "this is no end of a job");
  }
  if (integer_at(object, "version").value_or(0) != kEndVersion) {
    return fail(ErrorCode::kUnsupported, "an end of a job of another version; a newer Millrace reads it");
  }
  LeftEnd end{.file = {},
              .state = "FAILED",
              .reason = {},
              .exit = integer_at(object, "exit"),
              .last_step = integer_at(object, "step"),
              .nodes = text_or_empty(object, "nodes"),
              .started = integer_at(object, "started"),
              .ended = integer_at(object, "ended")};
  if (*end.exit == 0) {
    end.state = "COMPLETED";
  } else if (bool_at(object, "stopped").value_or(false)) {
    end.state = "CANCELLED";
    end.reason = "StoppedBySlurm";
  }
  return end;
}

std::map<std::string, LeftEnd> find_left_ends(const Ledger& ledger, std::span<const LedgerRun* const> runs) {
  std::map<std::string, LeftEnd> found;
  std::map<std::string_view, const LedgerRun*> left;
  for (const LedgerRun* run : runs) {
    if (auto end = of_script(*run)) {
      found[run->record.run] = *std::move(end);
    } else {
      left[run->record.job_id] = run;
    }
  }
  if (left.empty()) return found;
  std::map<std::string, double> begun;
  for (const std::string& folder : remembered_trainings(ledger)) {
    const auto training = read_training_end(folder);
    if (!training) continue;
    const auto run = left.find(training->job_id);
    if (run == left.end() || !is_of(*run->second, static_cast<int64_t>(training->begun))) continue;
    const std::string& name = run->second->record.run;
    if (begun.contains(name) && begun[name] > training->begun) continue;
    begun[name] = training->begun;
    if (auto end = of_training(*training)) {
      found[name] = *std::move(end);
    } else {
      found.erase(name);  // the job's last training is not known to have ended
    }
  }
  return found;
}

}  // namespace millrace::jobs
