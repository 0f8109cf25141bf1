// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only thing in the command line that prints. Results go to stdout: text for people, or with --json one object a
// line (schemas in docs/cli.md). Progress, notes and log lines go to stderr. An Output installs itself as the log sink
// and gives that up when it is dropped. Thread-safe, but for flush. A reader of stdout that went away (`| head`) ends
// the program quietly with status 141, as it ends other tools.

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/base/sync.h"

namespace millrace::cli {

using Json = nlohmann::ordered_json;

struct OutputOptions {
  bool json = false;
  bool quiet = false;                 // no progress, no notes, and no text of what was done
  LogLevel log = LogLevel::kWarning;  // the lowest level that is printed
};

// Shows a Progress until it is dropped: on a terminal a line or two that are redrawn, elsewhere a line every five
// seconds.
class ProgressView {
 public:
  virtual ~ProgressView() = default;
};

class Output {
 public:
  explicit Output(const OutputOptions& options, int out_fd = 1, int err_fd = 2);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  bool json() const { return options_.json; }

  // One result: `object` with --json, else the lines of `text` (which ends in a newline, or is empty for nothing).
  void print(const Json& object, std::string_view text);
  // As print(), of what a verb did: with --quiet it has no text, but where it would only have done it (a dry run).
  void print_done(const Json& object, std::string_view text, bool dry_run = false);
  // The parts of a result that only one of the two forms has.
  void print_json(const Json& object);
  void print_text(std::string_view text);

  // An error-level finding: printed like a result and counted, so that the exit status is 3.
  void finding(std::string_view url, const Error& error);
  // One that is printed in another form.
  void count_finding();
  int64_t findings() const;

  // A line for people on stderr; nothing with --quiet.
  void note(std::string_view line);
  // "VERB: what" on stderr and, with --json, an object of type "error" on stdout.
  void error(std::string_view verb, const Error& error);

  // `progress` must outlive the view, and the view must not outlive this Output.
  [[nodiscard]] std::unique_ptr<ProgressView> watch(const Progress& progress, std::string verb);

  // Writes out what is buffered for stdout. Errors: the first failure to write since the start (no space, say).
  [[nodiscard]] Status flush();

 private:
  class View;
  void write_out(std::string_view text);
  void flush_locked() REQUIRES_LOCK(mutex_);
  void write_err(std::string_view text, bool redrawn);
  std::string wipe() REQUIRES_LOCK(mutex_);

  const OutputOptions options_;
  const int out_fd_;
  const int err_fd_;
  const bool out_is_terminal_;
  const bool err_is_terminal_;
  mutable Mutex mutex_;
  std::string buffer_ GUARDED_BY(mutex_);
  Clock::time_point flushed_ GUARDED_BY(mutex_);
  int64_t lines_drawn_ GUARDED_BY(mutex_) = 0;  // of progress, which stand on the terminal and must be cleared first
  int64_t findings_ GUARDED_BY(mutex_) = 0;
  Status failure_ GUARDED_BY(mutex_);
};

// Columns of text under their names, two spaces apart; numbers to the right. A value.
class TextTable {
 public:
  struct Column {
    std::string name;
    bool right = false;
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // REQUIRES: one cell a column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // Lines that end in a newline, without trailing spaces. Cells are made printable.
  std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` in one line: control characters, quotes aside, as escapes, ill-formed UTF-8 as U+FFFD, and what is behind
// `max_characters` code points as an ellipsis.
std::string printable(std::string_view text, size_t max_characters = 4096);

// "2026-01-31T12:00:00Z"
std::string utc_text(std::chrono::sys_time<std::chrono::nanoseconds> time);

// "1 shard", "1,200 shards".
std::string counted(int64_t count, std::string_view noun);

// "sync: copy  [=====>     ]  42%  1.20 GB of 2.86 GB  12,345  2 failed  312 MB/s  ETA 5.3 s", at most `width`
// characters, for which the bar gives way first; and on a second line "  big.tar 61%  other.tar 3% and 6 more", where
// files are under way. Width 0: one line, no bar and no limit.
std::string format_progress(const Progress::Snapshot& snapshot, std::string_view verb, size_t width);

}  // namespace millrace::cli
