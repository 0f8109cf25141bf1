// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "millrace/base/published.h"
#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/cli/html_report.h"
#include "millrace/cli/job_files.h"
#include "millrace/monitor/run.h"

namespace millrace::cli {

namespace {

struct MonitorArgs {
  monitor::MonitorConfig config;
  std::string every;
  std::string csv, json_lines, prometheus, tensorboard, listen, html, job;
};

void check_monitor(MonitorArgs& args) {
  constexpr double kLeastSeconds = 0.01;
  if (!args.html.empty() && args.json_lines.empty() && args.csv.empty()) {
    throw CLI::ValidationError("--html", "plots the samples of --jsonl or --csv: name one");
  }
  args.config.interval = usage_value("--every", parse_duration(!args.every.empty() ? args.every
                                                               : args.job.empty()  ? "1s"
                                                                                   : "10s"));
  // A recording has no processes.
  if (args.config.roots.proc == monitor::Roots().proc) args.config.programs = published_folders();
  if (args.config.interval.count() < kLeastSeconds) throw CLI::ValidationError("--every", "is 10ms or more");
  for (const auto& [flag, folder] : {std::pair("--proc", args.config.roots.proc), {"--sys", args.config.roots.sys}}) {
    std::error_code unknown;
    if (!std::filesystem::is_directory(folder, unknown))
      throw CLI::ValidationError(flag, folder.string() + " is no folder");
  }
}

Status run_monitor_verb(const MonitorArgs& args, Context& context) {
  if (!args.job.empty()) return watch_job(args.job, args.config.interval.count(), args.config.samples, context);
  std::vector<std::unique_ptr<monitor::Sink>> sinks;
  if (!args.csv.empty()) sinks.push_back(monitor::csv_sink(args.csv));
  if (!args.json_lines.empty()) sinks.push_back(monitor::json_lines_sink(args.json_lines));
  if (!args.prometheus.empty()) sinks.push_back(monitor::prometheus_sink(args.prometheus));
  if (!args.tensorboard.empty()) sinks.push_back(monitor::tensorboard_sink(args.tensorboard));
  if (!args.listen.empty()) {
    std::string bound;
    ASSIGN_OR_RETURN(std::unique_ptr<monitor::Sink> sink, monitor::listen_sink(args.listen, bound));
    context.out.note(fmt::format("monitor: http://{}/metrics", bound));
    sinks.push_back(std::move(sink));
  }
  const auto print = [&](std::string_view lines) -> Status {
    if (!context.out.json()) {
      context.out.print_text(lines);
      return {};
    }
    for (size_t end = lines.find('\n'); end != lines.npos; end = lines.find('\n')) {
      context.out.print_json(Json::parse(lines.substr(0, end)));
      lines.remove_prefix(end + 1);
    }
    return {};
  };
  if (sinks.empty()) sinks.push_back(context.out.json() ? monitor::json_lines_sink(print) : monitor::csv_sink(print));
  const auto missing = [&](const std::string& part) { context.out.note("monitor: left out: " + part); };
  RETURN_IF_ERROR(monitor::run_monitor(args.config, sinks, missing, context.stop));
  HtmlReport report(args.html, "millrace monitor");
  report.add_input("samples", "", args.json_lines.empty() ? args.csv : args.json_lines);
  return report.write(context);
}

}  // namespace

void add_monitor(Verbs& verbs) {
  auto args = std::make_shared<MonitorArgs>();
  CLI::App& app = verbs.add(
      verbs.root(), "monitor", "Record what this node does: processors, memory, disks, network, file systems and GPUs",
      {"millrace monitor --csv logs/$(hostname).csv",
       "millrace monitor --every 10s --prometheus textfiles/millrace.prom",
       "millrace monitor --listen 0.0.0.0:9800 --samples 2 --every 10ms"},
      [args](Context& context) { return run_monitor_verb(*args, context); }, [args] { check_monitor(*args); });
  app.add_option("--every", args->every, "Time between samples (default: 1s; with --job: 10s)")->option_text("TIME");
  app.add_option("--samples", args->config.samples, "Stop after this many (default: when stopped by Ctrl-C or SIGTERM)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  auto* job = app.add_option("--job", args->job,
                             "Show the nodes of a job instead, worst first, from the samples beside its log")
                  ->option_text("ID");
  app.add_option("--csv", args->csv, "CSV file, one line a GPU; a file with the same columns is continued")
      ->option_text("FILE");
  app.add_option("--jsonl", args->json_lines, "File of one JSON object a line; continued if it exists")
      ->option_text("FILE");
  app.add_option("--prometheus", args->prometheus,
                 "File in Prometheus's text format (name it *.prom for node_exporter), replaced at each sample")
      ->option_text("FILE");
  app.add_option("--tensorboard", args->tensorboard, "Folder for a TensorBoard event file; counters become rates")
      ->option_text("DIR");
  app.add_option("--listen", args->listen, "Answer Prometheus at this port of 127.0.0.1, or at HOST:PORT")
      ->check([](const std::string& address) -> std::string {
        constexpr int64_t kLast = 65535;
        const size_t colon = address.rfind(':');
        const std::string port = colon == std::string::npos ? address : address.substr(colon + 1);
        const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
        if (!digits || parse_whole(port).value_or(kLast + 1) <= kLast) return {};
        return fmt::format("{} is no port; the last one is {}", port, kLast);
      })
      ->option_text("[HOST:]PORT");
  add_html_flag(app, args->html);
  app.add_option("--proc", args->config.roots.proc, "Folder to read instead of /proc")->option_text("DIR");
  app.add_option("--sys", args->config.roots.sys, "Folder to read instead of /sys")->option_text("DIR");
  app.add_option("--nvml", args->config.nvml, "NVML library to open (default: libnvidia-ml.so.1)")->option_text("FILE");
  for (const char* flag : {"--csv", "--jsonl", "--prometheus", "--tensorboard", "--listen", "--html"})
    job->excludes(flag);
}

}  // namespace millrace::cli
