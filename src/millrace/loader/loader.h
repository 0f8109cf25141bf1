// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards in, batches out: C++ threads read, verify, decode and collate ahead of the training loop
// (docs/design/loader.md).
//
// Thread-safe; threads that call next() at the same time share the batches out. No thread is started and no file opened
// before the first call that needs the dataset; then a thread of the loader opens it, and the call waits. After a fork
// the child's loader starts anew from its state(). state() counts what next() returned, whatever was read ahead.
//
// A pass is `epochs` epochs: pass n has the epochs [n * epochs, (n + 1) * epochs). A pass of a mixture ends by its stop
// rule; each pass goes through the weights by step from step 0 on, with other epochs of each dataset. next() stops at
// the end of a pass; start_pass() begins another one.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/batch.h"
#include "millrace/loader/batch_ring.h"
#include "millrace/loader/options.h"
#include "millrace/loader/provenance.h"
#include "millrace/order/mixture.h"

namespace millrace::loader {

class Loader {
 public:
  // Checks the options; opens nothing. Errors: invalid_argument.
  [[nodiscard]] static Result<std::unique_ptr<Loader>> create(const LoaderOptions& options);
  // Creates a loader of samples of another kind than LoaderOptions::shards: one source, or one for each dataset of a
  // mixture.
  [[nodiscard]] static Result<std::unique_ptr<Loader>> create(const LoaderOptions& options,
                                                              std::vector<OpenSource> open_sources);
  ~Loader();

  // Opens the dataset, which every other call waits for without a deadline. An error is answered once; the next call
  // tries again. Errors: timeout (`deadline` passed, the opening goes on; call again), cancelled (closed), those of
  // opening: not_found, corruption, invalid_argument, resource_exhausted; a stall, as in next().
  [[nodiscard]] Status open(Clock::time_point deadline = Clock::time_point::max());

  // The next batch of this rank, nothing at the end of a pass.
  // Errors: timeout (`deadline` passed; call again), not_found, corruption (the state stays before the batch that needs
  // the damaged shard), resource_exhausted (memory_bytes is too small: how much is needed), cancelled (closed),
  // unavailable with ETIMEDOUT (OnStall::kRaise: the wait took longer than LoaderOptions::stall; names what is waited
  // for, and the next call waits as long again).
  [[nodiscard]] Result<std::optional<Batch>> next(Clock::time_point deadline = Clock::time_point::max());

  // Returns the next batch if it is ready; nullopt if it is not, and at the end of a pass. Never waits for a batch or
  // for the dataset to be opened, and does not count as a wait. Errors: as next(), without timeout and unavailable.
  [[nodiscard]] Result<std::optional<Batch>> try_next();

  // Memory that batches of token ids may be written into, instead of the loader's own.
  struct RingSpace {
    int64_t buffer_bytes = 0;  // most bytes of one batch with all that it carries (loader/packed_batch.h)
    int64_t buffers = 0;
  };
  // How much of it: as much as is good, within the loader's cap, when the caller holds up to `kept` batches at once.
  // Errors: invalid_argument (samples of any kind, whose batches have no largest size; too many kept).
  [[nodiscard]] Result<RingSpace> ring_space(int64_t kept);
  // From the next batch on that is made, batches lie in this memory, which counts as the loader's own for batches. To
  // be called before the first batch is asked for. When more than `kept` are held, further ones take ordinary memory.
  // Errors: invalid_argument (a ring is in use already; its buffers are smaller, or more than ring_space()).
  [[nodiscard]] Status use_ring(std::shared_ptr<BatchRing> ring);

  [[nodiscard]] Result<std::string> state();
  // The state of state() as a value; order::serialize_state() writes it.
  [[nodiscard]] Result<order::LoaderState> position();
  // The state of a training that has used the batch with this Batch::epoch and Batch::next_position.
  // Errors: invalid_argument (a mixture has no such batch).
  [[nodiscard]] Result<std::string> state_behind(uint64_t epoch, int64_t next_position);
  // Continues after the batches that `state` has counted, at this loader's world size and batch size.
  // Errors: invalid_argument, naming what differs (dataset, seed, shuffle, packing); those of parse_state.
  [[nodiscard]] Status load_state(std::string_view state);

  // The next batch is the first of pass `number`, counted from 0. Errors: invalid_argument (an endless loader).
  [[nodiscard]] Status start_pass(uint64_t number);
  // The pass that state() is in. Errors: invalid_argument (an endless loader).
  [[nodiscard]] Result<Pass> pass();
  // Batches of pass `number`, the same on all ranks, whatever the stride; packed epochs may differ by a few. Of a
  // mixture, all of its draws are made, some nanoseconds each. Errors: as pass().
  [[nodiscard]] Result<int64_t> pass_batches(uint64_t number);

  // From the next batch on: these weights of a mixture, one for each dataset. What was read ahead is dropped. All ranks
  // must do it at the same batch. Errors: invalid_argument (no mixture; weights that Mixture::create refuses).
  [[nodiscard]] Status set_weights(std::vector<double> weights);

  // Steps are the batches of a pass, numbered from 0 at this batch size, skipped ones counted; of an endless loader of
  // one dataset, those of the whole run. What each rank has of step `step`: a list of rows a rank. Damaged rows are
  // named by what took their places where quarantined() has them, or that of a loader whose state is in `states`: a
  // rank knows its own damage only. Reads indexes, no samples. Errors: invalid_argument (no such step in the pass that
  // state() is in; a state of another run), those of reading an index.
  [[nodiscard]] Result<std::vector<std::vector<RowParts>>> provenance(int64_t step,
                                                                      std::span<const std::string> states = {});
  // The step of the next batch, if none before it is skipped.
  [[nodiscard]] Result<int64_t> step();
  // Leaves out steps [begin, end), here and in every state from now on. What was read ahead is dropped. All ranks must
  // do it at the same batch. Errors: invalid_argument (no such steps).
  [[nodiscard]] Status skip(int64_t begin, int64_t end);

  // The damaged rows that were replaced up to the last batch that next() returned, in this run and those that its state
  // comes from; of this rank, or of the one whose state was loaded.
  [[nodiscard]] Result<std::vector<order::QuarantinedUnit>> quarantined();

  // The tars without an index of which only a part is in the order, as they are damaged.
  [[nodiscard]] Result<std::vector<order::DamagedShard>> damaged_shards();

  // Says that the rows of the last batches with these places are bad, each with the reason: what the caller does with
  // them failed. From the next load_state() on they count as damage, so another row takes the place of each, as
  // OnBad::kQuarantine says. Errors: invalid_argument (OnBad::kRaise), corruption (more than max_bad in this run).
  [[nodiscard]] Status reject(std::span<const std::pair<Batch::RowPlace, std::string>> rows);

  // Positions (samples, or rows when packing) of the current epoch over all ranks. Errors: invalid_argument (a
  // mixture).
  [[nodiscard]] Result<int64_t> epoch_units();

  // Stops opening and reading ahead and lets memory go. next() answers cancelled afterwards, also one that is waiting
  // on another thread. Batches that were returned stay valid.
  void close();

  const Metrics& metrics() const;
  const LoaderOptions& options() const;
  // Batches read ahead that the loader aims at now; it grows while next() has to wait.
  int64_t prefetch_depth() const;
  // Batches that were ready when the last one was taken, beside it.
  int64_t ready_batches() const;

 private:
  struct Impl;
  explicit Loader(std::unique_ptr<Impl> impl);
  Impl& here();
  std::atomic<Impl*> impl_;  // owned; replaced in a child after a fork
};

}  // namespace millrace::loader
