// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ledger: a folder that records submitted runs, local or shared by many writers (docs/format/ledger.md). A run is
// one file that never changes; it is written under another name and renamed. Later events are further files next to
// it. There are no locks. Values; functions are thread-safe.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::jobs {

struct GitState {
  std::string commit;
  bool dirty = false;  // tracked files differ from the commit
};

// Data that a job reads.
struct DataRecord {
  std::string url;            // without secrets
  std::string kind;           // "shards", "lerobot", "files"
  std::string manifest_hash;  // XXH3-128 of manifest.json or meta/info.json; "": there is none
};

// A submitted run. Its texts hold no secrets (secrets.h).
struct RunRecord {
  std::string run;  // its id and the beginning of its files' names: "20261125T044350Z-1234-9f3a6b1c2d4e5f60"
  std::string name, job_id, cluster, user, host;
  int64_t submitted = 0;  // UTC seconds since 1970
  std::string work_dir;
  std::string script;                           // absolute path
  std::string script_hash;                      // XXH3-128 of its bytes, secrets included
  int64_t script_bytes = 0;                     // before secrets were removed
  int64_t secrets_removed = 0;                  // number of secrets removed from all texts of this record
  std::vector<std::string> arguments, options;  // arguments of the script; options of sbatch
  std::map<std::string, std::string> asked;     // options in effect: from the script and the command line
  std::string array;                            // "0-31%4"; "" for a single job
  std::string output, error;                    // patterns of the log files, absolute; empty `error`: the same file
  std::optional<GitState> git;
  std::vector<DataRecord> data;
  std::string millrace;  // version
  std::map<std::string, std::string> environment;
};

struct RunEvent {
  std::string kind;                          // "end", "cancel", "requeue"
  int64_t time_ns = 0;                       // since 1970, UTC; orders events of the same second
  std::string user;                          // user whose command wrote it
  std::map<std::string, std::string> facts;  // for an end: state, exit, started, ended, elapsed_s, nodes, tasks
};

struct LedgerRun {
  RunRecord record;
  std::vector<RunEvent> events;  // by time

  // The last "end" event, unless the run was requeued after it; else null.
  const RunEvent* end() const;
};

struct LedgerContents {
  std::vector<LedgerRun> runs;       // by time of submission
  std::vector<std::string> damaged;  // "FILE: why" for each unreadable file; other runs are complete
};

class Ledger {
 public:
  explicit Ledger(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }

  // Makes the folder and checks that a file can be written there. Errors: those of mkdir and open.
  [[nodiscard]] Status prepare(int64_t submitted) const;
  // Writes a run and its script's text, durably. Sets record.run. Errors: those of writing.
  [[nodiscard]] Status add(RunRecord& record, std::string_view script_text) const;
  // Writes an event of a run. Errors: those of writing.
  [[nodiscard]] Status add_event(const RunRecord& record, const RunEvent& event) const;
  // Reads all runs and events; empty if the folder does not exist. Errors: those of reading a folder.
  [[nodiscard]] Result<LedgerContents> read() const;
  // Returns the text of the script as it was submitted, without its secrets. Errors: those of open and read.
  [[nodiscard]] Result<std::string> script_text(const RunRecord& record) const;

 private:
  std::string month_folder(int64_t submitted) const;

  std::string folder_;
};

// Returns MILLRACE_LEDGER, else millrace/ledger in XDG_STATE_HOME or ~/.local/state. Error: not_found (no home).
[[nodiscard]] Result<std::string> default_ledger_folder();

// Converts between values and the JSON objects of the ledger's files. Errors: corruption (no such object), unsupported
// (a newer version).
nlohmann::ordered_json record_json(const RunRecord& record);
[[nodiscard]] Result<RunRecord> parse_record(std::string_view text);
nlohmann::ordered_json event_json(const RunEvent& event);
[[nodiscard]] Result<RunEvent> parse_event(std::string_view text);

// Writes a file that never changes, durably: "FOLDER/20261125T044350.123456789Z-9f3a6b1c2d4e5f60END". Makes the folder.
// Errors: those of writing.
[[nodiscard]] Status write_dated(const std::string& folder, std::string_view end, std::string_view text);

// Formats a time as "2026-11-25T04:43:50Z".
std::string utc_time(int64_t seconds);
// Returns the current time in nanoseconds since 1970, UTC.
int64_t now_ns();
// Returns the name of a user ("ann"), or the number if the user has no name.
std::string name_of_user(int64_t number);
// Returns the name of the user who runs this process.
std::string user_name();

}  // namespace millrace::jobs
