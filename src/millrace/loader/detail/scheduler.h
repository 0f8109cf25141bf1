// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the batches of the order from one start on: decides which blocks to read ahead, and when. A Scheduler begins
// at its Start and ends with stop(); to continue elsewhere, make another one. Thread-safe. It owns the threads
// ("mr-loader") that walk the order, plan, decode and collate.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/activities.h"
#include "millrace/loader/batch.h"
#include "millrace/loader/detail/batch_maker.h"
#include "millrace/loader/detail/block_planner.h"
#include "millrace/loader/detail/dataset.h"
#include "millrace/loader/detail/rejected_rows.h"
#include "millrace/loader/detail/run_reader.h"
#include "millrace/loader/detail/sample_order.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

class Scheduler {
 public:
  static constexpr Clock::time_point kDoNotWait = Clock::time_point::min();

  // Objects that the schedulers of one loader share and that outlive them. `depth`: the number of batches to read
  // ahead.
  struct Shared {
    const LoaderOptions& options;
    Dataset& dataset;
    BatchMaker& maker;
    std::atomic<int64_t>& depth;
    Metrics& metrics;
    Activities& activities;
    const RejectedRows& rejected;
  };
  Scheduler(const Shared& shared, Start start);
  ~Scheduler() { stop(); }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns the next batch, nothing at the end of a pass. With `deadline` kDoNotWait it never waits. Errors: timeout
  // (`deadline` passed; call again), cancelled (stopped), those of reading. An error of reading is never timeout, and
  // every later call returns it again.
  [[nodiscard]] Result<std::optional<Batch>> next(Clock::time_point deadline);
  // Stops reading ahead, frees memory and waits for the threads.
  void stop();
  bool is_stopped();
  // Returns the number of batches that next() would return without a wait.
  int64_t ready_batches() const;
  // Describes the stage that the next batch is in, and its dataset, for messages.
  std::string stage();

  // Returns the place after the batch that next() returned last.
  Start position();
  // Returns the state without taking the lock: in a child after a fork a thread of the parent may hold the lock.
  MILLRACE_ANNOTATE(no_thread_safety_analysis)
  order::LoaderState state_without_lock() const;

 private:
  struct Job;
  struct LiveBlock;
  using JobPtr = std::shared_ptr<Job>;
  using BlockPtr = std::shared_ptr<LiveBlock>;
  using Reads = std::vector<RunReader::Request>;

  // Tasks that a thread submits to the workers after it has released the lock.
  struct Tasks {
    std::vector<JobPtr> collatable;
    bool has_walk = false;
  };
  int64_t missing_jobs() const REQUIRES_LOCK(mutex_);
  bool is_walk_due() const REQUIRES_LOCK(mutex_);
  void walk();
  void add_job(Result<std::optional<OrderCursor::Step>> step) REQUIRES_LOCK(mutex_);
  using Place = order::EpochOrder::Place;
  BlockPtr live_block(const Job& job, size_t order, const Place& place) REQUIRES_LOCK(mutex_);
  void wait_for(const JobPtr& job, const BlockPtr& block) REQUIRES_LOCK(mutex_);
  void forget_passed_blocks(const Job& job) REQUIRES_LOCK(mutex_);
  void ask_for_plans() REQUIRES_LOCK(mutex_);
  void rows_read(LiveBlock& block, int64_t bytes) REQUIRES_LOCK(mutex_);
  bool reads_to_plan(const LiveBlock& block) const;
  [[nodiscard]] bool wait_for_batches(Clock::time_point deadline) REQUIRES_LOCK(mutex_);
  bool is_to_be_announced() REQUIRES_LOCK(mutex_);
  void planned(BlockPtr block, Result<PlannedBlock> plan);
  std::string block_stage(const LiveBlock& block) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] Reads give_memory() REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool may_memory_come(const LiveBlock& block) REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool goes_on_by_itself(const Job& job) REQUIRES_LOCK(mutex_);
  bool evict_idle_blocks() REQUIRES_LOCK(mutex_);
  void append_reads(const BlockPtr& block, Reads& reads) REQUIRES_LOCK(mutex_);
  void run_decoded(BlockPtr block);
  void block_ready(LiveBlock& block) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Tasks take_tasks() REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::vector<JobPtr> take_collatable() REQUIRES_LOCK(mutex_);
  // `is_last`: submitting is the last action of a task of the workers.
  void submit(Tasks tasks, bool is_last = false);
  void submit_now() REQUIRES_LOCK(mutex_);
  [[nodiscard]] Result<std::optional<Batch>> take_next(Clock::time_point deadline) REQUIRES_LOCK(mutex_);
  void collate(const JobPtr& job);
  std::vector<std::pair<size_t, Error>> damaged_units(const Job& job) const;
  [[nodiscard]] bool replace_damaged(const JobPtr& job);
  void replace(const JobPtr& job, size_t row, const Error& damage) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Status check_quarantine(const Job& job) REQUIRES_LOCK(mutex_);
  void keep_quarantined(const Job& job) REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool decode_samples(Job& job);
  [[nodiscard]] Result<Batch> make_batch(const Job& job);
  [[nodiscard]] Result<Batch> make_sample_batch(const Job& job);
  Batch with_place(Batch batch, const Job& job) const;
  bool carries_places() const { return shared_.options.has_fields() && shared_.options.on_bad == OnBad::kQuarantine; }
  int64_t most_batches() const { return std::min(shared_.dataset.memory.most_batches, shared_.maker.most_batches()); }

  const Shared shared_;
  const Start start_;
  std::stop_source stop_;

  Mutex stopping_;  // held by stop(), taken before mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
  order::LoaderState at_ GUARDED_BY(mutex_);
  std::vector<order::QuarantinedUnit> quarantined_ GUARDED_BY(mutex_);  // up to the last batch that next() returned
  struct Reached {
    uint64_t epoch = 0;
    std::vector<int64_t> blocks;  // number of the block in each lane
  };
  std::vector<Reached> reached_ GUARDED_BY(mutex_);  // by source; earlier blocks are not needed again
  const std::unique_ptr<OrderCursor> cursor_;        // used by the worker that walks
  bool is_walking_ GUARDED_BY(mutex_) = false;       // a worker walks, or will
  bool is_at_end_ GUARDED_BY(mutex_) = false;        // end of the pass: no more jobs
  int64_t next_job_ GUARDED_BY(mutex_) = 0;
  std::deque<JobPtr> jobs_ GUARDED_BY(mutex_);  // in the order of their batches; next() takes the first
  struct BlockKey {
    int64_t source = 0;
    uint64_t epoch = 0;
    int64_t lane = 0;
    int64_t block = 0;
    auto operator<=>(const BlockKey&) const = default;
  };
  int64_t jobs_done_ GUARDED_BY(mutex_) = 0;  // jobs at the front of jobs_ that next() returns without a wait
  Clock::time_point last_done_ GUARDED_BY(mutex_);
  bool are_batches_quick_ GUARDED_BY(mutex_) = false;
  int waiting_for_each_ GUARDED_BY(mutex_) = 0;  // threads in next() to notify of each batch
  std::map<BlockKey, BlockPtr> live_ GUARDED_BY(mutex_);
  std::deque<BlockPtr> without_memory_ GUARDED_BY(mutex_);  // in the order of their first use
  bool is_memory_full_ GUARDED_BY(mutex_) = false;          // the first of without_memory_ waits
  int64_t rows_held_ GUARDED_BY(mutex_) = 0;                // bytes of rows that planning reads, until they are decoded
  int64_t most_rows_ GUARDED_BY(mutex_) = 0;                // most such bytes of one block so far
  int64_t row_blocks_decoding_ GUARDED_BY(mutex_) = 0;
  std::vector<JobPtr> collatable_ GUARDED_BY(mutex_);  // blocks are ready; not yet given to a worker
  std::atomic<int> submissions_ = 0;  // begun under the lock, continued without it; stop() waits for them

  // The threads, until stop(). Tasks and reads under way use everything above.
  std::unique_ptr<Executor> workers_;
  std::unique_ptr<RunReader> reader_;
  std::unique_ptr<BlockPlanner> planner_;
};

}  // namespace millrace::loader
