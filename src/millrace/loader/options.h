// SPDX-License-Identifier: Apache-2.0
#pragma once

// The options of a Loader. Values.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/activities.h"
#include "millrace/loader/collate.h"
#include "millrace/loader/fields.h"
#include "millrace/order/mixture.h"
#include "millrace/order/order.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

// The context of OpenSource, which opens a source of samples on a thread of the loader. After an error the loader
// calls it again.
struct SourceContext {
  Metrics& metrics;                  // outlives the source
  std::stop_token stop;              // set when the loader is closed
  int64_t run_bytes = 0;             // most bytes of one SampleRun, unless one sample is larger
  Activities* activities = nullptr;  // a source lists its waits here; null: nowhere
  int64_t index_bytes = 64 << 20;    // most bytes of indexes to keep in memory between reads
};
using OpenSource = std::function<Result<std::unique_ptr<order::SampleSource>>(const SourceContext& context)>;

// One dataset of a mixture.
struct MixtureSource {
  std::vector<std::string> shards;
  std::string ids_field;
  OpenSource open;  // opens a source instead of shards
};

// The rows that fill up the last global batch of an epoch, so that all ranks have the same number of batches and rows.
enum class FillLast {
  kNothing,  // the batch is dropped, or smaller (drop_last)
  kPadding,  // rows of padding
  kRepeats,  // the epoch's first rows again
};
[[nodiscard]] Result<FillLast> parse_fill_last(std::string_view name);  // "", "pad", "repeat"
std::string_view fill_last_name(FillLast fill);

// How a Loader treats a damaged row (or sample): a missing shard, bytes that do not match the index, ids out of range.
// A storage that does not answer is always an error.
enum class OnBad {
  kRaise,  // the batch that needs the row is an error; the state stays before that batch
  // Another row replaces it (EpochOrder::replacement), and the state records this. A damaged tar without an index
  // counts as a shard of the samples before the damage.
  kQuarantine,
};
[[nodiscard]] Result<OnBad> parse_on_bad(std::string_view name);  // "raise", "quarantine"
std::string_view on_bad_name(OnBad on_bad);

// How a Loader reports a wait for a batch that takes longer than LoaderOptions::stall.
enum class OnStall {
  kWarn,   // logs a warning that names the cause, again each time the wait has doubled
  kRaise,  // returns an error that names the cause; the next call waits as long again
};
[[nodiscard]] Result<OnStall> parse_on_stall(std::string_view name);  // "warn", "raise"
std::string_view on_stall_name(OnStall on_stall);

struct LoaderOptions {
  std::vector<std::string> shards;       // paths and URLs for find_shards(); or
  OpenSource open;                       // opens a source instead of shards; or
  std::vector<MixtureSource> sources;    // the datasets of a mixture (docs/format/order.md)
  std::vector<order::MixPhase> weights;  // in a mixture, by step of a pass, the first at 0
  order::MixEnd mix_end = order::MixEnd::kEndless;
  int64_t batch_size = 0;         // samples (rows when packing) per rank; set this or global_batch_size
  int64_t global_batch_size = 0;  // over all ranks
  int64_t seq_len = 0;            // tokens per row
  // Set: samples of any kind, and these fields of them are read. A row is then a sample, and the options for tokens
  // (seq_len, collate, ids) are not used. Null: samples are token ids.
  std::shared_ptr<const SampleFields> fields;
  Collate collate = Collate::kPad;
  bool documents = false;  // a packed batch has the borders of its documents
  IdType id_type = IdType::kInt64;
  int64_t pad_id = 0;
  order::OrderOptions order;  // seed, shuffle; pack_seq_len is set from collate and seq_len
  int64_t rank = 0;
  int64_t world_size = 1;
  bool uneven_ranks = false;  // true: global_batch_size need not be a multiple of world_size
  bool drop_last = true;  // false: the last global batch of an epoch (of a mixture: of a pass) may be smaller, down to
                          // no rows on some ranks
  FillLast fill_last = FillLast::kNothing;  // other than kNothing: resolve() sets drop_last to false
  int64_t epochs = 0;                       // in a pass; 0: endless. A mixture uses mix_end instead
  // This loader returns global batch `first_step`, counted from its start, and every `step_stride`-th batch after it.
  // It does not read the other batches. Several loaders can divide a pass this way.
  int64_t first_step = 0;
  int64_t step_stride = 1;
  int threads = 0;           // 0: available_cpus() divided by the number of local ranks, at most 8
  bool numa = true;          // threads stay on the processors near this rank (base/thread/numa.h)
  std::vector<int> cpus;     // set by resolve(): those processors, if there are any
  int64_t memory_bytes = 0;  // memory for read-ahead and batches; 0: 1 GiB or a quarter of the process's budget
  std::string ids_field;     // empty: taken from the manifest or the index
  // The shards are checked against these two when they are opened. In any case the shards must agree with each other.
  std::optional<Hash128> tokenizer_hash;
  int64_t vocab_size = 0;  // ids must be lower; 0: not checked
  OnBad on_bad = OnBad::kRaise;
  int64_t max_bad = 1000;                    // an error above this many quarantined rows and shards on this rank
  std::string cache;                         // folder of the node's cache (cache/node_cache.h); empty: no cache
  int64_t cache_bytes = 0;                   // cap of the cache; 0: half of the disk
  std::chrono::milliseconds stall{120'000};  // a longer wait for a batch is reported (on_stall); 0: never
  OnStall on_stall = OnStall::kWarn;

  bool has_fields() const { return fields != nullptr; }
  bool is_mixture() const { return !weights.empty(); }
  bool is_endless() const { return is_mixture() ? mix_end == order::MixEnd::kEndless : epochs == 0; }
  int64_t all_ranks_batch() const { return global_batch_size > 0 ? global_batch_size : batch_size * world_size; }
  int64_t pack_seq_len() const { return collate == Collate::kPad ? 0 : seq_len; }
  // Returns the bytes of one row of one array; row_bytes() sums all arrays of a batch.
  int64_t array_row_bytes() const { return seq_len * static_cast<int64_t>(id_bytes(id_type)); }
  int64_t row_bytes() const { return array_row_bytes() * std::ssize(batch_arrays(collate, documents)); }
  // Returns whether a global batch of `count` units is returned to the user. With drop_last, a batch that the end of
  // an epoch cuts short is not.
  bool is_given(int64_t count) const { return count == all_ranks_batch() || (!drop_last && count > 0); }
};

// Checks the options and fills in `threads`. Errors: invalid_argument.
[[nodiscard]] Result<LoaderOptions> resolve(LoaderOptions options);

// A pass of a loader that is not endless.
struct Pass {
  uint64_t number = 0;  // counted from 0
  bool over = false;    // no batch of the pass is left
};

}  // namespace millrace::loader
