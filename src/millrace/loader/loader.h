// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards in, batches out: C++ threads read, verify, decode and collate ahead of the training loop
// (docs/design/loader.md).
//
// next(), state() and load_state() are for one consumer at a time; everything else is thread-safe. No thread or file is
// opened before the first next(). After a fork the child's loader starts anew from its state(). What next() returned is
// what state() has counted, whatever was read ahead.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/sync.h"
#include "millrace/loader/collate.h"
#include "millrace/order/order.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct LoaderOptions {
  std::vector<std::string> shards;  // as ShardSourceOptions::urls
  int64_t batch_size = 0;           // samples (rows when packing) a rank; this or global_batch_size
  int64_t global_batch_size = 0;    // over all ranks
  int64_t seq_len = 0;              // tokens a row
  Collate collate = Collate::kPad;
  IdType id_type = IdType::kInt64;
  int64_t pad_id = 0;
  order::OrderOptions order;  // seed, shuffle; pack_seq_len is set from collate and seq_len
  int64_t rank = 0;
  int64_t world_size = 1;
  bool drop_last = true;     // false: an epoch's last global batch may be smaller, down to no rows on some ranks
  int64_t epochs = 0;        // 0: endless
  int threads = 0;           // 0: available_cpus() over the number of local ranks, at most 8
  int64_t memory_bytes = 0;  // for read-ahead and batches; 0: 1 GiB or a quarter of the process's budget
  std::string ids_field;     // empty: found from the index
};

struct Batch {
  struct Array {
    std::string_view name;
    std::byte* data = nullptr;  // [rows, seq_len] of `type`, C-contiguous
  };
  std::vector<Array> arrays;
  int64_t rows = 0;
  int64_t seq_len = 0;
  IdType type = IdType::kInt64;
  uint64_t epoch = 0;
  int64_t position = 0;          // of the global batch in its epoch
  int64_t tokens = 0;            // real ones, without padding
  std::shared_ptr<void> memory;  // keeps `data` alive
};

class Loader {
 public:
  // Checks the options; opens nothing. Errors: invalid_argument.
  [[nodiscard]] static Result<std::unique_ptr<Loader>> create(const LoaderOptions& options);
  ~Loader();

  // The next batch of this rank, nothing behind the last epoch.
  // Errors: timeout (`deadline` passed; call again), not_found, corruption (the state stays before the batch that needs
  // the damaged shard), resource_exhausted (memory_bytes is too small: how much is needed), cancelled (closed).
  [[nodiscard]] Result<std::optional<Batch>> next(Clock::time_point deadline = Clock::time_point::max());

  // Opens the dataset when that has not happened yet.
  [[nodiscard]] Result<std::string> state();
  // Goes on behind the batches that `state` had counted, at this loader's world size and batch size.
  // Errors: invalid_argument, naming what differs (dataset, seed, shuffle, packing); those of parse_state.
  [[nodiscard]] Status load_state(std::string_view state);

  // Positions (samples, or rows when packing) of the current epoch over all ranks. Opens the dataset.
  [[nodiscard]] Result<int64_t> epoch_units();

  // Stops reading ahead and lets memory go; next() answers cancelled afterwards, also one that is waiting on another
  // thread. Batches that were returned stay valid.
  void close();

  const Metrics& metrics() const;
  const LoaderOptions& options() const;
  // Batches read ahead that the loader aims at now; it grows while next() has to wait.
  int64_t prefetch_depth() const;

 private:
  struct Impl;
  explicit Loader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::loader
