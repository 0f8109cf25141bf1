// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/run.h"

#include <set>

#include "millrace/base/thread/sync.h"
#include "millrace/monitor/nvml.h"
#include "millrace/monitor/programs.h"

namespace millrace::monitor {

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status run_monitor(const MonitorConfig& config, const std::vector<std::unique_ptr<Sink>>& sinks,
                   const std::function<void(const std::string&)>& missing, std::stop_token stop) {
  std::set<std::string> named;
  const auto name_once = [&](const std::string& part) {
    if (named.insert(part).second) missing(part);
  };
  const Result<std::unique_ptr<Nvml>> gpus = Nvml::open(config.nvml);
  if (!gpus) name_once("GPUs: " + gpus.error().message());
  const std::string host = host_name();
  Programs programs(config.programs);
  const auto interval = std::chrono::duration_cast<Clock::duration>(config.interval);
  Clock::time_point next = Clock::now();
  for (int64_t count = 0; !stop.stop_requested() && (config.samples == 0 || count < config.samples); ++count) {
    if (count > 0 && !sleep_until(next, stop)) break;
    Sample sample{.time_ns = now_ns(), .host = host, .values = {}, .missing = {}};
    read_node(config.roots, sample);
    read_clients(config.roots, sample);
    programs.read(sample);
    if (gpus) (*gpus)->read(sample);
    for (const std::string& part : sample.missing) name_once(part);
    for (const auto& sink : sinks) RETURN_IF_ERROR(sink->write(sample));
    next = std::max(next + interval, Clock::now());  // a slow sample delays the next, and none is made up for
  }
  return {};
}

}  // namespace millrace::monitor
