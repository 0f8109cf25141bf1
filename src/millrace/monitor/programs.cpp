// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/programs.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::monitor {

namespace {

constexpr double kSecondsPerNs = 1e-9;

constexpr Series kProcesses{"millrace_training_processes", "Processes of this node with a loader or checkpointer"};
constexpr Series kWaiting{"millrace_training_waiting_ratio",
                          "Share of the time since the sample before that they waited for batches, on average"};
constexpr Series kQueue{"millrace_training_queue_batches",
                        "Batches that were ready when one was taken, of the process with the fewest"};
constexpr Series kUnderWay{"millrace_training_saves_under_way", "Checkpoints that have not ended in all tiers"};
constexpr Series kLinks{"millrace_links", "Links between a directory and a bucket that processes of this node run"};
constexpr Series kBehind{"millrace_link_behind_seconds", "For how long the oldest change of these links waits"};
constexpr Series kUnwritten{"millrace_training_unwritten_bytes", "Bytes of these checkpoints"};

struct Counter {
  Published row;
  double factor;
  Series sum;
};
constexpr Counter kCounters[] = {
    {Published::kBatches, 1, {"millrace_training_batches_total", "Batches handed to training", true}},
    {Published::kSamples, 1, {"millrace_training_samples_total", "Samples in these batches", true}},
    {Published::kTokens, 1, {"millrace_training_tokens_total", "Token ids in these batches", true}},
    {Published::kReadBytes, 1, {"millrace_training_read_bytes_total", "Bytes that loaders read from storage", true}},
    {Published::kWaitNs,
     kSecondsPerNs,
     {"millrace_training_wait_seconds_total", "Time training waited for batches, summed over processes", true}},
    {Published::kSaves, 1, {"millrace_training_saves_total", "Checkpoints whose snapshot was taken", true}},
    {Published::kStallNs,
     kSecondsPerNs,
     {"millrace_training_stall_seconds_total", "Time save() kept training, summed over processes", true}},
    {Published::kWriteBytes,
     1,
     {"millrace_training_written_bytes_total", "Bytes of checkpoints written, in all tiers", true}},
};

constexpr Series kOfProcess[] = {
    {"millrace_process_batches_total", "Batches handed to this process", true},
    {"millrace_process_wait_seconds_total", "Time it waited for them", true},
    {"millrace_process_queue_batches", "Batches that were ready when it took the last one"},
    {"millrace_process_last_batch_timestamp_seconds", "When it took the last one, since 1970"},
    {"millrace_process_unwritten_bytes", "Bytes of its checkpoints that have not ended in all tiers"},
};

// Whether it is more than a process that runs links.
bool trains(const PublishedProcess& process) {
  return process.value(Published::kLinks) == 0 || process.value(Published::kBatches) > 0 ||
         process.value(Published::kSaves) > 0;
}

void add_process(const PublishedProcess& process, Sample& sample) {
  const Labels labels = {{"rank", process.rank < 0 ? "" : std::to_string(process.rank)},
                         {"pid", std::to_string(process.pid)}};
  const auto value = [&](Published row) { return static_cast<double>(process.value(row)); };
  const double values[] = {value(Published::kBatches), value(Published::kWaitNs) * kSecondsPerNs,
                           value(Published::kQueueBatches), value(Published::kLastBatchNs) * kSecondsPerNs,
                           value(Published::kUnwrittenBytes)};
  for (size_t i = 0; i < std::size(values); ++i) sample.add(kOfProcess[i], values[i], labels);
}

}  // namespace

void Programs::read(Sample& sample) {
  int newer = 0;
  const auto processes = read_published(folders_, &newer);
  if (newer > 0)
    sample.missing.push_back("training: a process of a newer Millrace shows numbers that this one cannot read");
  add(processes, sample);
}

void Programs::add(std::span<const PublishedProcess> processes, Sample& sample) {
  std::map<std::string, Values> now;
  int64_t waited_ns = 0, queue = 0, under_way = 0, unwritten = 0, loaders = 0, links = 0, behind_ns = 0;
  for (const PublishedProcess& process : processes) {
    const Values& before = before_[process.path];  // empty for a new one, which counts from 0 on
    for (const Counter& counter : kCounters) {
      const std::string_view name = published_defs()[static_cast<size_t>(counter.row)].name;
      const auto last = before.find(name);
      const int64_t grown = process.value(counter.row) - (last == before.end() ? 0 : last->second);
      sums_[std::string(name)] += std::max<int64_t>(grown, 0);
      if (counter.row == Published::kWaitNs && !before.empty()) waited_ns += grown;
    }
    if (process.value(Published::kBatches) > 0) {
      queue = loaders++ == 0 ? process.value(Published::kQueueBatches)
                             : std::min(queue, process.value(Published::kQueueBatches));
    }
    under_way += process.value(Published::kSavesUnderWay);
    unwritten += process.value(Published::kUnwrittenBytes);
    links += process.value(Published::kLinks);
    if (const int64_t since_ns = process.value(Published::kLinkSinceNs); since_ns > 0) {
      behind_ns = std::max(behind_ns, sample.time_ns - since_ns);
    }
    now[process.path] = process.values;
  }
  const int64_t elapsed_ns = time_ns_ == 0 ? 0 : sample.time_ns - time_ns_;
  const double possible = static_cast<double>(elapsed_ns) * static_cast<double>(std::max<int64_t>(loaders, 1));
  sample.add(kProcesses, static_cast<double>(std::ranges::count_if(processes, trains)));
  sample.add(kWaiting, possible <= 0 ? 0 : std::min(1.0, static_cast<double>(waited_ns) / possible));
  sample.add(kQueue, static_cast<double>(queue));
  sample.add(kUnderWay, static_cast<double>(under_way));
  sample.add(kUnwritten, static_cast<double>(unwritten));
  sample.add(kLinks, static_cast<double>(links));
  sample.add(kBehind, static_cast<double>(behind_ns) * kSecondsPerNs);
  for (const Counter& counter : kCounters) {
    const auto sum = sums_.find(published_defs()[static_cast<size_t>(counter.row)].name);
    sample.add(counter.sum, sum == sums_.end() ? 0 : static_cast<double>(sum->second) * counter.factor);
  }
  for (const PublishedProcess& process : processes) {
    if (trains(process)) add_process(process, sample);
  }
  before_ = std::move(now);
  time_ns_ = sample.time_ns;
}

}  // namespace millrace::monitor
