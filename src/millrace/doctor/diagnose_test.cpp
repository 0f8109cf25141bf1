// SPDX-License-Identifier: Apache-2.0
#include "millrace/doctor/diagnose.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <set>

namespace millrace::doctor {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr double kBegun = 1'795'581'830;

std::vector<std::string> ids(const Facts& facts) {
  std::vector<std::string> found;
  for (const Verdict& verdict : diagnose(facts)) found.emplace_back(verdict.rule->id);
  return found;
}

// All evidence of a rule, joined; "" where it does not hold.
std::string evidence(const Facts& facts, std::string_view rule) {
  std::string all;
  for (const Verdict& verdict : diagnose(facts)) {
    if (verdict.rule->id != rule) continue;
    for (const std::string& line : verdict.evidence) all += line + "\n";
  }
  return all;
}

// A run of an hour with a step a second, whose loader and checkpoints keep up.
Facts healthy_run() {
  Facts facts;
  facts.now = kBegun + 3601;
  jobs::TrainingRecord record;
  record.folder = "/runs/a";
  jobs::RecordStart start;
  start.begun = kBegun;
  start.last = kBegun + 3600;
  start.first_step = 1;
  start.last_step = 3600;
  start.facts = {{"world_size", 4}, {"gpus", 4}, {"config", {{"batch_size", 8}, {"num_threads", 2}}}};
  start.loader = {{"wait_seconds", 1.0}, {"batches", 3600}, {"read_seconds", 100.0}, {"decode_seconds", 50.0}};
  start.checkpointer = {{"saves", 4}, {"stall_seconds", 2.0}, {"write_bytes", 4e9}};
  start.end = "completed";
  record.starts.push_back(start);
  for (int64_t step = 1; step <= 3600; ++step) {
    record.values["train/loss"].push_back({step, kBegun + static_cast<double>(step), 2.0});
  }
  facts.record = record;
  return facts;
}

jobs::RecordStart& last_start(Facts& facts) {
  return facts.record->starts.back();
}

LogFacts log_with(std::string_view rule, const std::string& text, int rank = -1, int64_t line = 7) {
  LogFacts log;
  log.path = "a.log";
  log.hits = {{.rule = rule, .file = "a.log", .line = line, .rank = rank, .text = text}};
  log.of[rule] = 1;
  return log;
}

void add_hit(LogFacts& log, std::string_view rule, const std::string& text, int rank, int64_t line) {
  log.hits.push_back({.rule = rule, .file = "a.log", .line = line, .rank = rank, .text = text});
  ++log.of[rule];
}

// Sixty samples of one node with four GPUs at work.
NodeSamples healthy_node(const std::string& host = "n1") {
  NodeSamples node;
  node.host = host;
  const auto gauge = [&](const std::string& key, double value) {
    for (int i = 0; i < 60; ++i) node.series[key].push_back({kBegun + i, value});
  };
  const auto counter = [&](const std::string& key, double rate) {
    for (int i = 0; i < 60; ++i) node.series[key].push_back({kBegun + i, 1000 + rate * i});
  };
  for (int gpu = 0; gpu < 4; ++gpu) {
    const std::string one = fmt::format("{{gpu=\"{}\"}}", gpu);
    gauge("millrace_gpu_busy_ratio" + one, 0.97);
    gauge("millrace_gpu_memory_used_bytes" + one, 70e9);
    gauge("millrace_gpu_memory_size_bytes" + one, 80e9);
    gauge("millrace_gpu_temperature_celsius" + one, 70);
    gauge("millrace_gpu_power_watts" + one, 650);
    gauge("millrace_gpu_sm_clock_hertz" + one, 1.98e9);
    gauge("millrace_gpu_ecc_uncorrected_total" + one, 0);
    counter("millrace_gpu_pcie_replays_total" + one, 0);
    gauge(fmt::format("millrace_gpu_clock_lowered{{gpu=\"{}\",reason=\"power_cap\"}}", gpu), 1);
    gauge(fmt::format("millrace_gpu_clock_lowered{{gpu=\"{}\",reason=\"hardware_thermal\"}}", gpu), 0);
  }
  gauge("millrace_node_processors", 16);
  gauge("millrace_node_memory_bytes{kind=\"total\"}", 128e9);
  gauge("millrace_node_memory_bytes{kind=\"available\"}", 64e9);
  gauge("millrace_cgroup_memory_bytes", 20e9);
  gauge("millrace_cgroup_memory_limit_bytes", 100e9);
  gauge("millrace_cgroup_oom_kills_total", 3);  // of earlier jobs
  counter("millrace_cgroup_cpu_throttled_seconds_total", 0);
  counter("millrace_node_cpu_seconds_total{mode=\"idle\"}", 8);
  counter("millrace_node_cpu_seconds_total{mode=\"user\"}", 8);
  for (const char* resource : {"cpu", "io", "memory"}) {
    for (const char* kind : {"some", "full"}) {
      counter(fmt::format("millrace_node_pressure_seconds_total{{resource=\"{}\",kind=\"{}\"}}", resource, kind), 0.01);
    }
  }
  counter("millrace_network_errors_total{device=\"eth0\"}", 0.1);
  counter("millrace_rdma_hardware_total{device=\"efa0\",port=\"1\",counter=\"rx_bytes\"}", 1e9);
  counter("millrace_rdma_hardware_total{device=\"efa0\",port=\"1\",counter=\"rx_drops\"}", 0);
  counter("millrace_nfs_timeouts_total{mount=\"/home\",operation=\"READ\"}", 0);
  counter("millrace_nfs_operations_total{mount=\"/home\",operation=\"READ\"}", 100);
  counter("millrace_nfs_operation_seconds_total{mount=\"/home\",operation=\"READ\"}", 0.2);
  return node;
}

void set(NodeSamples& node, const std::string& key, double value) {
  ASSERT_TRUE(node.series.contains(key)) << key;
  for (Point& point : node.series[key]) point.value = value;
}

void set_rate(NodeSamples& node, const std::string& key, double rate) {
  ASSERT_TRUE(node.series.contains(key)) << key;
  for (Point& point : node.series[key]) point.value = rate * (point.time - kBegun);
}

Facts with_node(const NodeSamples& node) {
  Facts facts = healthy_run();
  facts.nodes = {node};
  return facts;
}

NcclRun nccl_run(double busbw, int64_t nodes, const std::string& file = "n.log") {
  return {.file = file,
          .collective = "all_reduce",
          .ranks = 8 * nodes,
          .nodes = nodes,
          .gpu = "NVIDIA H100 80GB HBM3",
          .rows = {{.bytes = 1 << 20, .busbw = 20}, {.bytes = int64_t{8} << 30, .busbw = busbw}}};
}

TEST(DoctorRules, AreNumberedAndSayHowToGoOn) {
  std::set<std::string_view> seen;
  for (const Rule& rule : doctor_rules()) {
    EXPECT_TRUE(seen.insert(rule.id).second) << rule.id;
    EXPECT_FALSE(rule.reason.empty() || rule.fix.empty() || rule.source.empty()) << rule.id;
  }
  // Errors come before warnings, so verdicts do too.
  EXPECT_TRUE(std::is_sorted(doctor_rules().begin(), doctor_rules().end(),
                             [](const Rule& a, const Rule& b) { return a.severity > b.severity; }));
  for (const LogSign& sign : log_signs()) EXPECT_NE(find_rule(doctor_rules(), sign.rule), nullptr) << sign.rule;
}

TEST(Doctor, AHealthyRunHasNoVerdict) {
  Facts facts = with_node(healthy_node());
  facts.nccl = {nccl_run(440, 1)};
  facts.mounts = {{.path = "/runs/a", .bytes = 1e12, .free_bytes = 5e11, .files = 1e6, .free_files = 9e5}};
  facts.processes = {{.pid = 7, .rank = 0, .states = "SRSSR", .cpu_s = 0.9, .watched_s = 1}};
  facts.job_state = "COMPLETED";
  // A run that completed has got over what its logs say.
  facts.logs = {log_with("DR12", "Connection reset by peer"),
                log_with("DR01", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
                log_with("DR02", "MemoryError"), log_with("DR07", "OSError: [Errno 24] Too many open files")};
  EXPECT_THAT(ids(facts), IsEmpty());
  EXPECT_THAT(ids({}), IsEmpty());
}

TEST(DoctorRecord, ALossThatStaysNaN) {
  Facts facts = healthy_run();
  auto& losses = facts.record->values["train/loss"];
  losses[100].value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(ids(facts), IsEmpty()) << "one step that recovered";
  for (size_t i = 3000; i < losses.size(); ++i) losses[i].value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(evidence(facts, "DR16"),
              HasSubstr("train/loss is nan from step 3001 on (2026-11-25T05:33:51Z); it was 2 at step 3000"));
}

TEST(DoctorRecord, WaitingForDataNamesTheStage) {
  Facts facts = healthy_run();
  last_start(facts).loader = {
      {"wait_seconds", 1200.0}, {"batches", 3600}, {"read_seconds", 9000.0}, {"decode_seconds", 50.0}};
  EXPECT_THAT(evidence(facts, "DR17"), HasSubstr("(33 %)"));
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("limit is read: a faster storage"));
  last_start(facts).loader["decode_seconds"] = 7000.0;  // of 2 threads in 3,600 s
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("limit is decode"));
  last_start(facts).loader["wait_seconds"] = 100.0;
  EXPECT_THAT(ids(facts), IsEmpty());
}

TEST(DoctorRecord, CheckpointsTooDearAndTooRare) {
  Facts facts = healthy_run();
  last_start(facts).checkpointer = {{"saves", 120}, {"stall_seconds", 600.0}, {"write_bytes", 4e9}};
  EXPECT_THAT(evidence(facts, "DR18"),
              HasSubstr("120 checkpoints, one every 30.0 s; each kept training for 5.00 s, 17 % of the time"));
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("By Daly's formula"));
  last_start(facts).checkpointer = {{"saves", 0}, {"stall_seconds", 0.0}};
  EXPECT_THAT(ids(facts), IsEmpty()) << "an hour without a checkpoint may be right";
  last_start(facts).last = kBegun + 7 * 3600;
  EXPECT_THAT(evidence(facts, "DR19"), HasSubstr("no checkpoint in 7h"));
}

TEST(DoctorRecord, StartsInVain) {
  Facts facts = healthy_run();
  last_start(facts).end = "failed";
  last_start(facts).error = "RuntimeError";
  EXPECT_THAT(ids(facts), ElementsAre("DR15"));
  jobs::RecordStart again = last_start(facts);
  facts.record->starts.push_back(again);
  EXPECT_THAT(ids(facts), ElementsAre("DR15")) << "one failed start may be chance";
  facts.record->starts.push_back(again);
  EXPECT_THAT(evidence(facts, "DR28"), HasSubstr("the last 2 of 3 starts did not come past step 3,600"));
}

TEST(DoctorRecord, StandingStillNeedsAProcess) {
  Facts facts = healthy_run();
  last_start(facts).end = "";
  facts.now = kBegun + 3600 + 90;
  EXPECT_THAT(ids(facts), IsEmpty()) << "it may have been killed";
  facts.processes = {
      {.pid = 7, .rank = 1, .states = "SSSSS", .cpu_s = 0, .watched_s = 1, .stack = "recv (train.py:4)"}};
  EXPECT_THAT(evidence(facts, "DR10"),
              HasSubstr("the last step was 3600 at 2026-11-25T05:43:50Z, 1m 30s ago; a step took 1.00 s"));
  EXPECT_THAT(evidence(facts, "DR10"),
              HasSubstr("rank 1, process 7: state SSSSS, 0.00 s of processor time in 1.0 s; in recv (train.py:4)"));
  facts.now = kBegun + 3600 + 40;
  EXPECT_THAT(ids(facts), IsEmpty());
}

TEST(DoctorLogs, TheFirstCauseIsSaidAndNotWhatFollows) {
  Facts facts = healthy_run();
  last_start(facts).end = "failed";
  last_start(facts).error = "OutOfMemoryError";
  LogFacts log = log_with("DR01", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 3);
  add_hit(log, "DR12", "Connection reset by peer", 1, 9);
  add_hit(log, "DR15", "Traceback (most recent call last)", 1, 10);
  facts.logs = {log};
  EXPECT_THAT(ids(facts), ElementsAre("DR01"));
  EXPECT_EQ(evidence(facts, "DR01"),
            "a.log:7 (rank 3): torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n");
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("This run had batch_size 8. `millrace plan batch --gpu NAME "));
  facts.logs = {log_with("DR12", "Connection reset by peer")};
  EXPECT_THAT(ids(facts), ElementsAre("DR12"));
}

TEST(DoctorLogs, OutOfMemoryAsksThePlannerWithWhatIsKnown) {
  Facts facts = healthy_run();
  last_start(facts).end = "failed";
  last_start(facts).facts["config"] = {
      {"batch_size", 64}, {"layers", 32}, {"dim", 4096}, {"seq_len", 2048}, {"vocab_size", 32000}};
  facts.logs = {log_with("DR01",
                         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
                         "capacity of 79.11 GiB of which 1.02 GiB is free.")};
  const std::string flags = "--layers 32 --hidden 4096 --tokens 2048 --vocabulary 32000`";
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("`millrace plan batch --memory 79.11GiB --parameters N " + flags));
  EXPECT_THAT(diagnose(facts)[0].advice, ::testing::Not(HasSubstr("By the plan"))) << "the parameters are not known";
  last_start(facts).facts["config"]["parameters"] = 350'000'000;
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("--parameters 350000000 " + flags));
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("This run had batch_size 64. By the plan "));
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("samples a GPU fit at most, with AdamW"));
  last_start(facts).facts["config"]["parameters"] = 70'000'000'000;
  EXPECT_THAT(diagnose(facts)[0].advice, HasSubstr("not even one sample fits"));
}

TEST(DoctorLogs, EachSignHasItsVerdict) {
  for (const char* rule : {"DR01", "DR02", "DR03", "DR04", "DR05", "DR07", "DR11", "DR12", "DR13", "DR14", "DR29"}) {
    Facts facts;
    facts.logs = {log_with(rule, "as it was printed")};
    EXPECT_THAT(ids(facts), ElementsAre(rule));
    EXPECT_THAT(evidence(facts, rule), HasSubstr("a.log:7: as it was printed"));
  }
}

TEST(DoctorLogs, TheRankThatDidNotCome) {
  Facts facts = healthy_run();
  last_start(facts).end = "";
  LogFacts log = log_with("DR11", "[Rank 0] ... last enqueued NCCL work: 1582, last completed NCCL work: 1579.", 0);
  add_hit(log, "DR11", "[Rank 1] ... last enqueued NCCL work: 1580, last completed NCCL work: 1579.", 1, 8);
  add_hit(log, "DR11", "[Rank 3] ... last enqueued NCCL work: 1582, last completed NCCL work: 1579.", 3, 9);
  facts.logs = {log};
  EXPECT_THAT(evidence(facts, "DR11"),
              HasSubstr("rank 1 is behind: it enqueued collective 1580 last, and rank 3 1582"));
  EXPECT_THAT(evidence(facts, "DR11"), HasSubstr("ranks that did not report a timeout, so did not wait: 2\n"));
}

TEST(DoctorLogs, WhatSlurmSays) {
  for (const auto& [state, rule] :
       {std::pair("OUT_OF_MEMORY", "DR02"), {"TIMEOUT", "DR14"}, {"NODE_FAIL", "DR14"}, {"FAILED", "DR15"}}) {
    Facts facts;
    facts.job_state = state;
    facts.job_evidence = {"it ran for 00:10:00"};
    EXPECT_THAT(ids(facts), ElementsAre(rule)) << state;
  }
}

TEST(DoctorProcesses, StoppedAndInTheKernel) {
  Facts facts;
  facts.processes = {
      {.pid = 7, .rank = 2, .command = "python train.py", .states = "TTTTT", .stack = "forward (m.py:3)"},
      {.pid = 8, .rank = 0, .states = "DDDDD", .wait = "nfs_wait", .watched_s = 1},
      {.pid = 9, .rank = 1, .states = "SDSSD"}};
  EXPECT_THAT(ids(facts), ElementsAre("DR08", "DR09"));
  EXPECT_EQ(evidence(facts, "DR08"),
            "rank 2, process 7 (python train.py): stopped in each of 5 looks; it stands in forward (m.py:3)\n");
  EXPECT_EQ(evidence(facts, "DR09"),
            "rank 0, process 8: in the kernel in each of 5 looks over 1.0 s, last in nfs_wait\n");
}

TEST(DoctorMounts, SpaceAndFiles) {
  Facts facts = healthy_run();
  facts.mounts = {{.path = "/runs/a", .bytes = 1e9, .free_bytes = 0}};
  EXPECT_THAT(evidence(facts, "DR04"), HasSubstr("/runs/a: 0 B of 1.00 GB are free"));
  facts.mounts = {{.path = "/runs/a", .bytes = 1e10, .free_bytes = 5e8}};  // a checkpoint took 1 GB
  EXPECT_THAT(evidence(facts, "DR04"), HasSubstr("a checkpoint of this run took 1.00 GB"));
  facts.mounts = {{.path = "/fsx", .bytes = 1e15, .free_bytes = 1e13}};
  EXPECT_THAT(ids(facts), IsEmpty()) << "1 % of a petabyte is plenty";
  facts.mounts = {{.path = "/fsx", .bytes = 1e12, .free_bytes = 5e11, .files = 1e6, .free_files = 10}};
  EXPECT_THAT(evidence(facts, "DR06"), HasSubstr("10 of 1,000,000 files are left"));
}

TEST(DoctorNodes, GpusThatAreUsedLittle) {
  NodeSamples node = healthy_node();
  for (int gpu = 0; gpu < 4; ++gpu) {
    set(node, fmt::format("millrace_gpu_busy_ratio{{gpu=\"{}\"}}", gpu), 0.3);
    set(node, fmt::format("millrace_gpu_memory_used_bytes{{gpu=\"{}\"}}", gpu), 8e9);
  }
  EXPECT_THAT(ids(with_node(node)), ElementsAre("DR20"));
  EXPECT_THAT(evidence(with_node(node), "DR20"), HasSubstr("n1: busy for 30 % on average over 59.0 s"));
  EXPECT_THAT(evidence(with_node(node), "DR20"), HasSubstr("at most 10 % of GPU memory was in use"));
  Facts other_time = with_node(node);
  for (auto& [key, points] : other_time.nodes[0].series) {
    for (Point& point : points) point.time -= 86'400;
  }
  EXPECT_THAT(ids(other_time), IsEmpty()) << "samples of another day are not of this run";
}

TEST(DoctorNodes, ClocksAndSlowGpus) {
  NodeSamples node = healthy_node();
  set(node, "millrace_gpu_clock_lowered{gpu=\"2\",reason=\"hardware_thermal\"}", 1);
  EXPECT_THAT(evidence(with_node(node), "DR21"),
              HasSubstr("n1 GPU 2: hardware_thermal in 100 % of the samples, up to 70 C"));
  set(node, "millrace_gpu_sm_clock_hertz{gpu=\"2\"}", 1.2e9);
  EXPECT_THAT(evidence(with_node(node), "DR22"),
              HasSubstr("n1 GPU 2: 1200 MHz at work, and the median of 4 GPUs is 1980 MHz"));
  set(node, "millrace_gpu_busy_ratio{gpu=\"2\"}", 0.01);
  EXPECT_THAT(evidence(with_node(node), "DR22"), IsEmpty()) << "a GPU without work is slow by design";
}

TEST(DoctorNodes, FailingGpus) {
  NodeSamples node = healthy_node();
  set(node, "millrace_gpu_ecc_uncorrected_total{gpu=\"1\"}", 2);
  EXPECT_THAT(evidence(with_node(node), "DR13"),
              HasSubstr("n1 GPU 1: 2 ECC errors not corrected since boot, 0 of them"));
  node = healthy_node();
  set_rate(node, "millrace_gpu_pcie_replays_total{gpu=\"1\"}", 3);
  EXPECT_THAT(evidence(with_node(node), "DR13"), HasSubstr("3.0 PCIe transfers a second"));
  node = healthy_node();
  node.series["millrace_gpu_power_watts{gpu=\"3\"}"].resize(20);
  EXPECT_THAT(evidence(with_node(node), "DR13"), HasSubstr("n1 GPU 3: it answered last at 2026-11-25T04:44:09Z"));
}

TEST(DoctorNodes, MemoryProcessorsAndIo) {
  const auto pressure = [](const char* resource, const char* kind) {
    return fmt::format("millrace_node_pressure_seconds_total{{resource=\"{}\",kind=\"{}\"}}", resource, kind);
  };
  NodeSamples node = healthy_node();
  node.series["millrace_node_memory_bytes{kind=\"available\"}"][30].value = 1e9;
  EXPECT_THAT(evidence(with_node(node), "DR23"), HasSubstr("n1: 1.00 GB of 128 GB were available at"));
  node = healthy_node();
  set(node, "millrace_cgroup_memory_bytes", 98e9);
  EXPECT_THAT(evidence(with_node(node), "DR23"), HasSubstr("the job's cgroup held 98.0 GB of its 100 GB"));
  node = healthy_node();
  set_rate(node, pressure("memory", "full"), 0.2);
  EXPECT_THAT(evidence(with_node(node), "DR23"), HasSubstr("waited for memory in 20 %"));
  node = healthy_node();
  set_rate(node, "millrace_cgroup_oom_kills_total", 0.1);
  EXPECT_THAT(ids(with_node(node)), ElementsAre("DR02"));
  node = healthy_node();
  set_rate(node, "millrace_node_cpu_seconds_total{mode=\"idle\"}", 0.1);
  EXPECT_THAT(ids(with_node(node)), IsEmpty()) << "busy, and nobody waits";
  set_rate(node, pressure("cpu", "some"), 0.6);
  EXPECT_THAT(evidence(with_node(node), "DR24"), HasSubstr("tasks waited for one in 60 %"));
  node = healthy_node();
  set_rate(node, "millrace_cgroup_cpu_throttled_seconds_total", 0.5);
  EXPECT_THAT(evidence(with_node(node), "DR24"), HasSubstr("held tasks back for 0.50 s of each second"));
  node = healthy_node();
  set_rate(node, pressure("io", "full"), 0.4);
  EXPECT_THAT(evidence(with_node(node), "DR25"), HasSubstr("all tasks waited for I/O in 40 %"));
  node = healthy_node();
  set_rate(node, "millrace_nfs_operation_seconds_total{mount=\"/home\",operation=\"READ\"}", 50);
  EXPECT_THAT(evidence(with_node(node), "DR25"), HasSubstr("a READ call to /home took 0.50 s on average"));
  node = healthy_node();
  set_rate(node, "millrace_nfs_timeouts_total{mount=\"/home\",operation=\"READ\"}", 0.1);
  EXPECT_THAT(ids(with_node(node)), ElementsAre("DR25"));
}

TEST(DoctorNodes, MemoryThatLeaks) {
  NodeSamples node = healthy_node();
  auto& points = node.series["millrace_node_memory_bytes{kind=\"available\"}"];
  points.clear();
  for (int minute = 0; minute < 120; ++minute) points.push_back({kBegun + 60.0 * minute, 64e9 - 0.2e9 * minute});
  Facts facts = with_node(node);
  last_start(facts).last = kBegun + 7200;
  EXPECT_THAT(evidence(facts, "DR23"), HasSubstr("available memory falls by 12.0 GB an hour; it is used up in 3h"));
  for (size_t i = 30; i < points.size(); ++i) points[i].value = points[30].value;  // caches that filled
  facts = with_node(node);
  EXPECT_THAT(ids(facts), IsEmpty());
}

TEST(DoctorNodes, TheNetwork) {
  NodeSamples node = healthy_node();
  set_rate(node, "millrace_network_errors_total{device=\"eth0\"}", 20);
  EXPECT_THAT(evidence(with_node(node), "DR26"), HasSubstr("n1 eth0: 20.0 packets a second"));
  node = healthy_node();
  set_rate(node, "millrace_rdma_hardware_total{device=\"efa0\",port=\"1\",counter=\"rx_drops\"}", 1);
  EXPECT_THAT(evidence(with_node(node), "DR26"), HasSubstr("n1 efa0: rx_drops grew by 59"));
}

TEST(DoctorNccl, BusBandwidthAgainstTheLink) {
  Facts facts;
  facts.nccl = {nccl_run(100, 1)};
  EXPECT_THAT(evidence(facts, "DR27"),
              HasSubstr("at most 100.0 GB/s bus bandwidth (at 8,589,934,592 bytes), 22 % of 450 GB/s one way"));
  facts.nccl = {nccl_run(100, 2)};
  EXPECT_THAT(ids(facts), IsEmpty()) << "the network of an unknown node has no known limit";
  facts.instance = "p5.48xlarge";
  EXPECT_THAT(evidence(facts, "DR27"), HasSubstr("25 % of 400 GB/s"));
  facts.nccl = {nccl_run(380, 2)};
  EXPECT_THAT(ids(facts), IsEmpty());
  facts.nccl[0].rows[0].wrong = 5;
  EXPECT_THAT(evidence(facts, "DR13"), HasSubstr("5 values came out wrong"));
  facts.nccl = {nccl_run(380, 2, "ab.log"), nccl_run(390, 2, "cd.log"), nccl_run(250, 2, "ef.log")};
  EXPECT_THAT(evidence(facts, "DR22"), HasSubstr("ef.log: 250.0 GB/s, and the median of 3 such tests is 380.0"));
}

FlightDump flight(int rank, int64_t last, const std::string& name = "all_reduce",
                  const std::string& sizes = "[8] Float", bool is_done = false) {
  FlightDump dump{.file = fmt::format("nccl_trace_rank_{}", rank), .rank = rank, .world = 4, .groups = {}};
  FlightGroup& group = dump.groups["0"];
  group = {.title = "default_pg", .last = last, .calls = {}};
  group.calls[last - 1] = {"broadcast", "[2] Float", "load (train.py:3)", kBegun, true};
  group.calls[last] = {name, sizes, fmt::format("step (train.py:{})", 10 + rank), kBegun + 5, is_done};
  return dump;
}

TEST(Flights, NameTheRankThatDidNotCome) {
  Facts facts;
  facts.flights = {flight(0, 7), flight(1, 7), flight(2, 6), flight(3, 7)};
  facts.flights[2].groups["0"].calls[6].is_done = true;
  for (const int rank : {0, 1, 3}) facts.flights[rank].groups["0"].calls[6] = facts.flights[2].groups["0"].calls[6];
  EXPECT_THAT(ids(facts), ElementsAre("DR11"));
  const std::string text = evidence(facts, "DR11");
  EXPECT_THAT(text, HasSubstr("group default_pg: ranks 0, 1, 3 wait in collective 7 since 20"));
  EXPECT_THAT(text, HasSubstr("all_reduce of [8] Float, in step (train.py:10)"));
  EXPECT_THAT(
      text, HasSubstr("rank 2 has not come to it; its last one is 6: all_reduce of [8] Float, in step (train.py:12)"));
}

TEST(Flights, TellAProgramThatTookTwoPathsFromAFailingNetwork) {
  Facts facts;
  facts.flights = {flight(0, 7), flight(1, 7, "broadcast")};
  EXPECT_THAT(evidence(facts, "DR11"), HasSubstr("collective 7 is not the same on all ranks: all_reduce"));
  facts.flights = {flight(0, 7), flight(1, 7, "all_reduce", "[9] Float")};
  EXPECT_THAT(evidence(facts, "DR11"), HasSubstr("[9] Float, in step (train.py:11) on rank 1"));
  facts.flights = {flight(0, 7, "all_to_all"), flight(1, 7, "all_to_all", "[9] Float")};
  EXPECT_THAT(evidence(facts, "DR11"), HasSubstr("all 2 ranks are in collective 7 and none has ended it"));
}

TEST(Flights, AreSilentWhereNothingWaits) {
  Facts facts;
  facts.flights = {flight(0, 7, "all_reduce", "[8] Float", true), flight(1, 7, "all_reduce", "[8] Float", true)};
  EXPECT_THAT(ids(facts), IsEmpty());
  facts.flights = {flight(0, 7)};
  EXPECT_THAT(ids(facts), IsEmpty()) << "one alone shows no difference";
  facts.flights = {};
  EXPECT_THAT(ids(facts), IsEmpty());
}

}  // namespace
}  // namespace millrace::doctor
