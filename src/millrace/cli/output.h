// SPDX-License-Identifier: Apache-2.0
#pragma once

// All printing of the command line. Results go to stdout: text, or with --json one object per line (docs/cli.md).
// Progress, notes and log lines go to stderr. An Output is the log sink while it lives. Thread-safe, except flush. A
// reader of stdout that went away (`| head`) ends the program quietly with status 141, as with other tools.

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/file_time.h"
#include "millrace/base/log.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::cli {

using Json = nlohmann::ordered_json;

struct OutputOptions {
  bool json = false;
  bool quiet = false;                 // no progress, no notes, and no text about completed work
  LogLevel log = LogLevel::kWarning;  // the lowest level to print
};

// Shows a Progress while it lives: on a terminal one or two lines that are redrawn, elsewhere a line every five
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
  bool quiet() const { return options_.quiet; }

  // Prints one result: `object` with --json, else the lines of `text` (which ends in a newline, or is empty).
  void print(const Json& object, std::string_view text);
  // Prints completed work as print() does, but no text with --quiet, except in a dry run.
  void print_done(const Json& object, std::string_view text, bool dry_run = false);
  // Print results that have only one of the two forms.
  void print_json(const Json& object);
  void print_text(std::string_view text);

  // Prints an error-level finding like a result and counts it, so that the exit status is 3.
  void finding(std::string_view url, const Error& error);
  // Counts an error-level finding that is printed in another form.
  void count_finding();
  int64_t findings() const;

  // Prints a line on stderr, but not with --quiet.
  void note(std::string_view line);
  // Prints "VERB: ERROR" on stderr and, with --json, an object of type "error" on stdout.
  void error(std::string_view verb, const Error& error);

  // Shows `progress`, which must outlive the view. The view must not outlive this Output.
  [[nodiscard]] std::unique_ptr<ProgressView> watch(const Progress& progress, std::string verb);

  // Flushes stdout. Errors: the first failed write since the start (no space, for example).
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
  int64_t lines_drawn_ GUARDED_BY(mutex_) = 0;  // lines of progress on the terminal, which must be cleared first
  int64_t findings_ GUARDED_BY(mutex_) = 0;
  Status failure_ GUARDED_BY(mutex_);
};

// A table of text: columns under their names, two spaces apart, numbers aligned to the right. A value.
class TextTable {
 public:
  struct Column {
    std::string name;
    bool right = false;
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // Adds a row. REQUIRES: one cell per column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // Returns lines that end in a newline, without trailing spaces. Cells are made printable.
  std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns `text` in one line: control characters as escapes, ill-formed UTF-8 as U+FFFD, and an ellipsis after
// `max_characters` code points.
std::string printable(std::string_view text, size_t max_characters = 4096);

// Formats a time as "2026-01-31T12:00:00Z".
std::string utc_text(const FileTime& time);

// Returns "1 shard", "1,200 shards".
std::string counted(int64_t count, std::string_view noun);

// Returns "sync: copy  [=====>     ]  42%  1.20 GB of 2.86 GB  12,345  2 failed  312 MB/s  ETA 5.3 s", at most `width`
// characters; the bar shrinks first. A second line shows files under way: "  big.tar 61%  other.tar 3% and 6 more".
// Width 0: one line, no bar and no limit.
std::string format_progress(const Progress::Snapshot& snapshot, std::string_view verb, size_t width);

}  // namespace millrace::cli
