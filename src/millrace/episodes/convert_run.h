// SPDX-License-Identifier: Apache-2.0
#pragma once

// The common part of both conversions, for the files of this room: reads CSV files with one schema, and keeps the
// report.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/episodes/convert.h"
#include "millrace/episodes/csv_file.h"
#include "millrace/episodes/source_files.h"

namespace millrace::episodes {

class ConvertRun {
 public:
  ConvertRun(const ConvertOptions& options, SourceFiles sources);

  const ConvertOptions& options() const { return options_; }
  const SourceFiles& sources() const { return sources_; }
  const SourceFile& file(size_t i) const { return sources_.files[i]; }
  int threads() const;

  // Decides names and types by the first of `files` that can be read; nullopt when none can. Marks the files before it
  // as failed. Errors: cancelled.
  [[nodiscard]] Result<std::optional<CsvSchema>> decide(const std::vector<size_t>& files);
  // Reads a file and counts it as converted. nullopt: it failed, or its columns differ from `schema`; take_others()
  // then returns it. Errors: cancelled.
  [[nodiscard]] Result<std::optional<CsvEpisode>> read(size_t i, const CsvSchema& schema);
  // Returns the files whose columns read() found to differ, grouped by their columns, each group in the order of the
  // files.
  std::map<std::vector<std::string>, std::vector<size_t>> take_others();

  // Returns a hash of all that the output of `files` depends on besides their content: names, sizes, times, columns
  // and options.
  Hash128 identity(const std::vector<size_t>& files, const CsvSchema& schema) const;

  // Marks a file as failed. Thread-safe, as are all methods here.
  void fail_file(size_t i, Error error);
  bool has_failed(size_t i) const;
  bool has_any_failed() const;
  bool have_all_failed() const;
  void count_kept(size_t i, const CsvSchema& schema);
  void count_output(int64_t bytes);
  ConvertReport take_report(std::string output);

 private:
  void count_kind(size_t i, const CsvSchema& schema) REQUIRES_LOCK(mutex_);
  void note_rounded(size_t i, const CsvSchema& schema, const CsvEpisode& episode) REQUIRES_LOCK(mutex_);

  const ConvertOptions& options_;
  const SourceFiles sources_;
  mutable Mutex mutex_;
  ConvertReport report_ GUARDED_BY(mutex_);
  std::map<size_t, Error> failed_ GUARDED_BY(mutex_);
  std::map<std::vector<std::string>, std::vector<size_t>> others_ GUARDED_BY(mutex_);
  // Each entry also has the number of its first file.
  std::map<std::vector<std::string>, std::pair<size_t, ConvertedKind>> kinds_ GUARDED_BY(mutex_);
  std::map<std::string, std::pair<size_t, RoundedColumn>> rounded_ GUARDED_BY(mutex_);
};

// Returns whether an error of writing ends the whole run, because writing other files would fail as well.
bool ends_run(const Error& error);

// Packs all files of one schema. Returns the path of the packed file.
[[nodiscard]] Result<std::string> convert_to_pack(ConvertRun& run);

}  // namespace millrace::episodes
