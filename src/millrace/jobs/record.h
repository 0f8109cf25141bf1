// SPDX-License-Identifier: Apache-2.0
#pragma once

// The record that a training leaves (docs/format/run.md): a folder with one file per start, of JSON lines that are
// only appended, and notes as further files. Values; functions are thread-safe.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/jobs/ledger.h"

namespace millrace::jobs {

// One start of a training: the first one, or one after a requeue.
struct RecordStart {
  std::string file;
  nlohmann::ordered_json facts;                 // its first line
  double begun = 0, last = 0;                   // time of its first and last line, in seconds since 1970
  int64_t first_step = -1, last_step = -1;      // -1: none was logged
  nlohmann::ordered_json loader, checkpointer;  // the last counters; null: none
  std::string end;                              // "completed", "requeue", "failed"; "": it was killed or still runs
  std::string error;                            // type of the exception that failed it
  int64_t broken_lines = 0;                     // lines that are no JSON, except an unfinished last line
};

struct RecordPoint {
  int64_t step = 0;
  double time = 0;
  double value = 0;
};

struct Note {
  double time = 0;
  std::string user, text;
};

struct TrainingRecord {
  std::string folder, name;
  std::vector<RecordStart> starts;  // by time; never empty
  // Values by name ("train/loss"), sorted by step. A step that a later start repeated has the value of that start.
  std::map<std::string, std::vector<RecordPoint>, std::less<>> values;
  std::vector<Note> notes;

  int64_t last_step() const;                                 // -1: none
  double seconds() const;                                    // run time of all starts, without the time between them
  const RecordPoint* last_of(std::string_view value) const;  // null: never logged
  // Returns a value of the newest start's first line as text; "" if it is missing. `path`: "config/batch_size".
  std::string fact(std::string_view path) const;
  // Returns a counter summed over all starts; 0 if no start counted it. `part`: "loader" or "checkpointer".
  double counted(std::string_view part, std::string_view counter) const;
  // Returns "completed", "requeue" or "failed"; "" while the training runs, or after a kill.
  const std::string& status() const { return starts.back().end; }
};

// Reads the record in a folder. A torn or damaged line loses only that line. Errors: not_found (no record in the
// folder), unsupported (a newer version), those of open and read.
[[nodiscard]] Result<TrainingRecord> read_training(const std::string& folder);

// The end of the newest start, from its first and last lines alone.
struct TrainingEnd {
  std::string file, job_id;
  std::string status, error;   // as in RecordStart
  double begun = 0, last = 0;  // seconds since 1970
  int64_t last_step = -1;      // -1: none was logged at its end
};
// Reads the end of the newest start. Errors: those of read_training.
[[nodiscard]] Result<TrainingEnd> read_training_end(const std::string& folder);

// Returns the folders with a record: `folders` themselves, or folders up to four levels below them. Sorted.
std::vector<std::string> find_trainings(std::span<const std::string> folders);

// Adds a note as a separate file. Errors: those of writing.
[[nodiscard]] Status add_note(const std::string& folder, std::string_view text);

// --- for the program that records

// Returns the facts about the machine for a start's first line: user, host, git, environment (without secrets),
// job_id, restarts, version. One line of JSON.
std::string start_facts(const std::string& folder);

// Records the folder in the ledger, so that `runs ls` finds it. Errors: those of writing.
[[nodiscard]] Status remember_training(const Ledger& ledger, const std::string& folder);
// Returns the folders that the ledger knows, sorted. They may no longer exist.
std::vector<std::string> remembered_trainings(const Ledger& ledger);

// --- comparing

struct Difference {
  std::string what;  // "config/lr", "git", "environment/NCCL_DEBUG", "train/loss"
  std::string left, right;
};
// Returns the differences in settings, data, code, environment and curves. For each value that differs, it tells the
// first step where it differs and the last value.
std::vector<Difference> compare_trainings(const TrainingRecord& left, const TrainingRecord& right);

// --- TensorBoard

// Returns all values as one event file: records of Event protos with masked CRC-32C
// (tensorboard/compat/proto/event.proto).
std::string tensorboard_events(const TrainingRecord& record);

}  // namespace millrace::jobs
