// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards in, batches out: C++ threads read, verify, decode and collate ahead of the training loop
// (docs/design/loader.md).
//
// Thread-safe; threads that call next() at the same time share the batches out. No thread or file is opened before the
// first call that needs one. After a fork the child's loader starts anew from its state(). What next() returned is what
// state() has counted, whatever was read ahead.
//
// A pass is `epochs` epochs: pass n has the epochs [n * epochs, (n + 1) * epochs). next() stops at the end of a pass;
// start_pass() begins another one.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash.h"
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
  bool uneven_ranks = false;  // true: global_batch_size need not be a multiple of world_size
  bool drop_last = true;      // false: an epoch's last global batch may be smaller, down to no rows on some ranks
  int64_t epochs = 0;         // in a pass; 0: endless
  // Of the global batches from where it begins, this loader gives number `first_step` and every `step_stride`-th after
  // it; the others are not read. Several loaders share a pass out this way.
  int64_t first_step = 0;
  int64_t step_stride = 1;
  int threads = 0;           // 0: available_cpus() over the number of local ranks, at most 8
  int64_t memory_bytes = 0;  // for read-ahead and batches; 0: 1 GiB or a quarter of the process's budget
  std::string ids_field;     // empty: found from the index
  // What the shards are held against when they are opened. They must agree with each other in any case.
  std::optional<Hash128> tokenizer_hash;
  int64_t vocab_size = 0;  // ids are below it; 0: not checked
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
  int64_t next_position = 0;     // behind it: with `epoch`, the state of whoever has used this batch
  int64_t tokens = 0;            // real ones, without padding
  std::shared_ptr<void> memory;  // keeps `data` alive
};

class Loader {
 public:
  // Checks the options; opens nothing. Errors: invalid_argument.
  [[nodiscard]] static Result<std::unique_ptr<Loader>> create(const LoaderOptions& options);
  ~Loader();

  // The next batch of this rank, nothing at the end of a pass.
  // Errors: timeout (`deadline` passed; call again), not_found, corruption (the state stays before the batch that needs
  // the damaged shard), resource_exhausted (memory_bytes is too small: how much is needed), cancelled (closed).
  [[nodiscard]] Result<std::optional<Batch>> next(Clock::time_point deadline = Clock::time_point::max());

  // Opens the dataset when that has not happened yet.
  [[nodiscard]] Result<std::string> state();
  // The state of whoever has used the batch that says so: Batch::epoch and Batch::next_position.
  [[nodiscard]] Result<std::string> state_behind(uint64_t epoch, int64_t next_position);
  // Goes on behind the batches that `state` had counted, at this loader's world size and batch size.
  // Errors: invalid_argument, naming what differs (dataset, seed, shuffle, packing); those of parse_state.
  [[nodiscard]] Status load_state(std::string_view state);

  // The next batch is the first of pass `number`, counted from 0. Errors: invalid_argument (an endless loader).
  [[nodiscard]] Status start_pass(uint64_t number);
  struct Pass {
    uint64_t number = 0;
    bool over = false;    // no batch of it is left
    int64_t batches = 0;  // in the whole pass; the same on all ranks, whatever the stride
  };
  // The pass that state() is in. Opens the dataset. Errors: invalid_argument (an endless loader).
  [[nodiscard]] Result<Pass> pass();
  // Batches of pass `number`; packed epochs may differ by a few. Errors: as pass().
  [[nodiscard]] Result<int64_t> pass_batches(uint64_t number);

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
  Impl& here();
  std::atomic<Impl*> impl_;  // owned; replaced in a child after a fork
};

}  // namespace millrace::loader
