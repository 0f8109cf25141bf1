// SPDX-License-Identifier: Apache-2.0
#include "millrace/doctor/facts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "millrace/doctor/diagnose.h"
#include "millrace/monitor/run.h"

namespace millrace::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class DoctorFacts : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/doctor-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }

  std::string folder_;
};

TEST_F(DoctorFacts, ALogsSignsWithPlaceAndRank) {
  const std::string path = put(
      "a.log",
      "step 1\nstep 2\n"
      "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of "
      "31.47 GiB of which 12.73 GiB is free.\n"
      "2: OSError: [Errno 122] Disk quota exceeded: '/fsx/a'\n"
      "[rank0]:[E321 02:07:08 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)\n"
      "RuntimeError: unable to write to file </torch_12_34>: No space left on device (28)\n"
      "OSError: [Errno 28] No space left on device; HF_TOKEN=hf_PLANTEDabcdefghijklmnop");
  const auto log = read_log(path, {});
  ASSERT_TRUE(log);
  std::vector<std::string> found;
  for (const LogHit& hit : log->hits) found.push_back(fmt::format("{} {} {}", hit.rule, hit.line, hit.rank));
  EXPECT_THAT(found, ElementsAre("DR01 3 3", "DR05 4 2", "DR11 5 0", "DR03 6 -1", "DR04 7 -1"));
  EXPECT_THAT(log->first_error, StartsWith(path + ":3: [rank3]: torch.OutOfMemoryError"));
  EXPECT_EQ(log->hits.back().text.find("PLANTED"), std::string::npos);
  EXPECT_EQ(log->lines, 7);
}

TEST_F(DoctorFacts, AFineLogHasNoSigns) {
  const auto log = read_log(put("a.log", "step 1 loss 2.0\nsaved step-1 in 2 s\nWARNING: slow\n"), {});
  ASSERT_TRUE(log);
  EXPECT_THAT(log->hits, IsEmpty());
  EXPECT_EQ(log->first_error, "");
}

TEST_F(DoctorFacts, OnlyWhatAProgramPrintsInAnErrorIsASign) {
  const auto rules = [&](const std::string& text) {
    std::string found;
    const auto log = read_log(put("a.log", text), {});
    for (const LogHit& hit : log->hits) found += fmt::format("{} ", hit.rule);
    return found;
  };
  for (const char* harmless : {"batch 64: CUDA out of memory, trying 32\n", "MemoryError handling enabled\n",
                               "INFO: on MemoryError: skip the sample\n", "Too many open files? ulimit is fine\n",
                               "INFO: Too many open files is handled\n", "allocator: std::bad_alloc handler set\n"}) {
    EXPECT_EQ(rules(harmless), "") << harmless;
  }
  const std::pair<const char*, const char*> real[] = {
      {"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n", "DR01 "},
      {"torch.AcceleratorError: CUDA error: out of memory\n", "DR01 "},
      {"MemoryError\n", "DR02 "},
      {"[rank3]: MemoryError: Unable to allocate 4 GiB\n", "DR02 "},
      {"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2 GiB\n", "DR02 "},
      {"terminate called after throwing an instance of 'std::bad_alloc'\n", "DR02 "},
      {"2: OSError: [Errno 12] Cannot allocate memory\n", "DR02 "},
      {"bash: fork: Cannot allocate memory\n", "DR02 "},
      {"OSError: [Errno 24] Too many open files: '/a'\n", "DR07 "},
      {"accept4() failed (24: Too many open files)\n", "DR07 "},
      {"RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
       "workers are out of shared memory. Please try to raise your shared memory limit.\n",
       "DR03 "},
      {"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
       "DR03 "}};
  for (const auto& [text, rule] : real) EXPECT_EQ(rules(text), rule) << text;
}

TEST_F(DoctorFacts, ALongLogCountsAllAndKeepsSome) {
  std::string text(3 << 20, 'x');  // the pieces that are read end within
  for (size_t at = 99; at < text.size(); at += 100) text[at] = '\n';
  for (int i = 0; i < 1000; ++i) text += "OSError: Too many open files\n";
  const auto log = read_log(put("a.log", text), {});
  ASSERT_TRUE(log);
  EXPECT_EQ(log->of.at("DR07"), 1000);
  EXPECT_EQ(log->hits.size(), static_cast<size_t>(LogFacts::kMostHits));
  EXPECT_EQ(log->hits[0].line, (3 << 20) / 100 + 1);
  EXPECT_EQ(log->lines, (3 << 20) / 100 + 1000);
}

// nvidia-smi writes the local time.
TEST_F(DoctorFacts, SamplesOfNvidiaSmi) {
  const char* const before = getenv("TZ");
  const std::string zone = before == nullptr ? "" : before;
  setenv("TZ", "EST5", 1);
  const std::string path =
      put("gpu.csv",
          "timestamp, index, utilization.gpu [%], memory.used [MiB], temperature.gpu, power.draw [W]\n"
          "2026/11/25 04:43:50.000, 0, 37 %, 1024 MiB, 61, 250.50 W\n"
          "2026/11/25 04:43:50.000, 1, [N/A], 2 MiB, 60, [N/A]\n"
          "2026/11/25 04:44:50.500, 0, 39 %, 1024 MiB, 61, 250.50 W\n"
          "2026/11/25 04:45:5");
  ASSERT_TRUE(is_samples_file(path));
  const auto samples = read_samples(path);
  before == nullptr ? unsetenv("TZ") : setenv("TZ", zone.c_str(), 1);
  tzset();
  ASSERT_TRUE(samples);
  EXPECT_EQ(samples->host, "gpu.csv");
  const auto& busy = samples->series.at("millrace_gpu_busy_ratio{gpu=\"0\"}");
  ASSERT_EQ(busy.size(), 2U);
  EXPECT_DOUBLE_EQ(busy[0].value, 0.37);
  EXPECT_DOUBLE_EQ(busy[1].time - busy[0].time, 60.5);
  EXPECT_DOUBLE_EQ(busy[0].time, 1'795'581'830 + 5 * 3600);
  EXPECT_FALSE(samples->series.contains("millrace_gpu_busy_ratio{gpu=\"1\"}"));
  EXPECT_DOUBLE_EQ(samples->series.at("millrace_gpu_memory_used_bytes{gpu=\"1\"}")[0].value, 2 << 20);
}

TEST_F(DoctorFacts, OtherFilesAreNoSamples) {
  EXPECT_FALSE(is_samples_file(put("a.csv", "step,loss\n1,2\n")));
  EXPECT_EQ(read_samples(put("b.csv", "step,loss\n1,2\n")).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_samples(folder_ + "/none").error().code(), ErrorCode::kNotFound);
}

// The monitor reads a library with NVML's functions; the doctor reads the monitor's files.
TEST_F(DoctorFacts, WhatTheMonitorWritesIsRead) {
  const std::string answers =
      put("nvml",
          "count=2\n0.busy=12\n1.busy=9\n0.used=1000\n1.used=1000\n0.total=80000\n1.total=80000\n"
          "0.celsius=91\n1.celsius=60\n0.reasons=64\n1.reasons=0\n");
  setenv("FAKE_NVML", answers.c_str(), 1);
  monitor::MonitorConfig config;
  config.nvml = MILLRACE_FAKE_NVML;
  config.interval = std::chrono::milliseconds(400);
  config.samples = 12;
  std::vector<std::unique_ptr<monitor::Sink>> sinks;
  sinks.push_back(monitor::json_lines_sink(folder_ + "/a.jsonl"));
  sinks.push_back(monitor::csv_sink(folder_ + "/a.csv"));
  ASSERT_TRUE(monitor::run_monitor(config, sinks, [](const std::string&) {}, {}));
  for (const char* name : {"/a.jsonl", "/a.csv"}) {
    Facts facts;
    ASSERT_TRUE(is_samples_file(folder_ + name));
    const auto samples = read_samples(folder_ + name);
    ASSERT_TRUE(samples) << samples.error().message();
    EXPECT_EQ(samples->series.at("millrace_node_processors").size(), 12U) << name;
    facts.nodes = {*samples};
    std::string found;
    for (const Verdict& verdict : diagnose(facts))
      found += std::string(verdict.rule->id) + " " + verdict.evidence[0] + "\n";
    EXPECT_THAT(found, HasSubstr("DR20")) << name;
    // The CSV has no column for the reasons.
    if (std::string_view(name).ends_with("jsonl")) {
      EXPECT_THAT(found, HasSubstr("GPU 0: hardware_thermal in 100 %"));
    }
  }
}

TEST_F(DoctorFacts, TablesOfNcclTests) {
  const std::string text =
      "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20\n"
      "# Using devices\n"
      "#  Rank  0 Group  0 Pid  10 on     node1 device  0 [0x53] NVIDIA H100 80GB HBM3\n"
      "#  Rank  1 Group  0 Pid  11 on     node2 device  0 [0x64] NVIDIA H100 80GB HBM3\n"
      "#\n"
      "#                                                              out-of-place                       in-place\n"
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
      "#wrong\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
      "     1048576        262144     float     sum      -1    75.12   13.96   13.96      0    74.80   14.02   14.02   "
      "   0\n"
      "   134217728      33554432     float     sum      -1   1405.2   95.51   95.51      2   1404.7   95.55   95.55   "
      " N/A\n"
      "# Out of bounds values : 0 OK\n"
      "# Avg bus bandwidth    : 54.76\n";
  const auto runs = parse_nccl_tests(text, "a.log");
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].ranks, 2);
  EXPECT_EQ(runs[0].nodes, 2);
  EXPECT_EQ(runs[0].gpu, "NVIDIA H100 80GB HBM3");
  ASSERT_EQ(runs[0].rows.size(), 2U);
  EXPECT_EQ(runs[0].rows[1].bytes, 134217728);
  EXPECT_DOUBLE_EQ(runs[0].rows[1].busbw, 95.55);
  EXPECT_EQ(runs[0].rows[1].wrong, 2);
  EXPECT_THAT(parse_nccl_tests("step 1\n 1 2 3 4 5 6 7 8 9\n", "b"), IsEmpty());
}

TEST_F(DoctorFacts, AProcessThatIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  kill(child, SIGSTOP);
  WatchOptions options;
  options.watch = std::chrono::milliseconds(100);
  options.stacks = false;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  const auto watched = watch_processes(std::array{child}, options, {});
  Facts facts;
  facts.processes = *watched;
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, WCONTINUED), child);
  const auto going = watch_processes(std::array{child}, options, {});
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  ASSERT_EQ(watched->size(), 1U);
  EXPECT_EQ((*watched)[0].states, "TTTTT");
  EXPECT_THAT(diagnose(facts)[0].evidence[0], HasSubstr("stopped in each of 5 looks"));
  ASSERT_EQ(going->size(), 1U);
  EXPECT_EQ(going->at(0).states.find_first_not_of("SR"), std::string::npos) << going->at(0).states;
  facts.processes = *going;
  EXPECT_THAT(diagnose(facts), IsEmpty());
  EXPECT_THAT(*watch_processes(std::array{child}, options, {}), IsEmpty()) << "it is gone";
}

TEST_F(DoctorFacts, ProcessesOfARecordHoldItsFileOpen) {
  std::ofstream open_file(folder_ + "/1.run.jsonl");
  EXPECT_THAT(processes_of_record(folder_), ElementsAre(getpid()));
  open_file.close();
  EXPECT_THAT(processes_of_record(folder_), IsEmpty());
}

// {"version": "2.10", "pg_config": {"": {"ranks": "[0, 1]"}}, "pg_status": {"0": {"last_enqueued_collective": 4}},
//  "entries": [{"pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 4, "profiling_name":
//  "gloo:all_reduce", "input_sizes": [[8, 8]], "input_dtypes": ["Float"], "state": "scheduled", "retired": False,
//  "time_created_ns": 1795692861839377832, "frames": [{"name": "all_reduce", "filename": "/x/torch/a.py", "line": 1},
//  {"name": "step", "filename": "/y/train.py", "line": 17}]}]}, as torch's pickler writes such a thing.
std::string flight_pickle() {
  const auto text = [](std::string_view word) {
    std::string out = "X";
    for (int i = 0; i < 4; ++i) out += static_cast<char>(word.size() >> (8 * i));
    return out + std::string(word);
  };
  const auto small = [](int value) { return std::string("K") + static_cast<char>(value); };
  const std::string nanoseconds("\x8a\x08\xa8\x05\xa4\xd3\x24\x95\xeb\x18", 10);
  const auto frame = [&](std::string_view name, std::string_view file, int line) {
    return "}(" + text("name") + text(name) + text("filename") + text(file) + text("line") + small(line) + "u";
  };
  return std::string("\x80\x02", 2) + "}q" + std::string(1, '\0') + "(" + text("version") + "q\x01" + text("2.10") +
         text("pg_config") + "}(" + text("") + "}(" + text("ranks") + text("[0, 1]") + "uu" + text("pg_status") + "}(" +
         text("0") + "}(" + text("last_enqueued_collective") + small(4) + "uu" + text("entries") + "](" + "}(" +
         text("pg_id") + small(0) + text("process_group") + text("0") + text("default_pg") + "\x86" +
         text("collective_seq_id") + small(4) + text("profiling_name") + text("gloo:all_reduce") + text("input_sizes") +
         "](](" + small(8) + small(8) + "ee" + text("input_dtypes") + "](" + text("Float") + "e" + text("state") +
         text("scheduled") + text("retired") + "\x89" + text("time_created_ns") + nanoseconds + text("frames") + "](" +
         frame("all_reduce", "/x/torch/a.py", 1) + frame("step", "/y/train.py", 17) + "eu" + "eu.";
}

TEST(FlightDumps, AreReadAsPickleAndAsJson) {
  for (const std::string& text :
       {flight_pickle(), std::string(R"({"version": "2.10", "pg_config": {"": {"ranks": "[0, 1]"}},
          "entries": [{"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 4,
          "profiling_name": "nccl:all_reduce", "input_sizes": [[8, 8]], "input_dtypes": ["Float"], "state": "started",
          "time_created_ns": 1795692861839377832,
          "frames": [{"name": "step", "filename": "/y/train.py", "line": 17}]}]})")}) {
    const auto dump = parse_flight_dump(text, "/runs/a/nccl_trace_rank_12");
    ASSERT_TRUE(dump) << dump.error().to_string();
    EXPECT_EQ(dump->rank, 12);
    EXPECT_EQ(dump->world, 2);
    const FlightGroup& group = dump->groups.at("0");
    EXPECT_EQ(group.title, "default_pg");
    EXPECT_EQ(group.last, 4);
    const FlightCall& call = group.calls.at(4);
    EXPECT_EQ(call.name, "all_reduce");
    EXPECT_EQ(call.sizes, "[8,8] Float");
    EXPECT_EQ(call.frames, "step (train.py:17)") << "torch's own frames are left out";
    EXPECT_NEAR(call.created, 1795692861.8, 0.1);
    EXPECT_FALSE(call.is_done);
  }
}

// Any cut and any other byte gives a dump or an error. Code is never named.
TEST(FlightDumps, DamageIsAnError) {
  const std::string good = flight_pickle();
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse_flight_dump(good.substr(0, size), "f")) << size;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {0x01, 0x80}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      static_cast<void>(parse_flight_dump(bad, "f"));
    }
  }
  const auto named = parse_flight_dump(
      "\x80\x02"
      "cos\nsystem\nX\x02\x00\x00\x00ls\x85R.",
      "f");
  ASSERT_FALSE(named);
  EXPECT_THAT(named.error().message(), ::testing::HasSubstr("other objects"));
  // A list that holds itself, and one that doubles forty times.
  EXPECT_FALSE(parse_flight_dump(std::string("\x80\x02]q\x00h\x00"
                                             "a.",
                                             8),
                                 "f"));
  std::string doubled = "\x80\x02]";
  for (int i = 0; i < 40; ++i) {
    const char place = static_cast<char>(i);
    doubled += std::string("q") + place + "](h" + place + "h" + place + "e";
  }
  EXPECT_FALSE(parse_flight_dump(doubled + ".", "f"));
  EXPECT_FALSE(parse_flight_dump("{\"a\": 1}", "f"));
  EXPECT_FALSE(parse_flight_dump("no dump", "f"));
  EXPECT_EQ(read_flight_dump("/no/such").error().code(), ErrorCode::kNotFound);
}

TEST(FlightDumps, AreKnownByTheirNames) {
  EXPECT_TRUE(is_flight_name("nccl_trace_rank_0"));
  EXPECT_TRUE(is_flight_name("run7-comm_lib_trace_rank_12"));
  EXPECT_FALSE(is_flight_name("nccl_trace_rank_"));
  EXPECT_FALSE(is_flight_name("train.log"));
}

}  // namespace
}  // namespace millrace::doctor
