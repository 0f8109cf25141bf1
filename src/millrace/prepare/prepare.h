// SPDX-License-Identifier: Apache-2.0
#pragma once

// Raw text -> token ids -> WebDataset shards, one task of an array at a time (docs/design/prepare.md), and the balanced
// split of raw files before it. Tasks know nothing of each other; output bytes depend on inputs, tokenizer and options
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

namespace millrace::prepare {

// The task to run and how many there are; 0-based.
struct Task {
  int64_t index = 0;
  int64_t count = 1;
  bool operator==(const Task&) const = default;
};
// "3/10" -> {3, 10}. Errors: invalid_argument.
[[nodiscard]] Result<Task> parse_task(std::string_view text);
// From SLURM_ARRAY_TASK_ID: index = (ID - SLURM_ARRAY_TASK_MIN) / STEP and count = (MAX - MIN) / STEP + 1, where STEP
// is SLURM_ARRAY_TASK_STEP or 1; so --array=0-9, 1-10 and 0-18:2 are all ten tasks. Nothing when there is no array.
// Errors: invalid_argument (variables that do not fit together, or a list such as --array=1,5,9 that the rule cannot
// number: SLURM_ARRAY_TASK_COUNT differs).
[[nodiscard]] Result<std::optional<Task>> task_from_slurm();

struct PrepareOptions {
  std::vector<std::string>
      inputs;  // URLs; globs (*, ?, []) and braces are expanded, folders stand for the files in them; sorted by name
  std::string tokenizer;  // URL of a tokenizer.json
  std::string output;     // URL of a folder
  Task task;
  std::string ids_format = "npy";  // "npy": token_ids.npy (uint32), "json": token_ids.json
  bool text = true;                // write text.txt too
  formats::DocumentMode documents = formats::DocumentMode::kLine;
  std::string text_field = "text";  // for jsonl
  bool add_special_tokens = true;
  int64_t shard_bytes = 0;  // start a new shard when one reaches this; 0: one shard a task
  int64_t max_document_bytes = 64 << 20;
  bool strict_utf8 = false;  // refuse ill-formed UTF-8 instead of replacing it by U+FFFD
  int threads = 0;           // 0: available_cpus()
  bool dry_run = false;      // answer what would be done; write nothing
};

struct PrepareReport {
  formats::PartRecord part;
  int64_t shards_reused = 0;  // found finished, checked and kept
  int64_t output_bytes = 0;   // of all shards of the task
  double seconds = 0;
  double cpu_seconds = 0;  // of this process
};

// Runs one task: reads the task's inputs (input i belongs to task i mod count, i in sorted order), writes shards, their
// indexes and the part record. A shard is visible only whole. Run again, it checks the shards that are there by hash,
// keeps them and goes on behind them; with nothing left to do it changes nothing. Errors: not_found (an input, the
// tokenizer), invalid_argument (bad UTF-8 with strict_utf8: file, line, byte offset; an output folder that other
// options wrote: each difference), resource_exhausted (a document over the limit; no space), unsupported (tokenizer),
// cancelled.
[[nodiscard]] Result<PrepareReport> prepare(const PrepareOptions& options, std::stop_token stop = {},
                                            Progress* progress = nullptr, Metrics* metrics = nullptr);

// Joins the part records of `output` into manifest.json (again and again gives the same bytes).
// Errors: not_found naming the missing parts, those of join_parts.
[[nodiscard]] Result<formats::Manifest> finish(const std::string& output);

struct SplitOptions {
  std::vector<std::string> inputs;  // as in PrepareOptions
  std::string output;               // URL of a folder
  int64_t parts = 1;
  formats::DocumentMode documents = formats::DocumentMode::kLine;
  int64_t max_document_bytes = 64 << 20;
  bool dry_run = false;
};
struct SplitReport {
  struct Part {
    std::string name;
    int64_t bytes = 0;
    int64_t documents = 0;
  };
  std::vector<Part> parts;
  int64_t bytes = 0;
  int64_t documents = 0;
};
// Cuts the inputs, laid end to end, into `parts` files of nearly equal bytes ("part-00003.txt", or ".jsonl") without
// breaking a document: a document belongs to the part its first byte falls into. Kept text is unchanged; part files are
// replaced atomically, existing ones with other content only when `parts` names of this run. Errors: as prepare.
[[nodiscard]] Result<SplitReport> split(const SplitOptions& options, std::stop_token stop = {},
                                        Progress* progress = nullptr);

// Inputs as prepare and split understand them, expanded, sorted by name, without duplicates.
// Errors: not_found (a pattern that matches nothing, a missing file), invalid_argument.
[[nodiscard]] Result<std::vector<std::string>> expand_inputs(const std::vector<std::string>& inputs);

}  // namespace millrace::prepare
