// SPDX-License-Identifier: Apache-2.0
#pragma once

// One shard of a task: written, or found finished by an earlier run. Its index is written after it and says where in
// the inputs it begins and ends, so the chain of shards is the task's journal. A ShardWriter belongs to one thread.

#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/metrics.h"
#include "millrace/formats/manifest.h"
#include "millrace/formats/shard_index.h"
#include "millrace/prepare/detail/samples.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {

inline constexpr std::string_view kIndexSuffix = ".index";

// What a shard's index keeps for `prepare` itself (ShardIndex::producer, a JSON object).
struct ShardOrigin {
  std::string run;  // hash of everything that decides the task's bytes
  Position begin, end;
  int64_t invalid_utf8 = 0;
  bool operator==(const ShardOrigin&) const = default;
};
std::string serialize_origin(const ShardOrigin& origin);
std::optional<ShardOrigin> parse_origin(std::string_view json);  // nothing when it is not one

struct FinishedShard {
  formats::ShardEntry entry;
  ShardOrigin origin;
};
// The shard `name` when it and its index are there, undamaged, and hold what `run` puts behind `begin`; nothing, with a
// line in the log, when not. Reads the whole shard. Errors: cancelled, and whatever leaves open what is there.
[[nodiscard]] Result<std::optional<FinishedShard>> find_finished_shard(const Location& folder, const std::string& name,
                                                                       const std::string& run, const Position& begin,
                                                                       std::stop_token stop);

class ShardWriter {
 public:
  // `metrics` must outlive the writer.
  [[nodiscard]] static Result<std::unique_ptr<ShardWriter>> open(const Location& folder, std::string name,
                                                                 Metrics& metrics);

  // `tar` holds exactly the members of `samples`.
  [[nodiscard]] Status append(std::string_view tar, std::span<const Sample> samples);
  int64_t size() const { return size_; }

  // Ends the archive and makes it and then its index visible and durable. `origin.invalid_utf8` is filled in.
  [[nodiscard]] Result<FinishedShard> finish(ShardOrigin origin, Hash128 tokenizer_hash, const std::string& ids_field);

 private:
  ShardWriter(Location folder, std::string name, std::unique_ptr<Writer> writer, Metrics& metrics);
  [[nodiscard]] Status write(std::string_view bytes);

  const Location folder_;
  const std::string name_;
  std::unique_ptr<Writer> writer_;
  Metrics& metrics_;
  int64_t size_ = 0;
  int64_t invalid_utf8_ = 0;
  Xxh3Stream hash_;
  formats::ShardIndex index_;
};

}  // namespace millrace::prepare
