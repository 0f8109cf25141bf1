// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a verb. A verb registers itself with its flags and three examples, turns its parsed arguments into a
// library configuration, and runs. A wrong argument is thrown as CLI::ValidationError, as CLI11 requires, and ends as a
// usage error. Later failures are Statuses. For one thread.

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/cli/output.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/tar.h"
#include "millrace/storage/url_options.h"

namespace millrace::cli {

// The context in which a verb runs.
struct Context {
  Output& out;
  std::stop_token stop;
};
using RunVerb = std::function<Status(Context&)>;

class Verbs {
 public:
  explicit Verbs(CLI::App& root) : root_(root) {}
  CLI::App& root() { return root_; }

  // Adds a verb that only groups others ("shards").
  CLI::App& add_group(const std::string& name, const std::string& description);
  // Adds a verb below `parent`, with the flags that all verbs have; the caller adds the others. After the arguments
  // are parsed, `check` checks them together (it may throw CLI::ValidationError); then `run` is chosen.
  CLI::App& add(CLI::App& parent, const std::string& name, const std::string& description,
                const std::array<std::string, 3>& examples, RunVerb run, std::function<void()> check = {});

  const OutputOptions& options() const { return options_; }
  // The storage options from the flags. run_cli() sets them for the process before the verb runs.
  UrlOptions& url_options() { return url_options_; }
  // The verb on the command line; empty before parsing.
  const RunVerb& chosen() const { return chosen_; }

 private:
  CLI::App& root_;
  OutputOptions options_;
  UrlOptions url_options_;
  RunVerb chosen_;
};

// Each function is in its own file, cmd_<verb>.cpp.
void add_cp(Verbs& verbs);
void add_mv(Verbs& verbs);
void add_sync(Verbs& verbs);
void add_ls(Verbs& verbs);
void add_rm(Verbs& verbs);
void add_verify(Verbs& verbs);
void add_stage(Verbs& verbs);
void add_cat(Verbs& verbs);
void add_split(Verbs& verbs);
void add_prepare(Verbs& verbs);
void add_shards_ls(Verbs& verbs, CLI::App& shards);
void add_shards_check(Verbs& verbs, CLI::App& shards);
void add_shards_index(Verbs& verbs, CLI::App& shards);
void add_shards_cat(Verbs& verbs, CLI::App& shards);
void add_ckpt(Verbs& verbs);
void add_ckpt_advise(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_diff(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_export(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_follow(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_import(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_last_good(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_prune(Verbs& verbs, CLI::App& ckpt);
void add_ckpt_restore(Verbs& verbs, CLI::App& ckpt);
void add_plan(Verbs& verbs);
void add_cluster_lint(Verbs& verbs, CLI::App& group);
void add_cluster_new(Verbs& verbs, CLI::App& group);
void add_layout(Verbs& verbs);
void add_lerobot(Verbs& verbs);
void add_lerobot_convert(Verbs& verbs, CLI::App& lerobot);
void add_lerobot_edit(Verbs& verbs, CLI::App& lerobot);  // split, merge, delete
void add_lerobot_demo(Verbs& verbs, CLI::App& lerobot);
void add_lerobot_diff(Verbs& verbs, CLI::App& lerobot);
void add_lerobot_download(Verbs& verbs, CLI::App& lerobot);
void add_lerobot_modality(Verbs& verbs, CLI::App& lerobot);
void add_lerobot_repair(Verbs& verbs, CLI::App& lerobot);
void add_lerobot_stats(Verbs& verbs, CLI::App& lerobot);
void add_episodes(Verbs& verbs);
void add_tokenizer(Verbs& verbs);
void add_job(Verbs& verbs);
void add_job_check(Verbs& verbs, CLI::App& job);
void add_job_submit(Verbs& verbs, CLI::App& job);
void add_job_runs(Verbs& verbs, CLI::App& job);
void add_job_logs(Verbs& verbs, CLI::App& job);
void add_job_why(Verbs& verbs, CLI::App& job);
void add_runs(Verbs& verbs);
void add_env(Verbs& verbs);
void add_monitor(Verbs& verbs);
void add_link(Verbs& verbs);
void add_doctor(Verbs& verbs);
void add_bench(Verbs& verbs);
void add_bench_checkpoint(Verbs& verbs, CLI::App& bench);
void add_bench_loader(Verbs& verbs, CLI::App& bench);
void add_bench_tokenizer(Verbs& verbs, CLI::App& bench);
void add_completion(Verbs& verbs);

// Returns the value, or throws a usage error that names the flag.
template <class T>
T usage_value(const std::string& flag, Result<T> result) {
  if (!result) throw CLI::ValidationError(flag, result.error().message());
  return *std::move(result);
}

// Adds a flag whose value is a size ("64MiB") of `least` bytes or more.
void add_size_flag(CLI::App& app, const std::string& flag, int64_t& bytes, const std::string& description,
                   int64_t least = 0);
// Adds a flag whose value is one of a few words. Completion and help list them.
CLI::Option* add_choice_flag(CLI::App& app, const std::string& flag, const std::vector<std::string>& choices,
                             const std::function<void(const std::string&)>& set, const std::string& description);
// Returns the note of `shards index` and `shards check` about members of tars that belong to no sample; empty if there
// are none.
std::string skipped_text(const formats::TarSkipped& skipped);

// Adds the arguments URL...: shards as find_shards takes them.
void add_shard_arguments(CLI::App& app, std::vector<std::string>& urls);
// Adds --documents, --text-field and --max-document-bytes.
void add_document_flags(CLI::App& app, formats::DocumentMode& mode, std::string& text_field,
                        int64_t& max_document_bytes);
// Adds the flag that makes empty texts documents.
void add_keep_empty_flag(CLI::App& app, bool& keep_empty);
// Adds --json-as-text and --max-invalid.
void add_text_flags(CLI::App& app, bool& json_as_text, double& max_invalid_utf8);
// The largest count: 2^53, as in records.
inline constexpr int64_t kMaxCount = int64_t{1} << 53;
inline constexpr const char* kInputHelp =
    "Text, jsonl or Parquet, also gzip or zstd: files, folders, globs, brace patterns, @FILE for a list, - for stdin";

// Reads the options of `app` that the command line did not set from a TOML file: keys at the top, or in a section
// named like the verb ("[prepare]", "[shards.check]"). Sections of other verbs are ignored.
void apply_config_file(CLI::App& app, const std::string& path);

}  // namespace millrace::cli
