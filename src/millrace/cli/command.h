// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every verb is made of: it registers itself with its flags and three examples, turns its arguments into a library
// configuration when they have been parsed, and runs. A wrong argument is thrown as CLI::ValidationError, as CLI11
// wants it, and ends as a usage error; what fails later is a Status. For one thread.

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/cli/output.h"
#include "millrace/formats/documents.h"

namespace millrace::cli {

// What a verb runs with.
struct Context {
  Output& out;
  std::stop_token stop;
};
using RunVerb = std::function<Status(Context&)>;

class Verbs {
 public:
  explicit Verbs(CLI::App& root) : root_(root) {}
  CLI::App& root() { return root_; }

  // A verb that only groups others ("shards").
  CLI::App& add_group(const std::string& name, const std::string& description);
  // A verb below `parent`, with the flags that all verbs have; the caller adds the verb's own. When the verb is typed
  // and its arguments are parsed, `check` (which may throw CLI::ValidationError) looks at them together; then `run` is
  // chosen.
  CLI::App& add(CLI::App& parent, const std::string& name, const std::string& description,
                const std::array<std::string, 3>& examples, RunVerb run, std::function<void()> check = {});

  const OutputOptions& options() const { return options_; }
  // Of the verb that was typed; empty before.
  const RunVerb& chosen() const { return chosen_; }

 private:
  CLI::App& root_;
  OutputOptions options_;
  RunVerb chosen_;
};

// Each is one file, cmd_<verb>.cpp.
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
void add_plan(Verbs& verbs);
void add_cluster_lint(Verbs& verbs, CLI::App& group);
void add_cluster_new(Verbs& verbs, CLI::App& group);
void add_layout(Verbs& verbs);
void add_job(Verbs& verbs);
void add_env(Verbs& verbs);
void add_completion(Verbs& verbs);

// The value, or a usage error that names the flag.
template <class T>
T usage_value(const std::string& flag, Result<T> result) {
  if (!result) throw CLI::ValidationError(flag, result.error().message());
  return *std::move(result);
}

// A flag with a size ("64MiB"), of `least` bytes or more, for a value.
void add_size_flag(CLI::App& app, const std::string& flag, int64_t& bytes, const std::string& description,
                   int64_t least = 0);
// A flag with one of a few words for a value; completion and help list them.
CLI::Option* add_choice_flag(CLI::App& app, const std::string& flag, const std::vector<std::string>& choices,
                             const std::function<void(const std::string&)>& set, const std::string& description);
// URL...: shards as find_shards takes them.
void add_shard_arguments(CLI::App& app, std::vector<std::string>& urls);
// --documents, --text-field and --max-document-bytes.
void add_document_flags(CLI::App& app, formats::DocumentMode& mode, std::string& text_field,
                        int64_t& max_document_bytes);
// --json-as-text and --max-invalid.
void add_text_flags(CLI::App& app, bool& json_as_text, double& max_invalid_utf8);
// Of what is counted: 2^53, as records have it.
inline constexpr int64_t kMaxCount = int64_t{1} << 53;
inline constexpr const char* kInputHelp =
    "Text, jsonl or Parquet, also gzip or zstd: files, folders, globs, brace patterns, @FILE for a list, - for stdin";

// Reads the options of `app` that the command line left open from a TOML file: keys at the top, or in a section named
// like the verb ("[prepare]", "[shards.check]"); sections of other verbs are passed over.
void apply_config_file(CLI::App& app, const std::string& path);

}  // namespace millrace::cli
