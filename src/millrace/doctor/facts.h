// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the doctor knows before it judges: the run's record, samples of the monitor, signs in logs, processes, mounts
// and results of nccl-tests. Reading them is here and judging is in diagnose.h. Values; functions are thread-safe.

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

// One node's samples, by the monitor's series ("millrace_gpu_busy_ratio{gpu=\"0\"}").
struct NodeSamples {
  std::string host, file;
  std::map<std::string, std::vector<Point>, std::less<>> series;

  double begun() const;  // of the first point; 0 without any
  double ended() const;
};

// Reads JSON lines or CSV of `millrace monitor`, or CSV of `nvidia-smi --query-gpu`, whose times are of the time zone
// of this machine. At most some 5,000 samples, evenly spaced, are kept of a longer file. Torn lines are left out.
// Errors: not_found, invalid_argument (no such file form).
[[nodiscard]] Result<NodeSamples> read_samples(const std::string& path);

// Whether a file begins as one that read_samples() takes.
bool is_samples_file(const std::string& path);

// --- logs

// A sign in a log. It is found where a line holds `text` in this form and, unless it is empty, also `with`.
struct LogSign {
  enum class Form {
    kAnywhere,
    kReason,     // as strerror's texts are printed: "open: TEXT", "[Errno 24] TEXT: 'a'"
    kException,  // the name of an exception at the begin of a line: "MemoryError", "[rank3]: a.b.MemoryError: why"
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
  int rank = -1;     // that the line names; -1: none
  std::string text;  // one line, without secrets
};

struct LogFacts {
  std::string path;
  int64_t lines = 0;
  std::vector<LogHit> hits;                // by line; the first kMostHits of each rule
  std::map<std::string_view, int64_t> of;  // all hits by rule
  std::string first_error;                 // "FILE:LINE: TEXT"; "" without one
  bool was_cut = false;                    // it is longer than what was read
  static constexpr int64_t kMostHits = 64;
};

// Reads the first 256 MiB. Errors: those of open and read, cancelled.
[[nodiscard]] Result<LogFacts> read_log(const std::string& path, const std::stop_token& stop);

// --- processes

struct ProcessFacts {
  std::string host;  // "" is this node
  pid_t pid = 0, parent = 0;
  int rank = -1;  // RANK or SLURM_PROCID of its environment
  std::string command;
  std::string states;    // a letter for each look: "SSS"
  std::string wait;      // the kernel function in which it slept at the last look; "" is unknown
  double cpu_s = 0;      // processor time of all its threads between the first and the last look
  double watched_s = 0;  // time between these
  std::string stack;     // of its Python or native threads, the innermost frame first; "" where it could not be had
  std::string no_stack;  // why
  // What its own loader and checkpointer show, at the first and the last look; without values where it shows nothing.
  PublishedProcess shown_first, shown;
  double shown_s = 0;  // time between these
};

struct WatchOptions {
  std::string proc = "/proc";
  std::chrono::milliseconds watch{1000};
  int looks = 5;
  std::vector<std::string> published = published_folders();
  bool stacks = true;  // by py-spy, else gdb, where installed; each has ten seconds
};

// These processes and all below them; of one that is gone nothing. Errors: cancelled.
[[nodiscard]] Result<std::vector<ProcessFacts>> watch_processes(std::span<const pid_t> pids,
                                                                const WatchOptions& options,
                                                                const std::stop_token& stop);
// Processes of this node that hold a file of the run's record open.
std::vector<pid_t> processes_of_record(const std::string& folder, const std::string& proc = "/proc");
// Processes of this node whose environment has SLURM_JOB_ID=`job`.
std::vector<pid_t> processes_of_job(const std::string& job, const std::string& proc = "/proc");

// --- mounts

struct MountFacts {
  std::string path;
  double bytes = 0, free_bytes = 0;  // that a user may take
  double files = 0, free_files = 0;  // 0 files: the file system has no such limit
};
// Errors: those of statvfs.
[[nodiscard]] Result<MountFacts> read_mount(const std::string& path);

// --- nccl-tests

struct NcclRow {
  int64_t bytes = 0;
  double busbw = 0;   // GB/s, the larger of out of place and in place
  int64_t wrong = 0;  // wrong values; 0 where they were not checked
};

struct NcclRun {
  std::string file, collective;  // "" where the output does not say
  int64_t ranks = 0, nodes = 0;
  std::string gpu;  // "NVIDIA H100 80GB HBM3"
  std::vector<NcclRow> rows;
};
// The tables in an output of nccl-tests; none in any other text.
std::vector<NcclRun> parse_nccl_tests(std::string_view text, const std::string& file);

// --- flight recorder of PyTorch

struct FlightCall {
  std::string name, sizes, frames;  // "all_reduce", "[8,8] Float", "step (train.py:17) < main (train.py:3)"
  double created = 0;               // seconds since 1970; 0 is unknown
  bool is_done = false;
};

struct FlightGroup {
  std::string title;                    // "default_pg"; "" where the dump has none
  int64_t last = -1;                    // the collective that this rank began last; -1: none
  std::map<int64_t, FlightCall> calls;  // by number, as far as the recorder reaches back
};

// One rank's collectives in each process group.
struct FlightDump {
  std::string file;
  int rank = -1;      // by the end of the file's name
  int64_t world = 0;  // ranks of the job; 0 is unknown
  std::map<std::string, FlightGroup> groups;
};
// A dump as the recorder writes it (a pickle) or as JSON. Errors: corruption, invalid_argument (something else).
[[nodiscard]] Result<FlightDump> parse_flight_dump(std::string_view text, const std::string& file);
// Reads the first 256 MiB. Errors: not_found, as above.
[[nodiscard]] Result<FlightDump> read_flight_dump(const std::string& path);
// "nccl_trace_rank_3": the names that PyTorch gives them.
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
  std::string job_state;                      // Slurm's word for how the job ended; "" is unknown
  std::vector<std::string> job_evidence;      // what Slurm knows of the end
  double now = 0;                             // seconds since 1970
  std::vector<std::string> looked, unlooked;  // at what, and what was left out and why
};

}  // namespace millrace::doctor
