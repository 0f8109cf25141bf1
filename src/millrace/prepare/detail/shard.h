// SPDX-License-Identifier: Apache-2.0
#pragma once

// One shard of a task: written now, or found finished by an earlier run. Memory use does not depend on its size. Its
// index is written after it and says where in the inputs the shard begins and ends, so the chain of shards is the
// task's journal. A ShardWriter belongs to one thread.

#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/metrics.h"
#include "millrace/formats/manifest.h"
#include "millrace/formats/shard_index.h"
#include "millrace/prepare/detail/layout.h"
#include "millrace/prepare/detail/row_spool.h"
#include "millrace/prepare/detail/samples.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {

inline constexpr std::string_view kIndexSuffix = ".index";
// The ledger beside a shard from which documents were rejected. Each document has a line of JSON: {"input", "offset",
// "line", "reason"}.
inline constexpr std::string_view kLedgerSuffix = ".rejected.jsonl";

// The part of a shard's index that only `prepare` reads (ShardIndex::producer, a JSON object).
struct ShardOrigin {
  std::string run;  // hash of everything that decides the task's bytes
  Position begin, end;
  formats::DocumentCounts counts;
  Hash128 ledger_hash;  // XXH3-128 of the ledger; zeros: no ledger
  bool operator==(const ShardOrigin&) const = default;
};
std::string serialize_origin(const ShardOrigin& origin);
std::optional<ShardOrigin> parse_origin(std::string_view json);  // nullopt if it is not an origin

struct FinishedShard {
  formats::ShardEntry entry;
  ShardOrigin origin;
};
// Finds the finished shard `name`. Reads the whole shard. Returns nullopt, and logs the reason, unless the shard and
// the files that belong to it are there, undamaged, and hold the output of `run` from `begin` on. Errors: cancelled,
// and those that do not tell whether the shard is there.
[[nodiscard]] Result<std::optional<FinishedShard>> find_finished_shard(const Location& folder, const std::string& name,
                                                                       const SampleFormat& format,
                                                                       const std::string& run, const Position& begin,
                                                                       std::stop_token stop);

class ShardWriter {
 public:
  // `metrics` must outlive the writer.
  [[nodiscard]] static Result<std::unique_ptr<ShardWriter>> open(const Location& folder, std::string name,
                                                                 const SampleFormat& format, Metrics& metrics);

  // Appends samples. `bytes` holds exactly the encoder's output for `samples`.
  [[nodiscard]] Status append(std::string_view bytes, std::span<const Sample> samples);
  // Counts a document that became no sample, and writes it to the ledger if it was rejected. Errors: those of writing
  // the ledger.
  [[nodiscard]] Status drop(const Dropped& dropped, std::string_view source);
  void add_duplicate() { ++counts_.duplicates; }
  void add_empty(int64_t count) { counts_.empty += count; }

  // Returns the bytes of the samples themselves, which decide when a shard is full.
  int64_t sample_bytes() const { return sample_bytes_; }

  // Ends the shard's file, then makes it, its side files and finally its index visible and durable. Fills in the
  // counts and the ledger's hash of `origin`.
  [[nodiscard]] Result<FinishedShard> finish(ShardOrigin origin, Hash128 tokenizer_hash, const std::string& ids_field);

 private:
  ShardWriter(Location folder, std::string name, const SampleFormat& format, std::unique_ptr<Writer> writer,
              Metrics& metrics);
  [[nodiscard]] Status write(std::string_view bytes);
  [[nodiscard]] Status end_file();
  [[nodiscard]] Status write_side_file();
  [[nodiscard]] Result<Hash128> write_index();

  const Location folder_;
  const std::string name_;
  const bool raw_ids_, megatron_;
  const size_t id_width_;
  const std::unique_ptr<ShardLayout> layout_;
  std::unique_ptr<Writer> writer_;
  Metrics& metrics_;
  int64_t size_ = 0;
  int64_t sample_bytes_ = 0;
  formats::DocumentCounts counts_;
  std::unique_ptr<Writer> ledger_;  // opened at the first rejection
  Xxh3Stream ledger_hash_;
  Xxh3Stream hash_;
  std::string before_samples_;  // head of a file of raw ids: hashed last
  formats::ShardFacts facts_;
  RowSpool rows_;
};

}  // namespace millrace::prepare
