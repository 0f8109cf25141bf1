// SPDX-License-Identifier: Apache-2.0
#pragma once

// The records of a folder of shards: the configuration that all tasks share, one part record per task, and the manifest
// that joins them (docs/format/manifest.md). JSON with sorted keys, so that equal content gives equal bytes. Values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/formats/documents.h"

namespace millrace::formats {

// Which documents are taken. A max of 0 means no limit.
struct DocumentRules {
  bool skip_errors = false;                // leave out a document with an error, instead of ending the task
  bool strict_utf8 = false;                // ill-formed UTF-8 is an error, instead of being replaced by U+FFFD
  int64_t max_document_bytes = 64 << 20;   // a longer document is an error
  bool dedup = false;                      // leave out texts that came before in the task
  int64_t min_bytes = 0, max_bytes = 0;    // leave out documents with fewer or more bytes of text
  int64_t min_tokens = 0, max_tokens = 0;  // or with fewer or more ids, counting all that are written
  bool strip = false;                      // remove white space at both ends of a text, as Python's str.strip()
  bool keep_empty = false;                 // a text that is empty or only white space is a document, too
  bool operator==(const DocumentRules&) const = default;
};

// The file format of shards.
enum class OutputFormat {
  kWebDataset,  // "00003.tar": one sample per document
  kMegatron,    // "00003.bin" and "00003.idx": ids as Megatron-LM reads them (docs/format/megatron.md)
  kTokens,      // "00003.bin": ids behind a head as llm.c reads them (docs/format/token_file.md)
};
[[nodiscard]] Result<OutputFormat> parse_output_format(std::string_view name);  // "webdataset", "megatron", "tokens"
std::string_view output_format_name(OutputFormat format);

// The options of `prepare` that decide the bytes of its shards. They stand here only: users set them in PrepareOptions,
// encoders read them, and the records of a folder store them.
struct ShardOptions {
  OutputFormat format = OutputFormat::kWebDataset;
  // For kWebDataset: the ids of this many documents share one member, so shards are hardly larger than their ids. 0:
  // one member a document.
  int64_t block_documents = 0;
  bool text = true;         // write text.txt; ignored where samples are ids alone
  int64_t shard_bytes = 0;  // start a new shard when its samples reach this size; 0: one shard per task

  DocumentMode documents = DocumentMode::kLine;
  std::string text_field = "text";  // of jsonl, also inside objects ("meta.body"); the column of a table
  // Each line of jsonl is a conversation ("messages"; chat/chat.h), written through this template ("chatml",
  // "llama-3", "llama-2") with "loss_mask.npy", which marks what is learned. A text_field other than "text" names the
  // list. Empty: documents are text.
  std::string chat;
  bool refuse_control_text = false;  // of chat: chat::ChatOptions
  bool last_turn_only = false;       // of chat
  bool add_special_tokens = true;    // those that the tokenizer's post-processor adds
  std::string bos, eos;              // more tokens to put before and behind every document; empty: none

  DocumentRules rules;
  bool operator==(const ShardOptions&) const = default;
};

// Settings that must be equal for all tasks that write into one folder.
struct ShardConfig {
  int64_t tasks = 1;
  Hash128 tokenizer_hash;
  int64_t id_limit = 0;   // 1 + the tokenizer's largest id; 0 when not known
  std::string ids_field;  // "token_ids.npy"; "u16" or "u32" in shards of ids alone
  ShardOptions options;
  bool operator==(const ShardConfig&) const = default;
};
std::string serialize_shard_config(const ShardConfig& config);
[[nodiscard]] Result<ShardConfig> parse_shard_config(std::string_view json, std::string_view source);
// One line for each field that differs: "tasks: 4 there, 8 here". Empty when equal.
std::string explain_difference(const ShardConfig& there, const ShardConfig& here);

struct ShardEntry {
  std::string name;  // file name within the folder
  int64_t size = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  Hash128 hash;        // ShardIndex::shard_hash
  Hash128 index_hash;  // XXH3-128 of the index file
  bool operator==(const ShardEntry&) const = default;
};

struct InputEntry {
  std::string name;  // as given
  int64_t size = 0;
  std::string version;  // as Storage gave it
  bool operator==(const InputEntry&) const = default;
};

// Counts of documents that were not written as they are.
struct DocumentCounts {
  int64_t invalid_utf8 = 0;  // ill-formed sequences replaced
  int64_t rejected = 0;      // documents that could not be taken; each is in a ledger
  int64_t duplicates = 0;    // left out by dedup
  int64_t filtered = 0;      // left out by their length
  int64_t empty = 0;         // left out since their text is empty or only white space
  bool operator==(const DocumentCounts&) const = default;
  DocumentCounts& operator+=(const DocumentCounts& more);
};

struct PartRecord {
  int64_t task = 0;
  ShardConfig config;
  std::vector<InputEntry> inputs;
  std::vector<ShardEntry> shards;
  int64_t input_bytes = 0;
  int64_t documents = 0;  // written
  int64_t tokens = 0;
  DocumentCounts counts;
  bool operator==(const PartRecord&) const = default;
};
std::string part_name(int64_t task, int64_t tasks);  // "part-00003-of-00010.json"
std::string serialize_part(const PartRecord& part);
[[nodiscard]] Result<PartRecord> parse_part(std::string_view json, std::string_view source);

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kConfigName = "prepare.json";

struct Manifest {
  ShardConfig config;
  std::vector<ShardEntry> shards;  // by task, then in the order written: the canonical order of samples
  int64_t input_bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  DocumentCounts counts;
  bool operator==(const Manifest&) const = default;
};
std::string serialize_manifest(const Manifest& manifest);
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view json, std::string_view source);

// Errors: not_found naming every missing part; invalid_argument when configurations differ or a task appears twice.
[[nodiscard]] Result<Manifest> join_parts(std::span<const PartRecord> parts);

}  // namespace millrace::formats
