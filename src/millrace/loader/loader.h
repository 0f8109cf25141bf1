// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns shards into batches: C++ threads read, verify, decode and collate ahead of the training loop
// (docs/design/loader.md).
//
// Thread-safe; when several threads call next(), each batch goes to one of them. The first call that needs the dataset
// waits while a thread of the loader opens it. Before that call no thread is started and no file is opened. After a
// fork the child's loader starts again from its state(). state() counts the batches that next() returned, not those
// read ahead.
//
// A pass is `epochs` epochs: pass n has the epochs [n * epochs, (n + 1) * epochs). A pass of a mixture ends by its
// stop rule (mix_end). Each pass of a mixture applies the weights from step 0 on, with new epochs of each dataset.
// next() returns nothing at the end of a pass; start_pass() begins another one.

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
  // Creates a loader that reads from other sources than LoaderOptions::shards: one source, or one for each dataset of
  // a mixture.
  [[nodiscard]] static Result<std::unique_ptr<Loader>> create(const LoaderOptions& options,
                                                              std::vector<OpenSource> open_sources);
  ~Loader();

  // Opens the dataset. Every other call that needs the dataset opens it as well, but waits without a deadline. An
  // error is returned once; the next call tries again. Errors: timeout (`deadline` passed, the opening goes on; call
  // again), cancelled (closed), those of opening: not_found, corruption, invalid_argument, resource_exhausted; a
  // stall, as in next().
  [[nodiscard]] Status open(Clock::time_point deadline = Clock::time_point::max());

  // Returns the next batch of this rank, nothing at the end of a pass. Errors: timeout (`deadline` passed; call
  // again), not_found, corruption (the state stays before the batch that needs the damaged shard), resource_exhausted
  // (memory_bytes is too small; says how much is needed), cancelled (closed), unavailable with ETIMEDOUT
  // (OnStall::kRaise: the wait took longer than LoaderOptions::stall; names the stage that the batch waits in; the
  // next call waits as long again).
  [[nodiscard]] Result<std::optional<Batch>> next(Clock::time_point deadline = Clock::time_point::max());

  // Returns the next batch if it is ready; nullopt if it is not ready, and at the end of a pass. Never waits for a
  // batch or for the opening of the dataset, and metrics do not count it as a wait. Errors: as next(), without timeout
  // and unavailable.
  [[nodiscard]] Result<std::optional<Batch>> try_next();

  // Size of memory that batches of token ids may be written into instead of the loader's memory.
  struct RingSpace {
    int64_t buffer_bytes = 0;  // most bytes of one packed batch (loader/packed_batch.h)
    int64_t buffers = 0;
  };
  // Returns the best size within the loader's memory cap, when the caller holds up to `kept` batches at once. Errors:
  // invalid_argument (LoaderOptions::fields is set, so batches have no largest size; too many kept).
  [[nodiscard]] Result<RingSpace> ring_space(int64_t kept);
  // Writes all batches made from now on into the memory of `ring`, which counts as the loader's memory for batches.
  // Call this before the first batch is asked for. When the caller holds more than `kept` batches, further batches
  // take ordinary memory. Errors: invalid_argument (a ring is in use already; the ring has smaller or more buffers
  // than ring_space() says).
  [[nodiscard]] Status use_ring(std::shared_ptr<BatchRing> ring);

  [[nodiscard]] Result<std::string> state();
  // Returns the state of state() as a value; order::serialize_state() turns it into text.
  [[nodiscard]] Result<order::LoaderState> position();
  // Returns the state of a training run that has used the batch with this Batch::epoch and Batch::next_position.
  // Errors: invalid_argument (a mixture has no such batch).
  [[nodiscard]] Result<std::string> state_behind(uint64_t epoch, int64_t next_position);
  // Continues after the batches that `state` has counted, at this loader's world size and batch size.
  // Errors: invalid_argument, naming what differs (dataset, seed, shuffle, packing); those of parse_state.
  [[nodiscard]] Status load_state(std::string_view state);

  // Goes to the first batch of pass `number`, counted from 0. Errors: invalid_argument (an endless loader).
  [[nodiscard]] Status start_pass(uint64_t number);
  // Returns the pass that state() is in. Errors: invalid_argument (an endless loader).
  [[nodiscard]] Result<Pass> pass();
  // Returns the number of batches of pass `number`. It is the same on all ranks and does not depend on the stride.
  // Packed epochs may differ by a few batches. For a mixture this makes all draws of the pass, some nanoseconds each.
  // Errors: as pass().
  [[nodiscard]] Result<int64_t> pass_batches(uint64_t number);

  // Sets the weights of a mixture from the next batch on, one for each dataset. Drops batches that were read ahead.
  // All ranks must call this at the same batch. Errors: invalid_argument (no mixture; weights that Mixture::create
  // refuses).
  [[nodiscard]] Status set_weights(std::vector<double> weights);

  // Returns the samples of step `step`: for each rank, a list of rows. Steps are the batches of a pass, numbered from
  // 0 at this batch size, including skipped ones. An endless loader of one dataset numbers the batches of the whole
  // run. A damaged row that was replaced shows its replacement, if quarantined() of this loader, or of one whose state
  // is in `states`, lists it. A rank knows only its own damage. Reads indexes, no samples. Errors: invalid_argument
  // (no such step in the pass that state() is in; a state of another run), those of reading an index.
  [[nodiscard]] Result<std::vector<std::vector<RowParts>>> provenance(int64_t step,
                                                                      std::span<const std::string> states = {});
  // Returns the step after the last batch. The next batch has this step, or a later one when this step is to be
  // skipped.
  [[nodiscard]] Result<int64_t> step();
  // Skips steps [begin, end), here and in every later state. Drops batches that were read ahead. All ranks must call
  // this at the same batch. Errors: invalid_argument (no such steps).
  [[nodiscard]] Status skip(int64_t begin, int64_t end);

  // Returns the damaged rows that were replaced up to the last batch that next() returned, in this run and in the
  // earlier runs that its state comes from. They are those of this rank, or of the rank whose state was loaded.
  [[nodiscard]] Result<std::vector<order::QuarantinedUnit>> quarantined();

  // Returns the damaged tars without an index. Only the part of such a tar before the damage is in the order.
  [[nodiscard]] Result<std::vector<order::DamagedShard>> damaged_shards();

  // Marks rows of recent batches as bad, by place, each with the reason why the caller could not use it. From the next
  // load_state() on they count as damage, so another row replaces each (OnBad::kQuarantine). Errors: invalid_argument
  // (OnBad::kRaise), corruption (more than max_bad in this run).
  [[nodiscard]] Status reject(std::span<const std::pair<Batch::RowPlace, std::string>> rows);

  // Returns the number of positions (samples, or rows when packing) of the current epoch over all ranks. Errors:
  // invalid_argument (a mixture).
  [[nodiscard]] Result<int64_t> epoch_units();

  // Stops opening and reading ahead, and frees memory. From then on next() returns cancelled, even a call that is
  // already waiting on another thread. Batches that were returned stay valid.
  void close();

  const Metrics& metrics() const;
  const LoaderOptions& options() const;
  // Returns the number of batches that the loader currently aims to read ahead. It grows while next() has to wait.
  int64_t prefetch_depth() const;
  // Returns how many further batches were ready when the last one was taken.
  int64_t ready_batches() const;

 private:
  struct Impl;
  explicit Loader(std::unique_ptr<Impl> impl);
  Impl& here();
  std::atomic<Impl*> impl_;  // owned; replaced in a child after a fork
};

}  // namespace millrace::loader
