// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns raw text into token ids and shards, one task of an array at a time (docs/design/prepare.md), and splits raw
// files evenly before that. Tasks do not know of each other. Output bytes depend only on inputs, tokenizer and
// options, never on threads or on how often a task was killed. Functions block; they are thread-safe on different
// outputs.

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

// The task to run, counted from 0, and the number of tasks.
struct Task {
  int64_t index = 0;
  int64_t count = 1;
  bool operator==(const Task&) const = default;
};
// Parses "3/10" as {3, 10}. Errors: invalid_argument.
[[nodiscard]] Result<Task> parse_task(std::string_view text);
// Finds the task from SLURM_ARRAY_TASK_ID; nullopt if there is no array. index = (ID - SLURM_ARRAY_TASK_MIN) / STEP
// and count = (MAX - MIN) / STEP + 1, where STEP is SLURM_ARRAY_TASK_STEP or 1. So --array=0-9, 1-10 and 0-18:2 all
// mean ten tasks.
// An array with fewer tasks than the folder `output` was begun with runs some of them again. Then ID is the number of
// a task, counted from 0, or from 1 if only the task before it is unfinished. So --array=2 and --array=2,5 work too.
// Errors: invalid_argument (variables that do not fit together; a list, or a single number above 1, in a folder that
// does not say how many tasks there are), those of reading the folder.
[[nodiscard]] Result<std::optional<Task>> task_from_slurm(const std::string& output);

using formats::output_format_name;
using formats::OutputFormat;
using formats::parse_output_format;

struct PrepareOptions {
  // URLs of inputs. Globs (*, ?, [], ** for any folders) and braces are expanded. A folder means all files below it,
  // "-" means standard input, and "@list.txt" means the lines of that file. Inputs are sorted by name. A file may be
  // text, jsonl or Parquet, plain or compressed by gzip or zstd; its first bytes tell which.
  std::vector<std::string> inputs;
  std::string tokenizer;  // URL of a tokenizer.json
  std::string output;     // URL of a folder
  Task task;

  formats::ShardOptions shards;  // options that decide the bytes of the shards
  // The form of ids, for kWebDataset without blocks. "npy": token_ids.npy (uint32), "json": token_ids.json, "raw":
  // token_ids.u16 or .u32, little-endian. Empty: "npy", or the only form of the format.
  std::string ids_format;

  formats::TextRules text_rules;  // rules that refuse inputs that are not text
  int64_t max_errors = 1000;      // per task, with rules.skip_errors; more errors fail the task
  int64_t dedup_memory_bytes = 1 << 30;

  int threads = 0;       // 0: available_cpus()
  bool replace = false;  // replace the task's finished output if it came from other inputs
  bool dry_run = false;  // report what would be done, without writing
};

// An estimate of a task's output, from the front of some of its inputs. Includes duplicates, which a sample cannot
// show.
struct Estimate {
  int64_t sampled_bytes = 0;  // of the stored inputs; if it is all of them, documents and tokens are exact
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t output_bytes = 0;  // of the shards and the files beside them
  std::string advice;        // flags that help, if the shards will be much larger than the text
};

struct PrepareReport {
  formats::PartRecord part;
  int64_t shards_reused = 0;         // found finished, checked and kept
  int64_t output_bytes = 0;          // of all shards of the task
  std::optional<Estimate> estimate;  // of a dry run
  double seconds = 0;
  double cpu_seconds = 0;  // processor time of this process
  // Seconds that each stage of this run was at work; the longest limits the run. Encoding is the sum over its threads,
  // divided by their number.
  double read_seconds = 0, encode_seconds = 0, write_seconds = 0;
  std::string_view limiting_stage() const;  // "read", "encode", "write"; empty if there was no work
};

// Runs one task: reads the task's inputs (input i belongs to task i mod count, i in sorted order), writes shards,
// their indexes and the part record. A shard becomes visible only when it is complete. A repeated run checks existing
// shards by hash, keeps them and continues after them. A finished task stays as it is. Inputs are the same if their
// names (below the folder they share), sizes and times (or versions in a bucket) are the same.
// Errors: not_found (an input, the tokenizer, a bos or eos that it does not have), invalid_argument (a bad document:
// file, line, byte offset; a file that is not text; inputs without a byte; an output folder that other options wrote:
// each difference), already_exists (the task was finished from other inputs, and not `replace`), resource_exhausted (a
// document over the limit; more errors than max_errors; no space; dedup's memory; less memory left than two chunks
// need), unsupported (tokenizer; Parquet without its library), cancelled.
[[nodiscard]] Result<PrepareReport> prepare(const PrepareOptions& options, std::stop_token stop = {},
                                            Progress* progress = nullptr, Metrics* metrics = nullptr);

// Joins the part records of `output` into manifest.json. Repeated calls give the same bytes. Errors: not_found naming
// the missing parts, invalid_argument (no document in any part), those of join_parts.
[[nodiscard]] Result<formats::Manifest> finish(const std::string& output);

struct SplitOptions {
  std::vector<std::string> inputs;  // as in PrepareOptions
  std::string output;               // URL of a folder
  int64_t parts = 1;
  formats::DocumentOptions documents;
  formats::TextRules text_rules;  // as in PrepareOptions
  // The share of the documents, 0 to less than 1, that goes to a separate file. The hash of a document's text and
  // `seed` decides, so equal texts stay together.
  double validation = 0;
  uint64_t seed = 0;
  bool replace = false;  // replace existing parts that have other content
  bool dry_run = false;
};
struct SplitReport {
  struct Part {
    std::string name;
    int64_t bytes = 0;
    int64_t documents = 0;
  };
  std::vector<Part> parts;  // followed by "validation.txt", if it was requested
  int64_t bytes = 0;
  int64_t documents = 0;
  int64_t empty = 0;  // rows of tables without text, which are left out
};
// Cuts the inputs, with their texts laid end to end, into `parts` files of nearly equal bytes ("part-00003.txt", or
// ".jsonl"). Never breaks a document: it belongs to the part that its first byte falls into. The length of the text in
// packed files and tables is estimated from the front of up to 32 of them. Text is kept unchanged, unpacked. Rows of a
// table become lines {"text": ...}; rows without text only do with `documents.keep_empty`. Each file appears complete;
// an existing file with the same content is left alone. Errors: as for prepare(); already_exists (with other content,
// and not `replace`).
[[nodiscard]] Result<SplitReport> split(const SplitOptions& options, std::stop_token stop = {},
                                        Progress* progress = nullptr);

}  // namespace millrace::prepare
