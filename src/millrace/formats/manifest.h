// SPDX-License-Identifier: Apache-2.0
#pragma once

// The records of a folder of shards: the configuration that all tasks share, one part record per task, and the
// manifest that joins the part records (docs/format/manifest.md). They are JSON with sorted keys, so equal content
// gives equal bytes. Values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/formats/documents.h"

namespace millrace::formats {

// Rules that select the documents to write. A max of 0 means no limit.
struct DocumentRules {
  bool skip_errors = false;                // leave out a document with an error; false: end the task
  bool strict_utf8 = false;                // ill-formed UTF-8 is an error; false: becomes U+FFFD
  int64_t max_document_bytes = 64 << 20;   // a longer document is an error
  bool dedup = false;                      // leave out texts that occurred earlier in the task
  int64_t min_bytes = 0, max_bytes = 0;    // leave out documents with fewer or more bytes of text
  int64_t min_tokens = 0, max_tokens = 0;  // or with fewer or more ids, counting all written ids
  bool strip = false;                      // remove white space at both ends of a text, as Python's str.strip()
  bool keep_empty = false;                 // empty texts and texts of white space are documents
  bool operator==(const DocumentRules&) const = default;
};

// The file format of shards.
enum class OutputFormat {
  kWebDataset,  // "00003.tar": one sample per document
  kMegatron,    // "00003.bin" and "00003.idx": ids as Megatron-LM reads them (docs/format/megatron.md)
  kTokens,      // "00003.bin": a head and ids, as llm.c reads them (docs/format/token_file.md)
};
[[nodiscard]] Result<OutputFormat> parse_output_format(std::string_view name);  // "webdataset", "megatron", "tokens"
std::string_view output_format_name(OutputFormat format);

// The options of `prepare` that decide the bytes of its shards. This is their only definition: users set them in
// PrepareOptions, encoders read them, and the records of a folder store them.
struct ShardOptions {
  OutputFormat format = OutputFormat::kWebDataset;
  // For kWebDataset: the ids of this many documents share one member, so shards are hardly larger than their ids. 0:
  // one member per document.
  int64_t block_documents = 0;
  bool text = true;         // write text.txt; ignored when samples are only ids
  int64_t shard_bytes = 0;  // start a new shard when its samples reach this size; 0: one shard per task

  DocumentMode documents = DocumentMode::kLine;
  std::string text_field = "text";  // field of jsonl, also nested ("meta.body"); column of a table
  // If set, each line of jsonl is a conversation ("messages"; chat/chat.h). It is written with this template
  // ("chatml", "llama-3", "llama-2") and with "loss_mask.npy", which marks the tokens to learn. A text_field other
  // than "text" names the list of messages. Empty: documents are text.
  std::string chat;
  bool refuse_control_text = false;  // chat::ChatOptions::refuse_control_text
  bool last_turn_only = false;       // chat::ChatOptions::last_turn_only
  bool add_special_tokens = true;    // add the tokens of the tokenizer's post-processor
  std::string bos, eos;              // more tokens before and after every document; empty: none

  DocumentRules rules;
  bool operator==(const ShardOptions&) const = default;
};

// Settings that must be equal for all tasks that write into one folder.
struct ShardConfig {
  int64_t tasks = 1;
  Hash128 tokenizer_hash;
  int64_t id_limit = 0;   // 1 + the tokenizer's largest id; 0: unknown
  std::string ids_field;  // "token_ids.npy"; "u16" or "u32" in shards of only ids
  ShardOptions options;
  bool operator==(const ShardConfig&) const = default;
};
std::string serialize_shard_config(const ShardConfig& config);
[[nodiscard]] Result<ShardConfig> parse_shard_config(std::string_view json, std::string_view source);
// Returns one line for each field that differs: "tasks: 4 there, 8 here". Empty when equal.
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
  std::string name;  // as the user gave it
  int64_t size = 0;
  std::string version;  // version that Storage reported
  bool operator==(const InputEntry&) const = default;
};

// Counts of documents that were changed or left out.
struct DocumentCounts {
  int64_t invalid_utf8 = 0;  // ill-formed sequences replaced
  int64_t rejected = 0;      // documents with an error, left out; each is in a ledger
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

// Joins the part records of all tasks. Errors: not_found naming every missing part; invalid_argument when
// configurations differ or a task appears twice.
[[nodiscard]] Result<Manifest> join_parts(std::span<const PartRecord> parts);

}  // namespace millrace::formats
