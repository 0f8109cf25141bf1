// SPDX-License-Identifier: Apache-2.0
#pragma once

// The record that a training leaves (docs/format/run.md): a folder with one file for each start, of JSON lines that are
// only ever appended, and notes beside them. Values; functions are thread-safe.

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
  double begun = 0, last = 0;                   // seconds since 1970: of its first and last line
  int64_t first_step = -1, last_step = -1;      // -1: none was logged
  nlohmann::ordered_json loader, checkpointer;  // the last counters; null without any
  std::string end;           // "completed", "requeue", "failed"; "" where it was killed, or still runs
  std::string error;         // of a failure: the exception's type
  int64_t broken_lines = 0;  // that are no JSON, but for a last one without its end
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
  // Values by name ("train/loss"), by step. A step that a later start took again has that start's value.
  std::map<std::string, std::vector<RecordPoint>, std::less<>> values;
  std::vector<Note> notes;

  int64_t last_step() const;                                 // -1: none
  double seconds() const;                                    // that its starts ran, without the time between them
  const RecordPoint* last_of(std::string_view value) const;  // null: never logged
  // A value of the newest start's first line, as text: "" where it is not there. `path`: "config/batch_size".
  std::string fact(std::string_view path) const;
  // Summed over all starts; 0 where no start counted it. `part`: "loader" or "checkpointer".
  double counted(std::string_view part, std::string_view counter) const;
  // "completed", "requeue", "failed", or "" while it runs or after a kill.
  const std::string& status() const { return starts.back().end; }
};

// Errors: not_found (no record in the folder), unsupported (a newer version), those of open and read. A torn or damaged
// line costs that line alone.
[[nodiscard]] Result<TrainingRecord> read_training(const std::string& folder);

// How the newest start ended, by its first and its last lines alone.
struct TrainingEnd {
  std::string file, job_id;
  std::string status, error;   // as of RecordStart: "" where it was killed, or still runs
  double begun = 0, last = 0;  // seconds since 1970
  int64_t last_step = -1;      // -1: none was logged at its end
};
// Errors: as of read_training.
[[nodiscard]] Result<TrainingEnd> read_training_end(const std::string& folder);

// Folders with a record: these themselves, or those below them, four levels deep. Sorted.
std::vector<std::string> find_trainings(std::span<const std::string> folders);

// Appends a note, as a file of its own. Errors: those of writing.
[[nodiscard]] Status add_note(const std::string& folder, std::string_view text);

// --- for the program that records

// What a start's first line says of the machine: user, host, git, environment (without secrets), job_id, restarts,
// version. One line of JSON.
std::string start_facts(const std::string& folder);

// Records the folder in the ledger, so that `runs ls` finds it. Errors: those of writing.
[[nodiscard]] Status remember_training(const Ledger& ledger, const std::string& folder);
// The folders that the ledger knows, which may be gone. Sorted.
std::vector<std::string> remembered_trainings(const Ledger& ledger);

// --- comparing

struct Difference {
  std::string what;  // "config/lr", "git", "environment/NCCL_DEBUG", "train/loss"
  std::string left, right;
};
// What differs in settings, data, code, environment, and in the curves: of each value the first step where it differs
// and its last value.
std::vector<Difference> compare_trainings(const TrainingRecord& left, const TrainingRecord& right);

// --- TensorBoard

// All values as one event file: records of Event protos with masked CRC-32C (tensorboard/compat/proto/event.proto).
std::string tensorboard_events(const TrainingRecord& record);

}  // namespace millrace::jobs
