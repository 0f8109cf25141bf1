// SPDX-License-Identifier: Apache-2.0
#pragma once

// The facts that the doctor judges: the run's record, samples of the monitor, signs in logs, processes, mounts and
// results of nccl-tests. This file reads them; diagnose.h judges them. Values; functions are thread-safe.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/published.h"
#include "millrace/base/status.h"
#include "millrace/jobs/record.h"

namespace millrace::doctor {

// --- samples of `millrace monitor`, or of nvidia-smi

struct Point {
  double time = 0;  // seconds since 1970
  double value = 0;
};

// One node's samples, by the monitor's series names ("millrace_gpu_busy_ratio{gpu=\"0\"}").
struct NodeSamples {
  std::string host, file;
  std::map<std::string, std::vector<Point>, std::less<>> series;

  double begun() const;  // time of the first point; 0 without points
  double ended() const;
};

// Reads JSON lines or CSV of `millrace monitor`, or CSV of `nvidia-smi --query-gpu`, whose times are in this machine's
// time zone. From a longer file keeps about 5,000 samples at most, evenly spaced. Leaves torn lines out. Errors:
// not_found, invalid_argument (another file form).
[[nodiscard]] Result<NodeSamples> read_samples(const std::string& path);

// Returns whether a file begins like one that read_samples() can read.
bool is_samples_file(const std::string& path);

// --- logs

// A sign in a log. It matches a line that contains `text` in this form and also `with`, unless that is empty.
struct LogSign {
  enum class Form {
    kAnywhere,
    kReason,     // printed as strerror's texts are: "open: TEXT", "[Errno 24] TEXT: 'a'"
    kException,  // name of an exception at the start of a line: "MemoryError", "[rank3]: a.b.MemoryError: why"
  };
  std::string_view rule;  // "DR01"
  std::string_view text, with;
  Form form = Form::kAnywhere;
};
std::span<const LogSign> log_signs();

struct LogHit {
  std::string_view rule;
  std::string file;
  int64_t line = 0;  // from 1
  int rank = -1;     // the rank that the line names; -1: none
  std::string text;  // one line, without secrets
};

struct LogFacts {
  std::string path;
  int64_t lines = 0;
  std::vector<LogHit> hits;                // by line; the first kMostHits of each rule
  std::map<std::string_view, int64_t> of;  // number of all hits by rule
  std::string first_error;                 // "FILE:LINE: TEXT"; "" without one
  bool was_cut = false;                    // only the beginning of the log was read
  static constexpr int64_t kMostHits = 64;
};

// Reads the first 256 MiB of a log. Errors: those of open and read, cancelled.
[[nodiscard]] Result<LogFacts> read_log(const std::string& path, const std::stop_token& stop);

// --- processes

struct ProcessFacts {
  std::string host;  // "" is this node
  pid_t pid = 0, parent = 0;
  int rank = -1;  // RANK or SLURM_PROCID in its environment
  std::string command;
  std::string states;    // one letter for each look: "SSS"
  std::string wait;      // the kernel function in which it slept at the last look; "": unknown
  double cpu_s = 0;      // processor time of all its threads between the first and the last look
  double watched_s = 0;  // time between the first and the last look
  std::string stack;     // its Python or native threads, the innermost frame first; "": not available
  std::string no_stack;  // why there is no stack
  // The numbers that its own loader and checkpointer show, at the first and the last look; empty if it shows none.
  PublishedProcess shown_first, shown;
  double shown_s = 0;  // time between shown_first and shown
};

struct WatchOptions {
  std::string proc = "/proc";
  std::chrono::milliseconds watch{1000};
  int looks = 5;
  std::vector<std::string> published = published_folders();
  bool stacks = true;  // with py-spy, else gdb, if installed; each has ten seconds
};

// Watches these processes and all their descendants. Leaves out processes that are gone. Errors: cancelled.
[[nodiscard]] Result<std::vector<ProcessFacts>> watch_processes(std::span<const pid_t> pids,
                                                                const WatchOptions& options,
                                                                const std::stop_token& stop);
// Returns the processes of this node that have a file of the run's record open.
std::vector<pid_t> processes_of_record(const std::string& folder, const std::string& proc = "/proc");
// Returns the processes of this node whose environment has SLURM_JOB_ID=`job`.
std::vector<pid_t> processes_of_job(const std::string& job, const std::string& proc = "/proc");

// --- mounts

struct MountFacts {
  std::string path;
  double bytes = 0, free_bytes = 0;  // `free_bytes`: free for users
  double files = 0, free_files = 0;  // 0 files: the file system has no such limit
};
// Reads the sizes of a mount. Errors: those of statvfs.
[[nodiscard]] Result<MountFacts> read_mount(const std::string& path);

// --- nccl-tests

struct NcclRow {
  int64_t bytes = 0;
  double busbw = 0;   // GB/s, the larger of out-of-place and in-place
  int64_t wrong = 0;  // wrong values; 0 if they were not checked
};

struct NcclRun {
  std::string file, collective;  // "": the output does not say
  int64_t ranks = 0, nodes = 0;
  std::string gpu;  // "NVIDIA H100 80GB HBM3"
  std::vector<NcclRow> rows;
};
// Returns the tables in an output of nccl-tests; none for any other text.
std::vector<NcclRun> parse_nccl_tests(std::string_view text, const std::string& file);

// --- flight recorder of PyTorch

struct FlightCall {
  std::string name, sizes, frames;  // "all_reduce", "[8,8] Float", "step (train.py:17) < main (train.py:3)"
  double created = 0;               // seconds since 1970; 0 is unknown
  bool is_done = false;
};

struct FlightGroup {
  std::string title;                    // "default_pg"; "": the dump has no title
  int64_t last = -1;                    // number of the collective that this rank began last; -1: none
  std::map<int64_t, FlightCall> calls;  // by number, as far as the recorder reaches back
};

// One rank's collectives in each process group.
struct FlightDump {
  std::string file;
  int rank = -1;      // from the end of the file's name
  int64_t world = 0;  // ranks of the job; 0 is unknown
  std::map<std::string, FlightGroup> groups;
};
// Parses a dump in the recorder's own form (a pickle) or as JSON. Errors: corruption, invalid_argument (something
// else).
[[nodiscard]] Result<FlightDump> parse_flight_dump(std::string_view text, const std::string& file);
// Reads the first 256 MiB of a dump. Errors: not_found, those of parse_flight_dump().
[[nodiscard]] Result<FlightDump> read_flight_dump(const std::string& path);
// Returns whether a name is like "nccl_trace_rank_3", which PyTorch gives to dumps.
bool is_flight_name(const std::string& name);

// --- all

struct Facts {
  std::optional<jobs::TrainingRecord> record;
  std::vector<NodeSamples> nodes;
  std::vector<LogFacts> logs;
  std::vector<ProcessFacts> processes;
  std::vector<MountFacts> mounts;
  std::vector<NcclRun> nccl;
  std::vector<FlightDump> flights;
  std::string instance;                       // EC2 type of the nodes; "" is unknown
  std::string job_state;                      // Slurm's word for how the job ended; "": unknown
  std::vector<std::string> job_evidence;      // Slurm's information about the end
  double now = 0;                             // seconds since 1970
  std::vector<std::string> looked, unlooked;  // sources that were read; sources that were left out, with the reason
};

}  // namespace millrace::doctor
