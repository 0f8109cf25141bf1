// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both ways of converting share, for the files of this room: reading CSV files with one schema, and the report.

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

  // Decides names and types by the first of these files that can be read; nullopt when none can. Those before
  // it fail. Errors: kCancelled when the run is stopped.
  [[nodiscard]] Result<std::optional<CsvSchema>> decide(const std::vector<size_t>& files);
  // Reads a file and counts it as converted. nullopt: it failed, or has other columns than `schema`, which
  // take_others() then gives. Errors: cancelled.
  [[nodiscard]] Result<std::optional<CsvEpisode>> read(size_t i, const CsvSchema& schema);
  // By their columns, the files that read() found to have others. Each is in the order of the files.
  std::map<std::vector<std::string>, std::vector<size_t>> take_others();

  // What the output of these files depends on, beside their content: names, sizes, times, columns and options.
  Hash128 identity(const std::vector<size_t>& files, const CsvSchema& schema) const;

  // Thread-safe, as are all methods here.
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
  // With the first file of each.
  std::map<std::vector<std::string>, std::pair<size_t, ConvertedKind>> kinds_ GUARDED_BY(mutex_);
  std::map<std::string, std::pair<size_t, RoundedColumn>> rounded_ GUARDED_BY(mutex_);
};

// Whether an error of writing ends the whole run: the others would fail too.
bool ends_run(const Error& error);

// Packs all files of one schema. The answer is the packed file.
[[nodiscard]] Result<std::string> convert_to_pack(ConvertRun& run);

}  // namespace millrace::episodes
