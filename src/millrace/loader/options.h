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

// Opens what a loader reads. It is called on a thread of the loader, and again when it answered an error.
struct SourceContext {
  Metrics& metrics;                  // outlives the source
  std::stop_token stop;              // set when the loader is closed
  int64_t run_bytes = 0;             // most bytes of one SampleRun, where its samples are smaller
  Activities* activities = nullptr;  // a source lists here what it waits for; null: nobody asks
  int64_t index_bytes = 64 << 20;    // most bytes of indexes to keep in memory between reads
};
using OpenSource = std::function<Result<std::unique_ptr<order::SampleSource>>(const SourceContext& context)>;

// One dataset of a mixture.
struct MixtureSource {
  std::vector<std::string> shards;
  std::string ids_field;
  OpenSource open;  // opens a source instead of shards
};

// The rows that fill up the last global batch of an epoch, so that all ranks have equally many batches of equally many
// rows.
enum class FillLast {
  kNothing,  // the batch is dropped, or smaller (drop_last)
  kPadding,  // rows of padding
  kRepeats,  // the epoch's first rows again
};
[[nodiscard]] Result<FillLast> parse_fill_last(std::string_view name);  // "", "pad", "repeat"
std::string_view fill_last_name(FillLast fill);

// How a Loader treats a damaged row (or sample): missing shards, bytes that differ from those of the index, ids out of
// range. A storage that does not answer is an error in any case.
enum class OnBad {
  kRaise,  // an error of the batch that needs it; the state stays before that batch
  // Another row takes its place (EpochOrder::replacement), and the state says so. Of a damaged tar without an index the
  // samples before the damage are the shard.
  kQuarantine,
};
[[nodiscard]] Result<OnBad> parse_on_bad(std::string_view name);  // "raise", "quarantine"
std::string_view on_bad_name(OnBad on_bad);

// How a Loader reports a wait for a batch that takes longer than LoaderOptions::stall.
enum class OnStall {
  kWarn,   // a warning names what is waited for, again each time the wait has doubled
  kRaise,  // an error does; the next call waits as long again
};
[[nodiscard]] Result<OnStall> parse_on_stall(std::string_view name);  // "warn", "raise"
std::string_view on_stall_name(OnStall on_stall);

struct LoaderOptions {
  std::vector<std::string> shards;       // paths and URLs for find_shards(); or
  OpenSource open;                       // opens a source instead of shards; or
  std::vector<MixtureSource> sources;    // the datasets of a mixture (docs/format/order.md)
  std::vector<order::MixPhase> weights;  // in a mixture, by step of a pass, the first at 0
  order::MixEnd mix_end = order::MixEnd::kEndless;
  int64_t batch_size = 0;         // samples (rows when packing) a rank; this or global_batch_size
  int64_t global_batch_size = 0;  // over all ranks
  int64_t seq_len = 0;            // tokens a row
  // Samples of any kind, of which these fields are read; else samples are token ids. A row is a sample then, and what
  // concerns tokens (seq_len, collate, ids) is not used.
  std::shared_ptr<const SampleFields> fields;
  Collate collate = Collate::kPad;
  bool documents = false;  // a packed batch says where its documents begin and end
  IdType id_type = IdType::kInt64;
  int64_t pad_id = 0;
  order::OrderOptions order;  // seed, shuffle; pack_seq_len is set from collate and seq_len
  int64_t rank = 0;
  int64_t world_size = 1;
  bool uneven_ranks = false;  // true: global_batch_size need not be a multiple of world_size
  bool drop_last = true;  // false: the last global batch of an epoch (of a mixture: of a pass) may be smaller, down to
                          // no rows on some ranks
  FillLast fill_last = FillLast::kNothing;  // else drop_last is false
  int64_t epochs = 0;                       // in a pass; 0: endless. Not of a mixture, where mix_end decides
  // This loader gives global batch `first_step`, counted from its start, and every `step_stride`-th after it. It does
  // not read the others. Several loaders divide a pass this way.
  int64_t first_step = 0;
  int64_t step_stride = 1;
  int threads = 0;           // 0: available_cpus() over the number of local ranks, at most 8
  bool numa = true;          // threads stay on the processors near this rank (base/thread/numa.h)
  std::vector<int> cpus;     // filled in by resolve(): those, where there are some
  int64_t memory_bytes = 0;  // memory of read-ahead and batches; 0: 1 GiB or a quarter of the process's budget
  std::string ids_field;     // empty: found from the manifest or the index
  // When the shards are opened, they are checked against these two. The shards must agree with each other in any case.
  std::optional<Hash128> tokenizer_hash;
  int64_t vocab_size = 0;  // ids are below it; 0: not checked
  OnBad on_bad = OnBad::kRaise;
  int64_t max_bad = 1000;                    // more quarantined rows and shards on this rank are an error
  std::string cache;                         // folder of the cache of the node (cache/node_cache.h); empty: none
  int64_t cache_bytes = 0;                   // its cap; 0: half of the disk
  std::chrono::milliseconds stall{120'000};  // a wait for a batch that takes longer is told; 0: none is
  OnStall on_stall = OnStall::kWarn;

  bool has_fields() const { return fields != nullptr; }
  bool is_mixture() const { return !weights.empty(); }
  bool is_endless() const { return is_mixture() ? mix_end == order::MixEnd::kEndless : epochs == 0; }
  int64_t all_ranks_batch() const { return global_batch_size > 0 ? global_batch_size : batch_size * world_size; }
  int64_t pack_seq_len() const { return collate == Collate::kPad ? 0 : seq_len; }
  // Bytes of one array's row; row_bytes() sums all arrays of a batch.
  int64_t array_row_bytes() const { return seq_len * static_cast<int64_t>(id_bytes(id_type)); }
  int64_t row_bytes() const { return array_row_bytes() * std::ssize(batch_arrays(collate, documents)); }
  // Whether a global batch of `count` units is given: not one that an epoch's end cuts short, with drop_last.
  bool is_given(int64_t count) const { return count == all_ranks_batch() || (!drop_last && count > 0); }
};

// Checks the options and fills in `threads`. Errors: invalid_argument.
[[nodiscard]] Result<LoaderOptions> resolve(LoaderOptions options);

// A pass of a loader that is not endless.
struct Pass {
  uint64_t number = 0;  // counted from 0
  bool over = false;    // no batch of it is left
};

}  // namespace millrace::loader
