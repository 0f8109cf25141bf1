// SPDX-License-Identifier: Apache-2.0
#pragma once

// Raw text -> token ids -> shards, one task of an array at a time (docs/design/prepare.md), and the balanced split of
// raw files before it. Tasks do not know of each other; output bytes depend on inputs, tokenizer and options
// only, never on threads or on how often a task was killed. Functions block; they are thread-safe on different outputs.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/manifest.h"
#include "millrace/formats/text_check.h"

namespace millrace::prepare {

// Which task to run, counted from 0, and how many there are.
struct Task {
  int64_t index = 0;
  int64_t count = 1;
  bool operator==(const Task&) const = default;
};
// "3/10" -> {3, 10}. Errors: invalid_argument.
[[nodiscard]] Result<Task> parse_task(std::string_view text);
// From SLURM_ARRAY_TASK_ID: index = (ID - SLURM_ARRAY_TASK_MIN) / STEP and count = (MAX - MIN) / STEP + 1, where STEP
// is SLURM_ARRAY_TASK_STEP or 1; so --array=0-9, 1-10 and 0-18:2 are all ten tasks. nullopt when there is no array.
// An array of fewer tasks than the folder `output` was begun with runs some of those again: ID is the number of one,
// counted from 0, or from 1 when only the task before is unfinished; so --array=2 and --array=2,5 work too.
// Errors: invalid_argument (variables that do not fit together; a list, or one number above 1, in a folder that does
// not say how many tasks there are), those of reading the folder.
[[nodiscard]] Result<std::optional<Task>> task_from_slurm(const std::string& output);

using formats::output_format_name;
using formats::OutputFormat;
using formats::parse_output_format;

struct PrepareOptions {
  // URLs; globs (*, ?, [], ** for any folders) and braces are expanded, folders stand for all files below them, "-" for
  // standard input, "@list.txt" for the lines of that file; sorted by name. Text, jsonl or Parquet, plain, gzip or
  // zstd, as each file's first bytes say.
  std::vector<std::string> inputs;
  std::string tokenizer;  // URL of a tokenizer.json
  std::string output;     // URL of a folder
  Task task;

  formats::ShardOptions shards;  // what decides their bytes
  // For kWebDataset without blocks. "npy": token_ids.npy (uint32), "json": token_ids.json, "raw": token_ids.u16 or
  // .u32, little-endian. Empty: "npy", or the only form of the format.
  std::string ids_format;

  formats::TextRules text_rules;  // which inputs are refused because they are not text
  int64_t max_errors = 1000;      // per task, with rules.skip_errors; more errors fail the task
  int64_t dedup_memory_bytes = 1 << 30;

  int threads = 0;       // 0: available_cpus()
  bool replace = false;  // replace what the task finished before from other inputs
  bool dry_run = false;  // report what would be done, without writing
};

// Estimates a task's output from the front of some of its inputs. Duplicates, which a sample cannot show, are included.
struct Estimate {
  int64_t sampled_bytes = 0;  // of the stored inputs; when it is all of them, documents and tokens are exact
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t output_bytes = 0;  // of the shards and the files beside them
  std::string advice;        // which flags help, when the shards will be much larger than the text
};

struct PrepareReport {
  formats::PartRecord part;
  int64_t shards_reused = 0;         // found finished, checked and kept
  int64_t output_bytes = 0;          // of all shards of the task
  std::optional<Estimate> estimate;  // of a dry run
  double seconds = 0;
  double cpu_seconds = 0;  // of this process
  // How long each stage of this run was at work, in seconds; the longest limits the run. Encoding is the time of
  // all its threads together, divided by their number.
  double read_seconds = 0, encode_seconds = 0, write_seconds = 0;
  std::string_view limiting_stage() const;  // "read", "encode", "write"; empty when there was no work
};

// Runs one task: reads the task's inputs (input i belongs to task i mod count, i in sorted order), writes shards, their
// indexes and the part record. A shard is visible only whole. Run again, it checks the shards that are there by hash,
// keeps them and continues behind them; a finished task stays as it is. Inputs are the same when their names
// (below the folder they share), sizes and times, or versions in a bucket, are. Errors: not_found (an input, the
// tokenizer, a bos or eos it does not have), invalid_argument (a bad document: file, line, byte offset; a file that is
// no text; inputs without a byte; an output folder that other options wrote: each difference), already_exists (the task
// was finished from other inputs, and not `replace`), resource_exhausted (a document over the limit; more errors than
// max_errors; no space; dedup's memory; less memory left than two chunks need), unsupported (tokenizer; Parquet without
// its library), cancelled.
[[nodiscard]] Result<PrepareReport> prepare(const PrepareOptions& options, std::stop_token stop = {},
                                            Progress* progress = nullptr, Metrics* metrics = nullptr);

// Joins the part records of `output` into manifest.json (again and again gives the same bytes).
// Errors: not_found naming the missing parts, invalid_argument (no document in any of them), those of join_parts.
[[nodiscard]] Result<formats::Manifest> finish(const std::string& output);

struct SplitOptions {
  std::vector<std::string> inputs;  // as in PrepareOptions
  std::string output;               // URL of a folder
  int64_t parts = 1;
  formats::DocumentOptions documents;
  formats::TextRules text_rules;  // as in PrepareOptions
  // This share of the documents, 0 to less than 1, goes to a separate file instead. The hash of a document's text and
  // `seed` decides, so that equal texts stay together.
  double validation = 0;
  uint64_t seed = 0;
  bool replace = false;  // existing parts with other content
  bool dry_run = false;
};
struct SplitReport {
  struct Part {
    std::string name;
    int64_t bytes = 0;
    int64_t documents = 0;
  };
  std::vector<Part> parts;  // and behind them "validation.txt", if asked for
  int64_t bytes = 0;
  int64_t documents = 0;
  int64_t empty = 0;  // rows of tables without text, which were left out
};
// Cuts the inputs, their text laid end to end, into `parts` files of nearly equal bytes ("part-00003.txt", or ".jsonl")
// without breaking a document: a document belongs to the part its first byte falls into. The length of the text in
// packed files and tables is estimated from the front of up to 32 of them. Text is kept unchanged, unpacked; a table's
// rows become lines {"text": ...}, those without text only with `documents.keep_empty`. Each file appears whole; one
// that is there already with the same content is left. Errors: as prepare; already_exists (with other content, and not
// `replace`).
[[nodiscard]] Result<SplitReport> split(const SplitOptions& options, std::stop_token stop = {},
                                        Progress* progress = nullptr);

}  // namespace millrace::prepare
