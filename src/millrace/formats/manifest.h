// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a folder of shards consists of: the configuration every task agreed on, one part record a task, and the manifest
// that joins them (docs/format/manifest.md). JSON with sorted keys, so equal content is equal bytes. Values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash.h"
#include "millrace/base/status.h"

namespace millrace::formats {

// Which documents are taken. A max of 0 is none.
struct DocumentRules {
  bool skip_errors = false;                // one with an error is left out, instead of ending the task
  bool strict_utf8 = false;                // ill-formed UTF-8 is an error, instead of being replaced by U+FFFD
  int64_t max_document_bytes = 64 << 20;   // a longer one is an error
  bool dedup = false;                      // texts that came before in the task are left out
  int64_t min_bytes = 0, max_bytes = 0;    // so are those with fewer or more bytes of text
  int64_t min_tokens = 0, max_tokens = 0;  // or ids, all that are written
  bool strip = false;                      // white space at both ends of a text goes, as Python's str.strip() has it
  bool operator==(const DocumentRules&) const = default;
};

// What must be equal for all tasks that write into one folder.
struct ShardConfig {
  int64_t tasks = 1;
  std::string format;  // "webdataset", "megatron", "tokens"
  Hash128 tokenizer_hash;
  int64_t id_limit = 0;         // 1 + the tokenizer's largest id; 0 when not known
  std::string ids_field;        // "token_ids.npy"; of shards that hold nothing but ids "u16" or "u32"
  int64_t block_documents = 0;  // so many documents share a member; 0: each has its own
  bool text = true;             // text.txt is written
  int64_t shard_bytes = 0;      // 0: one shard a task

  // What a document is, and what becomes ids.
  std::string documents;   // document_mode_name
  std::string text_field;  // for jsonl and tables
  std::string chat;        // name of the chat template, else empty
  bool refuse_control_text = false;
  bool add_special_tokens = true;
  std::string bos, eos;  // tokens put around every document beside those; empty: none

  DocumentRules rules;
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

// What happened to documents beside being written. Counts.
struct DocumentCounts {
  int64_t invalid_utf8 = 0;  // ill-formed sequences replaced
  int64_t rejected = 0;      // documents that could not be taken; each is in a ledger
  int64_t duplicates = 0;    // left out by dedup
  int64_t filtered = 0;      // left out by their length
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
