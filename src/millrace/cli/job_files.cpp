// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/job_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/units.h"
#include "millrace/cli/job_states.h"
#include "millrace/doctor/facts.h"
#include "millrace/jobs/log_files.h"

namespace millrace::cli {

namespace {

namespace fs = std::filesystem;

// The monitor of `job new train` names its files after the job: gpu-JOB-NODE-START.csv.
void find_samples(const std::string& id, const fs::path& folder, std::set<std::string>& samples) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const size_t place = name.find(id), behind = place + id.size();
    const bool is_of_job = place != std::string::npos && (place == 0 || !is_digit(name[place - 1])) &&
                           (behind == name.size() || !is_digit(name[behind]));
    const bool has_form = name.ends_with(".csv") || name.ends_with(".jsonl");
    if (is_of_job && has_form && doctor::is_samples_file(at->path().string())) samples.insert(at->path().string());
  }
}

struct NodeLine {
  std::string host;
  double age_s = 0;                     // of its newest sample
  double busy = NAN, least_busy = NAN;  // of its GPUs
  double gpu_memory = NAN, celsius = NAN, cpu = NAN, available = NAN, io_wait = NAN, data_wait = NAN, received = NAN;
  int gpus = 0;

  // How much it works, 0 to 1: by its least used GPU; without GPUs by its processors, and by what it does not wait for.
  double work() const {
    if (!std::isnan(least_busy)) return least_busy;
    return std::fmin(std::isnan(cpu) ? 1 : cpu, 1 - std::fmax(std::fmax(0, io_wait), data_wait));
  }
};

double newest(const std::vector<doctor::Point>& points) {
  return points.empty() ? NAN : points.back().value;
}

// Between the last two samples.
double newest_rate(const std::vector<doctor::Point>& points) {
  if (points.size() < 2) return NAN;
  const doctor::Point &a = points[points.size() - 2], &b = points.back();
  return b.time > a.time && b.value >= a.value ? (b.value - a.value) / (b.time - a.time) : NAN;
}

double plus(double sum, double value) {
  return std::isnan(sum) ? value : std::isnan(value) ? sum : sum + value;
}

NodeLine line_of(const doctor::NodeSamples& node, double now) {
  NodeLine line;
  line.host = node.host;
  line.age_s = now - node.ended();
  double used = NAN, size = NAN, all = NAN, idle = NAN;
  for (const auto& [key, points] : node.series) {
    const auto is = [&](std::string_view name) { return std::string_view(key).starts_with(name); };
    if (is("millrace_gpu_busy_ratio")) {
      ++line.gpus;
      line.busy = plus(line.busy, newest(points));
      line.least_busy = std::isnan(line.least_busy) ? newest(points) : std::min(line.least_busy, newest(points));
    }
    if (is("millrace_gpu_memory_used_bytes")) used = plus(used, newest(points));
    if (is("millrace_gpu_memory_size_bytes")) size = plus(size, newest(points));
    if (is("millrace_gpu_temperature_celsius")) line.celsius = std::fmax(line.celsius, newest(points));
    if (is("millrace_node_cpu_seconds_total")) all = plus(all, newest_rate(points));
    if (key == "millrace_node_cpu_seconds_total{mode=\"idle\"}") idle = newest_rate(points);
    if (key == "millrace_node_memory_bytes{kind=\"available\"}") line.available = newest(points);
    if (key == "millrace_node_pressure_seconds_total{resource=\"io\",kind=\"full\"}")
      line.io_wait = newest_rate(points);
    if (key == "millrace_training_waiting_ratio") line.data_wait = newest(points);
    if (is("millrace_network_receive_bytes_total") || is("millrace_rdma_receive_bytes_total")) {
      line.received = plus(line.received, newest_rate(points));
    }
  }
  if (line.gpus > 0) line.busy /= line.gpus;
  line.gpu_memory = used / size;
  line.cpu = 1 - idle / all;
  return line;
}

std::string share_text(double share) {
  return std::isnan(share) ? "" : fmt::format("{:.0f} %", share * 100);
}

Json number_or_null(double value) {
  return std::isnan(value) ? Json(nullptr) : Json(value);
}

Json line_json(const NodeLine& line) {
  return {{"type", "monitor_node"},
          {"host", line.host},
          {"age_s", line.age_s},
          {"gpus", line.gpus},
          {"busy", number_or_null(line.busy)},
          {"least_busy", number_or_null(line.least_busy)},
          {"gpu_memory", number_or_null(line.gpu_memory)},
          {"celsius", number_or_null(line.celsius)},
          {"cpu", number_or_null(line.cpu)},
          {"available_bytes", number_or_null(line.available)},
          {"io_wait", number_or_null(line.io_wait)},
          {"data_wait", number_or_null(line.data_wait)},
          {"received_bytes_per_s", number_or_null(line.received)}};
}

// The newest file of each node: a start after a requeue has one of its own.
std::vector<NodeLine> lines_of(const std::set<std::string>& paths, double now) {
  std::map<std::string, NodeLine> by_host;
  for (const std::string& path : paths) {
    const auto samples = doctor::read_samples(path);
    if (!samples) continue;  // it has no sample yet
    const NodeLine line = line_of(*samples, now);
    const auto [place, fresh] = by_host.try_emplace(line.host, line);
    if (!fresh && line.age_s < place->second.age_s) place->second = line;
  }
  std::vector<NodeLine> lines;
  for (auto& [host, line] : by_host) lines.push_back(std::move(line));
  // Worst first.
  std::sort(lines.begin(), lines.end(), [](const NodeLine& a, const NodeLine& b) {
    return a.work() != b.work() ? a.work() < b.work() : a.host < b.host;
  });
  return lines;
}

}  // namespace

Result<JobFiles> find_job_files(const std::string& typed, Context& context) {
  JobFiles found{.id = typed, .details = {}, .unknown = {}, .logs = {}, .samples = {}};
  const jobs::LedgerRun* run = nullptr;
  jobs::LedgerContents contents;
  std::vector<std::string> steps;  // of srun, as the submitted script names them
  if (const auto ledger = open_ledger()) {
    if (const auto all = ledger->read()) {
      ASSIGN_OR_RETURN(const std::vector<std::string> ids, jobs::job_ids(*ledger, *all, std::span(&typed, 1)));
      found.id = ids.front();
      contents = jobs::runs_of(*all, ids);
      if (!contents.runs.empty()) {
        run = &contents.runs.back();
        if (const auto text = ledger->script_text(run->record))
          steps = jobs::step_patterns(*text, run->record.work_dir);
      }
    }
  }
  const auto details = slurm::ask_details(found.id, slurm_options(context));
  const bool known = details && !details->empty();
  if (!known) found.unknown = details ? "Slurm has forgotten it" : details.error().message();
  if (!known && run == nullptr) {
    if (!details) return tl::unexpected(details.error());
    return fail(ErrorCode::kNotFound, "no job {}: neither Slurm nor the ledger knows it", found.id);
  }
  const jobs::RunRecord* record = run == nullptr ? nullptr : &run->record;
  std::vector<jobs::LogPattern> patterns;
  if (known) {
    found.details = details->front();
    for (const slurm::JobDetails& job : *details) {
      for (jobs::LogPattern& each : jobs::log_patterns(job, record, steps)) patterns.push_back(std::move(each));
    }
  } else {
    patterns = jobs::log_patterns(*record, "", steps);
  }
  std::set<fs::path> folders;
  for (const jobs::LogPattern& pattern : patterns) {
    for (const std::string& path : jobs::matching_files(pattern.glob)) {
      found.logs.insert(path);
      folders.insert(fs::path(path).parent_path());
    }
  }
  for (const fs::path& folder : folders) find_samples(found.id, folder, found.samples);
  return found;
}

Status watch_job(const std::string& typed, double seconds, int64_t times, Context& context) {
  constexpr double kNanoseconds = 1e9;
  for (int64_t count = 0; times == 0 || count < times; ++count) {
    const auto pause = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (count > 0 && !sleep_until(Clock::now() + pause, context.stop)) return {};
    ASSIGN_OR_RETURN(const JobFiles job, find_job_files(typed, context));
    const bool ended = !job.details || slurm::is_ended(job.details->state);
    TextTable table({{"node"},
                     {"GPUs", true},
                     {"busy", true},
                     {"least", true},
                     {"memory", true},
                     {"C", true},
                     {"CPU", true},
                     {"free memory", true},
                     {"waits for I/O", true},
                     {"for data", true},
                     {"received", true},
                     {"seen", true}});
    const std::vector<NodeLine> lines = lines_of(job.samples, static_cast<double>(jobs::now_ns()) / kNanoseconds);
    for (const NodeLine& line : lines) {
      context.out.print_json(line_json(line));
      table.add({line.host, line.gpus > 0 ? std::to_string(line.gpus) : "", share_text(line.busy),
                 share_text(line.least_busy), share_text(line.gpu_memory),
                 std::isnan(line.celsius) ? "" : fmt::format("{:.0f}", line.celsius), share_text(line.cpu),
                 std::isnan(line.available) ? "" : format_bytes(static_cast<int64_t>(line.available)),
                 share_text(line.io_wait), share_text(line.data_wait),
                 std::isnan(line.received) ? "" : format_rate(line.received),
                 fmt::format("{} ago", format_duration(line.age_s))});
    }
    std::string text = isatty(STDOUT_FILENO) != 0 && count > 0 ? "\x1b[H\x1b[2J" : "";
    text += fmt::format("job {}: {}, {} with samples\n", job.id, job.details ? job.details->state : job.unknown,
                        counted(static_cast<int64_t>(lines.size()), "node"));
    if (lines.empty())
      text += "no samples yet: `job new train` starts a monitor on each node, which writes beside the log\n";
    context.out.print_text(text + (lines.empty() ? "" : table.to_string()));
    RETURN_IF_ERROR(context.out.flush());
    if (ended) return {};
  }
  return {};
}

}  // namespace millrace::cli
