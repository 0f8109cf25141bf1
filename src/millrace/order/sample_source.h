// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loader's interface to a dataset: shards of samples that can be counted, planned by windows and read by runs.
// Token ids and their lengths are optional parts. loader/ implements it for shard folders; robot datasets implement it
// in their own room. Thread-safe; many threads may read runs of one source in parallel.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/order/order.h"

namespace millrace::order {

// One named part of a sample, as raw bytes ("token_ids.npy", "text.txt").
struct Field {
  std::string_view name;
  std::span<const std::byte> data;
  bool is_typed = false;  // the bytes state their own form (loader/typed_value.h)
};
// Valid during the visit only.
struct Sample {
  std::string_view key;
  std::span<const Field> fields;
};

// Consecutive samples of one window that are read together. Call start(), and once `done` was called without an error,
// visit(). For one thread at a time; the source must outlive the run.
class SampleRun {
 public:
  struct ReadOptions {
    std::stop_token stop;
    Clock::time_point deadline = Clock::time_point::max();
    int priority = 0;  // higher is read earlier
  };
  using Done = std::function<void(Status)>;
  // `sample`: the sample, or the error of this sample alone.
  using Visit = std::function<Status(int64_t index, const Result<Sample>& sample)>;

  virtual ~SampleRun() = default;

  // Returns the shard's name, for messages.
  virtual std::string_view name() const = 0;
  // Describes the read (the shard and the range of it), for messages about a read that takes long.
  virtual std::string request() const { return std::string(name()); }
  virtual int64_t samples() const = 0;
  // Returns the bytes of memory that start() fills. 0: the source needs none.
  virtual int64_t bytes() const = 0;
  // Returns whether start() returns before the bytes are there. False: visit() reads them on the calling thread, so
  // starting more runs than there are threads gains nothing.
  virtual bool reads_ahead() const = 0;

  // Starts reading the samples into `memory`. `done` is called once, on any thread, perhaps before start() returns,
  // and must be brief. Errors: not_found, unavailable, timeout, cancelled. REQUIRES: `memory` has bytes() bytes.
  // Memory and run live until visit() has returned or `done` has got an error; the run also until start() has
  // returned.
  virtual void start(std::span<std::byte> memory, const ReadOptions& options, Done done) = 0;
  // Visits each sample, in order; `index` counts from 0. If a visit returns an error, the call ends with that error.
  // Bytes are verified when a hash is known. A sample that does not match is visited as corruption, naming shard,
  // sample and offset. Errors: those of start().
  [[nodiscard]] virtual Status visit(const Visit& visit) = 0;
};

// A loader of samples of any kind keeps each sample's key, and the name and data of each wanted field, in memory. In
// addition it needs at most kRecordBytes per sample and kRecordFieldBytes per field.
inline constexpr int64_t kRecordBytes = 16;
inline constexpr int64_t kRecordFieldBytes = 24;

// Some windows, ready to be read.
struct SamplePlan {
  // Sizes of all samples, window after window. A source fills one of these two.
  std::vector<uint32_t> tokens;                  // number of ids; for a source with lengths()
  std::vector<int64_t> bytes;                    // most bytes of the record, or of the ids as uint32
  std::vector<std::unique_ptr<SampleRun>> runs;  // contain each sample once, in the same order
};

// Tells how the samples of a source hold token ids.
struct TokenIds {
  std::string_view field;      // field of a sample that holds them
  std::string_view tokenizer;  // hash of the tokenizer that made them; empty: unknown
};

// The token counts of samples, which a packed order needs. Belongs to its source, and is as thread-safe.
class SampleLengths {
 public:
  virtual ~SampleLengths() = default;

  // Returns the tokens of all samples. Errors: unsupported (they were not counted), those of reading the index.
  [[nodiscard]] virtual Result<int64_t> total_tokens() = 0;

  // Writes the tokens of each window of `window_samples` samples into `tokens_of(shard)`, which has one element per
  // window; the last window of a shard may be shorter. Reads the lengths of all samples.
  // Errors: unsupported, cancelled, those of reading the index.
  using TokensOf = std::function<std::span<int64_t>(int64_t shard)>;
  [[nodiscard]] virtual Status window_tokens(int64_t window_samples, const TokensOf& tokens_of) = 0;

  // Calls visit(shard, lengths) with the tokens of all samples of each shard, perhaps for many shards in parallel.
  // Errors: as window_tokens().
  using VisitLengths = std::function<void(int64_t shard, std::span<const uint32_t> lengths)>;
  [[nodiscard]] virtual Status sample_tokens(const VisitLengths& visit) = 0;
};

// A dataset: identity, counts and reading. A source overrides those virtual methods with a default that apply to it.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // Returns the URL, for messages.
  virtual std::string_view name() const = 0;
  // Returns a text that is equal for equal samples in equal canonical order. It is part of the loader's state.
  virtual std::string_view identity() const = 0;
  // Returns nothing when the samples hold no token ids.
  virtual std::optional<TokenIds> token_ids() const { return std::nullopt; }
  // Returns null when the samples have no lengths in tokens.
  virtual SampleLengths* lengths() { return nullptr; }

  // Returns the number of samples of each shard, in canonical order.
  virtual std::span<const int64_t> shard_samples() const = 0;

  // Returns the URL of a shard, for messages and provenance.
  virtual std::string_view shard_name(int64_t shard) const = 0;

  // Returns the damaged shards that are in the order only in part; `source` is 0 in each. Valid once the source is
  // open.
  virtual std::vector<DamagedShard> damaged_shards() { return {}; }

  // Returns the approximate bytes of all samples in their shards; 0: unknown. The value decides the size of the
  // order's blocks, so it must be the same whenever identity() is the same.
  virtual int64_t total_bytes() { return 0; }

  // Returns how many samples are best read together, such as the row group of a table; 0: chosen from their bytes. It
  // must be as constant as total_bytes().
  virtual int64_t window_hint() const { return 0; }

  // Returns the most bytes of memory that the source holds for its lifetime: its list of shards and their indexes.
  // Valid once the source is open.
  virtual int64_t held_bytes() { return 0; }

  // Returns whether plan() reads the samples themselves, because their sizes are not known before. The runs then hold
  // the samples.
  virtual bool reads_to_plan() const { return false; }

  // Plans the reads of `windows`. May wait for storage (indexes, opening of files), but reads no sample unless
  // reads_to_plan(). The cost depends only on these windows. Errors: unsupported, not_found, cancelled, those of
  // reading the index.
  [[nodiscard]] virtual Result<SamplePlan> plan(std::span<const Window> windows, const std::stop_token& stop) = 0;
};

}  // namespace millrace::order
