// SPDX-License-Identifier: Apache-2.0
#pragma once

// Raw text -> token ids -> shards, one task of an array at a time (docs/design/prepare.md), and the balanced split of
// raw files before it. Tasks know nothing of each other; output bytes depend on inputs, tokenizer and options
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
// An array of fewer tasks than the folder `output` was begun with runs some of those again: ID is the number of one,
// counted from 0, or from 1 when only the task before is unfinished; so --array=2 and --array=2,5 work too.
// Errors: invalid_argument (variables that do not fit together; a list, or one number above 1, in a folder that does
// not say how many tasks there are), those of reading the folder.
[[nodiscard]] Result<std::optional<Task>> task_from_slurm(const std::string& output);

// What a shard is.
enum class OutputFormat {
  kWebDataset,  // "00003.tar": a sample a document
  kMegatron,    // "00003.bin" and "00003.idx": ids as Megatron-LM reads them (docs/format/megatron.md)
  kTokens,      // "00003.bin": ids behind a head as llm.c reads them (docs/format/token_file.md)
};
[[nodiscard]] Result<OutputFormat> parse_output_format(std::string_view name);  // "webdataset", "megatron", "tokens"
std::string_view output_format_name(OutputFormat format);

struct PrepareOptions {
  // URLs; globs (*, ?, [], ** for any folders) and braces are expanded, folders stand for all files below them, "-" for
  // standard input, "@list.txt" for the lines of that file; sorted by name. Text, jsonl or Parquet, plain, gzip or
  // zstd, as each file's first bytes say.
  std::vector<std::string> inputs;
  std::string tokenizer;  // URL of a tokenizer.json
  std::string output;     // URL of a folder
  Task task;

  OutputFormat format = OutputFormat::kWebDataset;
  // Of kWebDataset without blocks: "npy": token_ids.npy (uint32), "json": token_ids.json, "raw": token_ids.u16 or .u32,
  // little-endian. Empty: "npy", or what the format has.
  std::string ids_format;
  bool text = true;  // write text.txt too; not where many documents share a member
  // Of kWebDataset: the ids of so many documents in one member, for shards hardly larger than their ids; 0: one each.
  int64_t block_documents = 0;
  int64_t shard_bytes = 0;  // start a new shard when its samples reach this; 0: one shard a task

  formats::DocumentMode documents = formats::DocumentMode::kLine;
  std::string text_field = "text";  // for jsonl, also inside objects ("meta.body"); the column of a table
  bool json_as_text = false;        // JSON read as lines or paragraphs is meant, not an error
  double max_invalid_utf8 = 0.001;  // a file with more ill-formed sequences a byte than this is an error; 1: none is
  // Each jsonl line is a conversation ("messages"; tokenizer/chat.h), written through this template ("chatml",
  // "llama-3", "llama-2") with "loss_mask.npy", which says what of it is learned. Another text_field than "text" names
  // the list.
  std::string chat;
  bool refuse_control_text = false;  // of chat: tokenizer::ChatOptions
  bool add_special_tokens = true;    // what the tokenizer's post-processor adds
  std::string bos, eos;              // tokens put before and behind every document beside that; empty: none

  formats::DocumentRules rules;
  int64_t max_errors = 1000;  // of a task, with rules.skip_errors; more fail it all the same
  int64_t dedup_memory_bytes = 1 << 30;

  int threads = 0;       // 0: available_cpus()
  bool replace = false;  // what the task wrote before from other inputs, and finished
  bool dry_run = false;  // answer what would be done; write nothing
};

// What a task will come to, told from the front of some of its inputs. Duplicates, which no sample shows, are counted.
struct Estimate {
  int64_t sampled_bytes = 0;  // of the inputs as they are stored; when it is all, documents and tokens are exact
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t output_bytes = 0;  // of the shards and the files beside them
  std::string advice;        // when the shards will be much larger than the text: which flags avoid that
};

struct PrepareReport {
  formats::PartRecord part;
  int64_t shards_reused = 0;         // found finished, checked and kept
  int64_t output_bytes = 0;          // of all shards of the task
  std::optional<Estimate> estimate;  // of a dry run
  double seconds = 0;
  double cpu_seconds = 0;  // of this process
  // What each stage of this run was at work, in seconds; the longest is what limits the run. Encoding is the time of
  // all its threads together, divided by their number.
  double read_seconds = 0, encode_seconds = 0, write_seconds = 0;
  std::string_view limiting_stage() const;  // "read", "encode", "write"; empty when nothing was done
};

// Runs one task: reads the task's inputs (input i belongs to task i mod count, i in sorted order), writes shards, their
// indexes and the part record. A shard is visible only whole. Run again, it checks the shards that are there by hash,
// keeps them and goes on behind them; with nothing left to do it changes nothing. Inputs are the same when their names
// (below the folder they share), sizes and times, or versions in a bucket, are. Errors: not_found (an input, the
// tokenizer, a bos or eos it does not have), invalid_argument (a bad document: file, line, byte offset; a file that is
// no text; inputs without a byte; an output folder that other options wrote: each difference), already_exists (the task
// was finished from other inputs, and not `replace`), resource_exhausted (a document over the limit; more errors than
// max_errors; no space; dedup's memory), unsupported (tokenizer; Parquet without its library), cancelled.
[[nodiscard]] Result<PrepareReport> prepare(const PrepareOptions& options, std::stop_token stop = {},
                                            Progress* progress = nullptr, Metrics* metrics = nullptr);

// Joins the part records of `output` into manifest.json (again and again gives the same bytes).
// Errors: not_found naming the missing parts, invalid_argument (no document in any of them), those of join_parts.
[[nodiscard]] Result<formats::Manifest> finish(const std::string& output);

struct SplitOptions {
  std::vector<std::string> inputs;  // as in PrepareOptions
  std::string output;               // URL of a folder
  int64_t parts = 1;
  formats::DocumentMode documents = formats::DocumentMode::kLine;
  std::string text_field = "text";  // the column of a table
  // This share of the documents, 0 to less than 1, goes to a file of its own instead; which, their text and `seed` say,
  // so equal texts stay together.
  double validation = 0;
  uint64_t seed = 0;
  int64_t max_document_bytes = 64 << 20;
  bool json_as_text = false;  // these two as in PrepareOptions
  double max_invalid_utf8 = 0.001;
  bool replace = false;  // parts that are there with other content
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
};
// Cuts the inputs, their text laid end to end, into `parts` files of nearly equal bytes ("part-00003.txt", or ".jsonl")
// without breaking a document: a document belongs to the part its first byte falls into. How long the text of packed
// files and tables is, the front of up to 32 of them tells. Text is kept
// unchanged, unpacked; a table's rows become lines {"text": ...}. Each file appears whole; one that is there already
// with the same content is left. Errors: as prepare; already_exists (with other content, and not `replace`).
[[nodiscard]] Result<SplitReport> split(const SplitOptions& options, std::stop_token stop = {},
                                        Progress* progress = nullptr);

// Inputs as prepare and split understand them, expanded, sorted by name, without duplicates.
// Errors: not_found (a pattern that matches nothing, a missing file), invalid_argument.
[[nodiscard]] Result<std::vector<std::string>> expand_inputs(const std::vector<std::string>& inputs);

}  // namespace millrace::prepare
