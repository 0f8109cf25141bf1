// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the questions of `job check`. One function a question; private to this room.

#include <optional>
#include <string>
#include <vector>

#include "millrace/jobs/checks.h"
#include "millrace/jobs/preflight.h"

namespace millrace::jobs {

// A word of the script or of its arguments whose value is known.
struct KnownWord {
  std::string text;
  Place place;                       // {} of an argument
  bool begins = false;               // the first of a command
  bool in_container = false;         // of a command that runs in a container
  const Command* command = nullptr;  // null: an argument
};

// Shared by all questions.
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

  // The place of an option, or the job's first line.
  Place place_of(std::string_view option) const;
  // The value that holds: of the command line, else of the variable that sbatch reads, else of the script.
  std::string held(std::string_view option, const char* variable) const;
  std::vector<std::string> partitions() const;  // those that it asks for, else the default one
};

struct NamedValue {
  std::string text;
  Place place;
  const Command* command = nullptr;  // null: of an argument or of the request
  bool in_container = false;
};
// The values behind options of these names ("--data X Y", "--data=X"), in the script and its arguments.
std::vector<NamedValue> values_of(const std::vector<KnownWord>& words, std::span<const std::string_view> names);

// What the planner says of a checkpoint to go on from (`plan checkpoint`). nullopt: the model is not known.
struct PlannedCheckpoint {
  int64_t bytes = 0;
  bool given = false;  // the user gave the parameters; else the script tells the model, and may train a part of it
  std::string basis;   // in words
};
std::optional<PlannedCheckpoint> planned_checkpoint(const Preflight& check);

// Folders or URLs of checkpoints that the script or the request names. One in a container has its path there.
std::vector<NamedValue> checkpoint_places(const Preflight& check);
// `path` below the job's folder, or as it is where it is a URL.
std::string below_work_dir(const Preflight& check, const std::string& path);
// Where this machine has what a value names: in a container, behind the mount. nullopt: no mount shows it. A URL stays.
std::optional<std::string> host_path(const Preflight& check, const NamedValue& value);

// A command that may make what a value names before it is read there: in words; empty when there is none.
std::string made_before(const Preflight& check, const NamedValue& value, const std::string& path);
// The parts of one value of a data option: "a,b", "a::b", a weight without its path.
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
