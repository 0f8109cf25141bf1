// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ledger: a folder that remembers submitted runs, local or shared by many writers (docs/format/ledger.md). A run is
// one file that never changes, made under another name and renamed; what happens later are further files beside it.
// There are no locks. Values; functions are thread-safe.

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
  std::string manifest_hash;  // XXH3-128 of manifest.json or meta/info.json; "" where there is none
};

// What was submitted. Texts hold no secrets (secrets.h).
struct RunRecord {
  std::string run;  // its id and the beginning of its files' names: "20261125T044350Z-1234-9f3a6b1c2d4e5f60"
  std::string name, job_id, cluster, user, host;
  int64_t submitted = 0;  // UTC seconds since 1970
  std::string work_dir;
  std::string script;                           // absolute path
  std::string script_hash;                      // XXH3-128 of its bytes, secrets included
  int64_t script_bytes = 0;                     // before secrets were removed
  int64_t secrets_removed = 0;                  // from all texts of this record
  std::vector<std::string> arguments, options;  // of the script; of sbatch
  std::map<std::string, std::string> asked;     // options that hold: of the script and the command line
  std::string array;                            // "0-31%4"; "" for a single job
  std::string output, error;                    // patterns of the log files, absolute; error "": the same file
  std::optional<GitState> git;
  std::vector<DataRecord> data;
  std::string millrace;  // version
  std::map<std::string, std::string> environment;
};

struct RunEvent {
  std::string kind;                          // "end", "cancel", "requeue"
  int64_t time_ns = 0;                       // of the event, since 1970, UTC; two events of one second keep their order
  std::string user;                          // whose command wrote it
  std::map<std::string, std::string> facts;  // of an end: state, exit, started, ended, elapsed_s, nodes, tasks
};

struct LedgerRun {
  RunRecord record;
  std::vector<RunEvent> events;  // by time

  // The last end, unless the run was requeued after it.
  const RunEvent* end() const;
};

struct LedgerContents {
  std::vector<LedgerRun> runs;       // by time of submission
  std::vector<std::string> damaged;  // "FILE: why" of files that could not be read; the others are complete
};

class Ledger {
 public:
  explicit Ledger(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }

  // Makes the folder and checks that a file can be written there. Errors: those of mkdir and open.
  [[nodiscard]] Status prepare(int64_t submitted) const;
  // Writes a run and its script's text, durably. Sets record.run. Errors: those of writing.
  [[nodiscard]] Status add(RunRecord& record, std::string_view script_text) const;
  // Errors: those of writing.
  [[nodiscard]] Status add_event(const RunRecord& record, const RunEvent& event) const;
  // Everything; empty where the folder does not exist. Errors: those of reading a folder.
  [[nodiscard]] Result<LedgerContents> read() const;
  // The text of the script as it was submitted, without its secrets. Errors: those of open and read.
  [[nodiscard]] Result<std::string> script_text(const RunRecord& record) const;

 private:
  std::string month_folder(int64_t submitted) const;

  std::string folder_;
};

// MILLRACE_LEDGER, else millrace/ledger in XDG_STATE_HOME or ~/.local/state. Error: not_found (no home).
[[nodiscard]] Result<std::string> default_ledger_folder();

// Objects as the ledger's files hold them. Errors: corruption (no such object), unsupported (a newer version).
nlohmann::ordered_json record_json(const RunRecord& record);
[[nodiscard]] Result<RunRecord> parse_record(std::string_view text);
nlohmann::ordered_json event_json(const RunEvent& event);
[[nodiscard]] Result<RunEvent> parse_event(std::string_view text);

// Writes a file that never changes, durably: "FOLDER/20261125T044350.123456789Z-9f3a6b1c2d4e5f60END". Makes the folder.
// Errors: those of writing.
[[nodiscard]] Status write_dated(const std::string& folder, std::string_view end, std::string_view text);

// "2026-11-25T04:43:50Z"
std::string utc_time(int64_t seconds);
// Now, since 1970, UTC.
int64_t now_ns();
// "ann", or the number of a user without a name.
std::string name_of_user(int64_t number);
// The name of the user that runs this process.
std::string user_name();

}  // namespace millrace::jobs
