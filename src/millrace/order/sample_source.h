// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loader's interface to a dataset: shards of samples that can be counted, planned by windows and read by runs.
// Token ids and their lengths are optional parts. Shard folders implement it in loader/, robot datasets in their own
// room. Thread-safe; runs of one source may be read on many threads at once.

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
  bool is_typed = false;  // the bytes say what they are (loader/typed_value.h)
};
// Valid during the visit only.
struct Sample {
  std::string_view key;
  std::span<const Field> fields;
};

// Consecutive samples of one window that are read together. First start(), then, once `done` was called without an
// error, visit(). For one thread at a time; the source must outlive it.
class SampleRun {
 public:
  struct ReadOptions {
    std::stop_token stop;
    Clock::time_point deadline = Clock::time_point::max();
    int priority = 0;  // higher is read earlier
  };
  using Done = std::function<void(Status)>;
  // `sample`: or what is wrong with this one alone.
  using Visit = std::function<Status(int64_t index, const Result<Sample>& sample)>;

  virtual ~SampleRun() = default;

  // For messages: the shard.
  virtual std::string_view name() const = 0;
  // For messages about a read that takes long: the shard, and what of it is read.
  virtual std::string request() const { return std::string(name()); }
  virtual int64_t samples() const = 0;
  // Memory that start() fills. 0: the source needs none.
  virtual int64_t bytes() const = 0;
  // Whether start() returns before the bytes are there. False: visit() reads them on its own thread, so that more runs
  // under way than threads bring no speed.
  virtual bool reads_ahead() const = 0;

  // Begins to read the samples into `memory`. `done` is called once, on any thread, perhaps before start() returns, and
  // must be brief. Errors: not_found, unavailable, timeout, cancelled. REQUIRES: `memory` has bytes() bytes; it lives
  // until visit() has returned, or `done` has got an error, and the run until start() has returned, too.
  virtual void start(std::span<std::byte> memory, const ReadOptions& options, Done done) = 0;
  // Visits each sample, in order; `index` counts from 0. A visit that answers an error ends the call with that error.
  // Bytes are verified where a hash is known; a sample that differs is visited as corruption, naming shard, sample and
  // offset. Errors: those of start().
  [[nodiscard]] virtual Status visit(const Visit& visit) = 0;
};

// A loader of samples of any kind keeps the key of a sample in memory, and the name and data of each field that it
// takes. Beside these it takes at most kRecordBytes for a sample and kRecordFieldBytes for a field.
inline constexpr int64_t kRecordBytes = 16;
inline constexpr int64_t kRecordFieldBytes = 24;

// Some windows, ready to be read.
struct SamplePlan {
  // How large each sample is, windows laid end to end: a source fills one of these.
  std::vector<uint32_t> tokens;                  // its ids, where the source has lengths()
  std::vector<int64_t> bytes;                    // its record, or its ids as uint32, at most
  std::vector<std::unique_ptr<SampleRun>> runs;  // hold each of these samples once, in the same order
};

// How the samples of a source hold token ids.
struct TokenIds {
  std::string_view field;      // field of a sample that holds them
  std::string_view tokenizer;  // the hash of the tokenizer that made them; empty when it is unknown
};

// The tokens of samples, which an order that packs goes by. Belongs to its source; as thread-safe.
class SampleLengths {
 public:
  virtual ~SampleLengths() = default;

  // Tokens of all samples. Errors: unsupported (they were not counted), those of reading the index.
  [[nodiscard]] virtual Result<int64_t> total_tokens() = 0;

  // Puts the tokens of every `window_samples` samples of each shard into `tokens_of(shard)`, which has an element a
  // window; the last window of a shard may be shorter. Reads the lengths of all samples.
  // Errors: unsupported, cancelled, those of reading the index.
  using TokensOf = std::function<std::span<int64_t>(int64_t shard)>;
  [[nodiscard]] virtual Status window_tokens(int64_t window_samples, const TokensOf& tokens_of) = 0;

  // Calls visit(shard, lengths) with the tokens of all samples of each shard, perhaps for many shards at once.
  // Errors: as window_tokens.
  using VisitLengths = std::function<void(int64_t shard, std::span<const uint32_t> lengths)>;
  [[nodiscard]] virtual Status sample_tokens(const VisitLengths& visit) = 0;
};

// Identity, counts and reading. Of what is not pure, a source overrides what it has.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // For messages: the URL.
  virtual std::string_view name() const = 0;
  // Equal for equal samples in equal canonical order; part of the loader's state.
  virtual std::string_view identity() const = 0;
  // Nothing where the samples hold no token ids.
  virtual std::optional<TokenIds> token_ids() const { return std::nullopt; }
  // Null where the samples have no lengths in tokens.
  virtual SampleLengths* lengths() { return nullptr; }

  // Samples of each shard, in canonical order.
  virtual std::span<const int64_t> shard_samples() const = 0;

  // For messages and provenance: the URL of a shard.
  virtual std::string_view shard_name(int64_t shard) const = 0;

  // Shards of which only a part is in the order, because they are damaged; `source` is 0 in each. Once it is open.
  virtual std::vector<DamagedShard> damaged_shards() { return {}; }

  // About as many bytes as all samples have in their shards; 0 when it is not known. What it answers decides how large
  // the blocks of the order are, so it must be the same whenever identity() is.
  virtual int64_t total_bytes() { return 0; }

  // Samples that are best read together, such as the row group of a table; 0: as many as their bytes say. As constant
  // as total_bytes().
  virtual int64_t window_hint() const { return 0; }

  // Bytes of memory that the source holds as long as it lives, at most: its list of shards, their indexes. Once it is
  // open.
  virtual int64_t held_bytes() { return 0; }

  // Whether plan() reads the samples themselves, as their sizes are not known before. The runs hold them then.
  virtual bool reads_to_plan() const { return false; }

  // Lays out how `windows` are read. May wait for storage (indexes, opening of files), but reads no sample; what it
  // costs depends on these windows alone. Errors: unsupported, not_found, cancelled, those of reading the index.
  [[nodiscard]] virtual Result<SamplePlan> plan(std::span<const Window> windows, const std::stop_token& stop) = 0;
};

}  // namespace millrace::order
