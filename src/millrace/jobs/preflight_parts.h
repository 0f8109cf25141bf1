// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between the checks of `job check`, one function each. Private to this room.

#include <optional>
#include <string>
#include <vector>

#include "millrace/jobs/checks.h"
#include "millrace/jobs/preflight.h"

namespace millrace::jobs {

// A word with a known value, from the script or its arguments.
struct KnownWord {
  std::string text;
  Place place;                       // {} for an argument
  bool begins = false;               // the first word of a command
  bool in_container = false;         // its command runs in a container
  const Command* command = nullptr;  // null: an argument
};

// State that all checks share.
struct Preflight {
  const CheckRequest& request;
  const Job& job;
  const Options& asked;
  const slurm::AskOptions& slurm;
  std::string work_dir;
  std::vector<KnownWord> words;
  const slurm::Cluster* cluster = nullptr;  // null: Slurm did not answer
  CheckReport& report;

  void problem(std::string_view id, Place place, std::string message, std::string fix = {},
               std::optional<Severity> severity = {});
  void fine(std::string subject, std::string evidence);
  void unknown(std::string subject, std::string why);

  // Returns the place of an option, or the job's first line.
  Place place_of(std::string_view option) const;
  // Returns the value in effect: from the command line, else from the variable that sbatch reads, else from the
  // script.
  std::string held(std::string_view option, const char* variable) const;
  std::vector<std::string> partitions() const;  // the requested ones, else the default one
};

struct NamedValue {
  std::string text;
  Place place;
  const Command* command = nullptr;  // null: from an argument or the request
  bool in_container = false;
};
// Returns the values of options with these names ("--data X Y", "--data=X"), in the script and its arguments.
std::vector<NamedValue> values_of(const std::vector<KnownWord>& words, std::span<const std::string_view> names);

// The planner's estimate of a checkpoint that a run can resume from (`plan checkpoint`). planned_checkpoint() returns
// nullopt if the model is unknown.
struct PlannedCheckpoint {
  int64_t bytes = 0;
  bool given = false;  // the user gave the parameters; false: the script names the model, and may train only a part
  std::string basis;   // the basis of the estimate, in words
};
std::optional<PlannedCheckpoint> planned_checkpoint(const Preflight& check);

// Returns the folders or URLs of checkpoints that the script or the request names. In a container, the path is the one
// inside it.
std::vector<NamedValue> checkpoint_places(const Preflight& check);
// Returns `path` below the job's folder; a URL stays as it is.
std::string below_work_dir(const Preflight& check, const std::string& path);
// Returns the path on this machine of the file that a value names; in a container, the mounts are followed. nullopt:
// no mount shows the file. A URL stays as it is.
std::optional<std::string> host_path(const Preflight& check, const NamedValue& value);

// Describes a command that may create the file of a value before it is read; empty when there is none.
std::string made_before(const Preflight& check, const NamedValue& value, const std::string& path);
// Splits one value of a data option into its parts: "a,b", "a::b", a weight without its path.
std::vector<NamedValue> data_parts(const Preflight& check, const NamedValue& value);

void check_log_folder(Preflight& check);
void check_partition(Preflight& check);
void check_accounts(Preflight& check);
void check_nodes(Preflight& check);
void check_checkpoints(Preflight& check);
void check_mounts(Preflight& check);
void check_data(Preflight& check);
void check_login(Preflight& check);
void check_image(Preflight& check);
void check_variables(Preflight& check);
void check_start(Preflight& check);

}  // namespace millrace::jobs
