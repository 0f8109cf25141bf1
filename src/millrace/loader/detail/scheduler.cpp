// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/loader/detail/common_size.h"
#include "millrace/loader/detail/wait_error.h"

// How a batch comes to be. The scheduler walks the order batch by batch, up to `depth` batches ahead. Each batch is a
// job; the blocks that hold its units are looked up in live_, or begun. A block passes four stations:
//
//   planned      the planner lays it out, which may wait for indexes
//   with memory  it gets its arena, strictly in the order of first use: a later block must not take the memory that an
//                earlier batch waits for
//   reading      its runs are read and decoded, on any number of threads
//   ready        the jobs that wait for it have one block less to wait for
//
// A job whose last block is ready is collated, and next() takes jobs from the front of the queue once they are done. An
// error at any station stays with the block, so that exactly the batches that need it fail, each in its turn.
//
// A block lives as long as a job refers to it or a later row of its lane may need it. Collating a job frees the blocks
// that it was the last to use; then blocks that wait for memory go on. When the first job that is not done waits for
// memory, no other job will free any: that is an error, which says how much would do.
//
// With OnBad::kQuarantine a job whose blocks are ready is looked through before it is collated: a damaged unit gives
// its place to another one, whose block the job then waits for. What takes the place is a function of the order alone,
// so every rank that has the unit, and every resumed run, reads the same instead.
//
// No I/O happens under the lock. Functions that find out what is to be read under the lock return it, and their callers
// pass it on after letting go of the lock.

namespace millrace::loader {

struct Scheduler::Job {
  int64_t number = 0;
  OrderCursor::Step step;
  struct Unit {
    BlockPtr block;  // null: a row of padding
    int64_t index = 0;
    Batch::RowPlace place;     // of what is read for it
    int64_t replacements = 0;  // that were tried for it
    size_t in_ledger = 0;      // then its place in `quarantined`
    // Of samples of any kind, once its block is ready; values may point into the block.
    std::shared_ptr<const DecodedSample> sample;
    std::optional<Error> damage;  // it was read and does not decode
  };
  std::vector<Unit> units;
  int64_t blocks_left = 0;  // that are not ready
  bool is_done = false;
  std::optional<Error> error;
  std::vector<order::QuarantinedUnit> quarantined;
  Batch batch;

  // Earlier batches first. Wraps around after a billion batches, which are never in one queue.
  int priority() const { return static_cast<int>(-(number % (1 << 30))); }
};

struct Scheduler::LiveBlock {
  int64_t source = 0;
  int64_t first_job = 0;  // that needs it
  int priority = 0;
  EpochOrders::OrderPtr order;
  Place place;
  bool is_asked = false;   // for its plan
  int64_t rows_bytes = 0;  // its part of rows_held_
  std::optional<PlannedBlock> plan;
  std::optional<Error> error;  // it was not planned, or finds no memory
  bool has_memory = false;
  int64_t runs_left = 0;
  bool is_ready = false;
  std::vector<JobPtr> waiting;
};

namespace {

using Ledger = std::vector<order::QuarantinedUnit>;

Ledger& ledger_of(order::LoaderState& state) {
  return std::visit([](auto& of) -> Ledger& { return of.quarantined; }, state);
}

constexpr auto kQuickBatch = std::chrono::microseconds(300);
constexpr int64_t kHandOver = 8;  // quick batches that next() is told of at once
constexpr auto kHandOverWait = std::chrono::milliseconds(1);

Batch::RowPlace place_of(const OrderCursor::Step& step, size_t order, const order::EpochOrder::Place& place) {
  return {step.orders[order].source, step.orders[order].epoch, place.lane, place.block, place.index};
}

// The cursor copies its state into every batch; the ledger is kept apart.
Start without_ledger(Start start) {
  ledger_of(start.state).clear();
  return start;
}

}  // namespace

Scheduler::Scheduler(const Shared& shared, Start start)
    : shared_(shared),
      start_(without_ledger(start)),
      at_(start_.state),
      quarantined_(std::move(ledger_of(start.state))),
      reached_(shared.dataset.sources.size()),
      cursor_(shared.dataset.order->cursor(start_)),
      workers_(std::make_unique<Executor>(shared.options.threads, "mr-loader", shared.options.cpus)),
      reader_(
          std::make_unique<RunReader>(*shared.dataset.memory.runs, *workers_, stop_.get_token(), &shared.activities)) {
  for (const SourcePtr& source : shared.dataset.sources) {
    planners_.push_back(std::make_unique<BlockPlanner>(*source, stop_.get_token()));
  }
}

Result<std::optional<Batch>> Scheduler::next(Clock::time_point deadline) {
  std::vector<JobPtr> collatable;
  auto batch = [&] {
    MutexLock lock(mutex_);
    auto taken = take_next(deadline);
    collatable = take_collatable();
    return taken;
  }();
  submit(std::move(collatable));
  return batch;
}

Result<std::optional<Batch>> Scheduler::take_next(Clock::time_point deadline) {
  schedule_ahead();
  bool waited = false;
  while (!is_stopped_ && !(jobs_.empty() ? cursor_->is_at_end() : jobs_.front()->is_done)) {
    if (!collatable_.empty()) {
      submit_now();
      continue;
    }
    waited = true;
    if (deadline == kDoNotWait || !wait_for_batches(deadline))
      return fail(ErrorCode::kTimeout, "no batch is ready yet");
    schedule_ahead();  // another thread may have taken the batch that this one waited for
  }
  if (is_stopped_) return fail(ErrorCode::kCancelled, "the loader is closed");
  if (jobs_.empty()) return std::nullopt;
  const JobPtr job = jobs_.front();
  if (Status kept = check_quarantine(*job); !kept) job->error = std::move(kept).error();
  if (job->error) return tl::unexpected(*job->error);
  jobs_.pop_front();
  --jobs_done_;
  auto& depth = shared_.depth;
  if (waited) depth = std::min(depth + 1, most_batches());
  job->step.move_behind(at_);
  keep_quarantined(*job);
  schedule_ahead();
  shared_.metrics.add(Metric::kBatches, 1);
  shared_.metrics.add(Metric::kSamples, job->batch.rows);
  shared_.metrics.add(Metric::kTokens, job->batch.tokens);
  return std::move(job->batch);
}

// Until something has changed, or might have. False: `deadline` has passed.
bool Scheduler::wait_for_batches(Clock::time_point deadline) {
  if (!are_batches_quick_) {
    ++waiting_for_each_;
    const bool is_told = changed_.wait_until(mutex_, deadline);
    --waiting_for_each_;
    return is_told || Clock::now() < deadline;
  }
  // What is ready and was not announced is found a little later; then again, one batch is waited for.
  const bool is_told = changed_.wait_until(mutex_, std::min(Clock::now() + kHandOverWait, deadline));
  if (!is_told) are_batches_quick_ = false;
  return is_told || Clock::now() < deadline;
}

// Counts the batches that are ready, and answers whether next() should be told. It is for each batch, unless they come
// so quickly that waking a thread costs as much as a batch: then for several at once.
bool Scheduler::is_to_be_announced() {
  const Clock::time_point now = Clock::now();
  are_batches_quick_ = now - last_done_ < kQuickBatch;
  last_done_ = now;
  const int64_t before = jobs_done_;
  while (jobs_done_ < std::ssize(jobs_) && jobs_[static_cast<size_t>(jobs_done_)]->is_done) ++jobs_done_;
  if (jobs_done_ == before) return false;  // one before it is not ready
  return !are_batches_quick_ || waiting_for_each_ > 0 || jobs_done_ >= std::min(kHandOver, (std::ssize(jobs_) + 1) / 2);
}

bool Scheduler::is_stopped() {
  MutexLock lock(mutex_);
  return is_stopped_;
}

int64_t Scheduler::ready_batches() const {
  MutexLock lock(mutex_);
  return jobs_done_;
}

std::string Scheduler::stage() {
  MutexLock lock(mutex_);
  if (is_stopped_) return "move (reads from before are being ended)";
  if (jobs_.empty()) return "memory (no batch could be begun)";
  for (const Job::Unit& unit : jobs_.front()->units) {
    if (unit.block != nullptr && !unit.block->is_ready) return block_stage(*unit.block);
  }
  return "collate (all rows of the batch are read)";
}

std::string Scheduler::block_stage(const LiveBlock& block) const {
  const std::string_view source = shared_.dataset.sources[static_cast<size_t>(block.source)]->name();
  if (!block.plan) return fmt::format("plan (indexes and shards of {} are being opened)", source);
  if (!block.has_memory) return fmt::format("memory (a block of {} waits for what others hold)", source);
  return fmt::format("read (a block of {} lacks {} more runs)", source, block.runs_left);
}

Start Scheduler::position() {
  MutexLock lock(mutex_);
  return {state_without_lock(), start_.orders};
}

order::LoaderState Scheduler::state_without_lock() const {
  order::LoaderState state = at_;
  ledger_of(state) = quarantined_;
  return state;
}

void Scheduler::schedule_ahead() {
  const int64_t depth = std::min(shared_.depth.load(), most_batches());
  while (!is_stopped_ && !is_memory_full_ && !cursor_->is_at_end() && std::ssize(jobs_) < depth) schedule_next();
}

void Scheduler::schedule_next() {
  auto step = cursor_->next();
  if (cursor_->is_at_end()) changed_.notify_all();
  if (step && !*step) return;
  const auto job = std::make_shared<Job>();
  job->number = next_job_++;
  jobs_.push_back(job);
  if (!step) {
    job->error = std::move(step).error();
    job->is_done = true;
    is_to_be_announced();  // by whoever asked for it
    return;
  }
  job->step = **std::move(step);
  for (const OrderCursor::Step::Unit& unit : job->step.units) {
    if (unit.kind == OrderCursor::Step::Unit::Kind::kPadding) {
      job->units.emplace_back();
      continue;
    }
    const BlockPtr block = live_block(*job, unit.order, unit.place);
    job->units.push_back({block, unit.place.index, place_of(job->step, unit.order, unit.place)});
    wait_for(job, block);
  }
  forget_passed_blocks(*job);
  ask_for_plans();
  if (job->blocks_left == 0) collatable_.push_back(job);
}

void Scheduler::wait_for(const JobPtr& job, const BlockPtr& block) {
  const bool counted = !block->waiting.empty() && block->waiting.back() == job;
  if (block->is_ready || counted) return;
  block->waiting.push_back(job);
  ++job->blocks_left;
}

// The block of a place in one of the job's orders. The caller has new ones planned.
Scheduler::BlockPtr Scheduler::live_block(const Job& job, size_t of, const Place& place) {
  const auto& [source, epoch, order] = job.step.orders[of];
  BlockPtr& block = live_[{source, epoch, place.lane, place.block}];
  if (block != nullptr) return block;
  block = std::make_shared<LiveBlock>();
  block->source = source;
  block->first_job = job.number;
  block->priority = job.priority();
  block->order = order;
  block->place = place;
  without_memory_.push_back(block);
  return block;
}

bool Scheduler::reads_to_plan(const LiveBlock& block) const {
  return shared_.dataset.sources[static_cast<size_t>(block.source)]->reads_to_plan();
}

// Has blocks planned that were not yet. Where planning reads the rows, as far as the memory for rows goes; how much a
// block has is known when it is planned, so it counts as the largest so far. The first one that waits is planned in any
// case when no rows are about to be decoded, so that batches always go on.
void Scheduler::ask_for_plans() {
  const int64_t limit = shared_.dataset.memory.rows->limit_bytes();
  for (const BlockPtr& block : without_memory_) {
    if (block->is_asked) continue;
    if (reads_to_plan(*block)) {
      const int64_t expected = most_rows_ > 0 ? most_rows_ : limit;
      const bool must_go_on = block == without_memory_.front() && row_blocks_decoding_ == 0;
      if (rows_held_ + expected > limit && !must_go_on) continue;
      rows_read(*block, expected);
    }
    block->is_asked = true;
    planners_[static_cast<size_t>(block->source)]->add(
        block->order, block->place.lane, block->place.block,
        [this, block](Result<PlannedBlock> plan) { planned(block, std::move(plan)); });
  }
}

// The block's part of the rows that are held.
void Scheduler::rows_read(LiveBlock& block, int64_t bytes) {
  rows_held_ += bytes - block.rows_bytes;
  block.rows_bytes = bytes;
}

// Epochs of a source and rows of a lane are taken in order, so a block before the one that a lane has reached is not
// needed again.
void Scheduler::forget_passed_blocks(const Job& job) {
  const auto forget = [this](const BlockKey& from, const BlockKey& until)
                          REQUIRES_LOCK(mutex_) { live_.erase(live_.lower_bound(from), live_.lower_bound(until)); };
  for (const auto& [source, epoch, order] : job.step.orders) {
    Reached& reached = reached_[static_cast<size_t>(source)];
    if (reached.epoch >= epoch) continue;  // an earlier one fills up the last batch
    forget({source, 0, 0, 0}, {source, epoch, 0, 0});
    reached.epoch = epoch;
    reached.blocks.clear();
  }
  for (const OrderCursor::Step::Unit& unit : job.step.units) {
    if (unit.kind != OrderCursor::Step::Unit::Kind::kGiven) continue;
    const auto& [source, epoch, order] = job.step.orders[unit.order];
    Reached& reached = reached_[static_cast<size_t>(source)];
    if (reached.epoch != epoch) continue;  // the end of the epoch before
    const auto lane = static_cast<size_t>(unit.place.lane);
    if (reached.blocks.size() <= lane) reached.blocks.resize(lane + 1);
    if (reached.blocks[lane] >= unit.place.block) continue;
    reached.blocks[lane] = unit.place.block;
    forget({source, epoch, unit.place.lane, 0}, {source, epoch, unit.place.lane, unit.place.block});
  }
}

void Scheduler::planned(const BlockPtr& block, Result<PlannedBlock> plan) {
  Reads reads;
  std::vector<JobPtr> collatable;
  {
    MutexLock lock(mutex_);
    if (is_stopped_) return;
    if (plan) {
      block->plan = std::move(*plan);
    } else {
      block->error = std::move(plan).error();
    }
    if (reads_to_plan(*block)) {
      rows_read(*block, block->plan ? block->plan->block->bytes() : 0);
      most_rows_ = std::max(most_rows_, block->rows_bytes);
    }
    reads = give_memory();
    collatable = take_collatable();
  }
  submit(std::move(collatable));
  reader_->add(std::move(reads));
}

// Gives memory to the blocks that wait for it, in order, as far as it goes.
Scheduler::Reads Scheduler::give_memory() {
  Reads reads;
  is_memory_full_ = false;
  while (!without_memory_.empty()) {
    const BlockPtr block = without_memory_.front();
    if (!block->plan && !block->error) break;
    if (block->plan) {
      const int64_t bytes = block->plan->block->bytes();
      BufferPool& pool = *shared_.dataset.memory.blocks;
      auto arena = try_acquire_common(pool, static_cast<size_t>(bytes));
      const bool is_stuck = arena && !*arena && !may_memory_come(*block);
      if (is_stuck && evict_idle_blocks()) continue;
      if (arena && *arena) {
        block->plan->block->set_arena(std::move(*arena));
        block->has_memory = true;
        append_reads(block, reads);
      } else if (arena && !is_stuck) {
        is_memory_full_ = true;
        break;
      } else {
        block->error = no_memory(fmt::format("one batch needs more than the {} that the loader may read ahead (lane "
                                             "blocks of about {}); raise memory_bytes",
                                             format_bytes(pool.limit_bytes()), format_bytes(bytes)))
                           .value();
      }
    }
    without_memory_.pop_front();
    if (block->error) {
      if (block->plan) block->plan->runs.clear();
      rows_read(*block, 0);
    }
    if (block->error || block->runs_left == 0) block_ready(*block);
  }
  ask_for_plans();
  return reads;
}

// Whether a job before the one that needs the block is still to be collated, or any job that has all it needs: a block
// that replaces another one may be asked for after those of later jobs.
bool Scheduler::may_memory_come(const LiveBlock& block) {
  const auto first = std::ranges::find_if(jobs_, [](const JobPtr& job) { return !job->is_done; });
  if (first == jobs_.end()) return false;
  return (*first)->number < block.first_job ||
         std::any_of(
             first, jobs_.end(), [this](const JobPtr& job) REQUIRES_LOCK(mutex_) { return goes_on_by_itself(*job); });
}

bool Scheduler::goes_on_by_itself(const Job& job) {
  return !job.is_done && std::ranges::all_of(job.units, [](const Job::Unit& unit) {
    return unit.block == nullptr || unit.block->is_ready || unit.block->has_memory;
  });
}

// Blocks that only a later batch needs are read again then. A mixture with many datasets, or one whose dataset is
// paused, may have more blocks begun than memory holds. False where there is none.
bool Scheduler::evict_idle_blocks() {
  return std::erase_if(live_, [](const auto& entry) { return entry.second.use_count() == 1; }) > 0;
}

void Scheduler::append_reads(const BlockPtr& block, Reads& reads) {
  PlannedBlock& plan = *block->plan;
  block->runs_left = std::ssize(plan.runs);
  if (block->runs_left > 0 && reads_to_plan(*block)) ++row_blocks_decoding_;
  const order::SampleSource& source = *shared_.dataset.sources[static_cast<size_t>(block->source)];
  const Block::Decoding decoding{source.ids_field(), shared_.options.vocab_size, shared_.options.fields.get()};
  for (int64_t number = 0; number < block->runs_left; ++number) {
    reads.push_back({std::move(plan.runs[static_cast<size_t>(number)]), block->priority,
                     [this, block = block, number, decoding](order::SampleRun& run, Status read) mutable {
                       Block& ids = *block->plan->block;
                       if (read) {
                         ids.decode(number, run, decoding, shared_.metrics);
                       } else {
                         ids.set_failed(number, std::move(read).error());
                       }
                       run_decoded(std::move(block));
                     }});
  }
  plan.runs.clear();
}

// Takes the reference to the block, so that none is left in a task when a job gives up its own.
void Scheduler::run_decoded(BlockPtr block) {
  std::vector<JobPtr> collatable;
  {
    MutexLock lock(mutex_);
    if (--block->runs_left == 0 && !is_stopped_) {
      if (reads_to_plan(*block)) --row_blocks_decoding_;
      rows_read(*block, 0);
      ask_for_plans();
      block_ready(*block);
      collatable = take_collatable();
    }
    block.reset();
  }
  submit(std::move(collatable));
}

void Scheduler::block_ready(LiveBlock& block) {
  block.is_ready = true;
  for (const JobPtr& job : block.waiting) {
    if (--job->blocks_left == 0) collatable_.push_back(job);
  }
  block.waiting.clear();
}

// The jobs that wait for a worker. The caller gives them to submit() without the lock: that wakes a thread for each.
std::vector<Scheduler::JobPtr> Scheduler::take_collatable() {
  if (is_stopped_) collatable_.clear();
  if (!collatable_.empty()) ++submissions_;
  return std::exchange(collatable_, {});
}

void Scheduler::submit(std::vector<JobPtr> jobs) {
  if (jobs.empty()) return;
  for (JobPtr& job : jobs) {
    const int priority = job->priority();
    workers_->submit([this, job = std::move(job)] { collate(job); }, priority);
  }
  if (--submissions_ == 0) submissions_.notify_all();
}

// For a caller that is about to wait. Lets go of the lock meanwhile.
void Scheduler::submit_now() {
  std::vector<JobPtr> jobs = take_collatable();
  mutex_.unlock();
  submit(std::move(jobs));
  mutex_.lock();
}

namespace {

// What is wrong with the data, and will be so the next time.
bool is_damage(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kCorruption:
    case ErrorCode::kNotFound:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfRange:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The units of a job whose blocks are ready that must be replaced, with what is wrong with each.
std::vector<std::pair<size_t, Error>> Scheduler::damaged_units(const Job& job) const {
  std::vector<std::pair<size_t, Error>> damaged;
  for (size_t row = 0; row < job.units.size(); ++row) {
    const Job::Unit& unit = job.units[row];
    if (unit.block == nullptr) continue;
    if (carries_places()) {
      if (auto reason = shared_.rejected.find(unit.place)) {
        damaged.emplace_back(row, Error(ErrorCode::kCorruption, *std::move(reason)));
        continue;
      }
    }
    if (unit.block->error) {
      if (is_damage(*unit.block->error)) damaged.emplace_back(row, *unit.block->error);
      continue;
    }
    if (unit.damage) damaged.emplace_back(row, *unit.damage);
    const Block& block = *unit.block->plan->block;
    if (unit.damage || !block.is_damaged()) continue;
    const Status status = block.check(unit.index, shared_.options.pack_seq_len());
    if (!status && is_damage(status.error())) damaged.emplace_back(row, status.error());
  }
  return damaged;
}

// False when the job waits for the blocks of what replaces its damaged units; it is collated once they are ready.
bool Scheduler::replace_damaged(const JobPtr& job) {
  if (shared_.options.on_bad != OnBad::kQuarantine) return true;
  for (;;) {
    const auto damaged = damaged_units(*job);
    if (damaged.empty()) return true;
    MutexLock lock(mutex_);
    if (is_stopped_) return false;
    for (const auto& [row, damage] : damaged) replace(job, row, damage);
    if (job->error) return true;
    if (job->blocks_left > 0) return false;
  }
}

void Scheduler::replace(const JobPtr& job, size_t row, const Error& damage) {
  const OrderCursor::Step::Unit& asked = job->step.units[row];
  const auto& [source, epoch, order] = job->step.orders[asked.order];
  Job::Unit& unit = job->units[row];
  if (unit.replacements == 0) {
    unit.in_ledger = job->quarantined.size();
    job->quarantined.push_back({.source = source,
                                .epoch = epoch,
                                .lane = asked.place.lane,
                                .block = asked.place.block,
                                .index = asked.place.index,
                                .reason = damage.message()});
  }
  unit.damage.reset();
  unit.sample.reset();
  const auto place = order->replacement(asked.place, unit.replacements++);
  job->quarantined[unit.in_ledger].attempts = unit.replacements;
  if (!place) {
    job->error = Error(damage.code(), fmt::format("{}; {} other rows that could take its place are damaged too",
                                                  job->quarantined[unit.in_ledger].reason, unit.replacements - 1));
    return;
  }
  // The first ones are in the same block, which live_ may have forgotten.
  if (unit.replacements > order::EpochOrder::kReplacementsInBlock) unit.block = live_block(*job, asked.order, *place);
  unit.index = place->index;
  unit.place = place_of(job->step, asked.order, *place);
  wait_for(job, unit.block);
  // Before the blocks of later jobs: those may hold memory until this job is done.
  if (const auto at = std::ranges::find(without_memory_, unit.block); at != without_memory_.end()) {
    without_memory_.erase(at);
    without_memory_.push_front(unit.block);
    unit.block->first_job = std::min(unit.block->first_job, job->number);
  }
  ask_for_plans();
}

// Errors: those of the newest damage, when there is too much.
Status Scheduler::check_quarantine(const Job& job) {
  const int64_t shards = std::ssize(shared_.dataset.damaged_shards);
  const int64_t bad = std::ssize(quarantined_) + std::ssize(job.quarantined);
  if (job.quarantined.empty() || bad + shards <= shared_.options.max_bad) return {};
  return fail(ErrorCode::kCorruption, "{} damaged rows{} were quarantined, max_bad is {}; the newest: {}", bad,
              shards > 0 ? fmt::format(" and {} shards", shards) : "", shared_.options.max_bad,
              job.quarantined.back().reason);
}

void Scheduler::keep_quarantined(const Job& job) {
  constexpr int64_t kLogged = 10;
  for (const order::QuarantinedUnit& unit : job.quarantined) {
    quarantined_.push_back(unit);
    const int64_t count = std::ssize(quarantined_);
    if (count <= kLogged) log(LogLevel::kWarning, "quarantined, another row takes its place: {}", unit.reason);
    if (count == kLogged) log(LogLevel::kWarning, "further quarantined rows are in the loader's state only");
  }
}

// Decodes the samples of a job whose blocks are ready. False when one that was read does not decode and gives its place
// to another.
bool Scheduler::decode_samples(Job& job) {
  if (!shared_.options.has_fields() || job.error) return true;
  MetricTimer timer(shared_.metrics, Metric::kDecodeSeconds);
  bool are_sound = true;
  for (Job::Unit& unit : job.units) {
    if (unit.block == nullptr || unit.sample != nullptr) continue;
    if (unit.block->error || !unit.block->plan->block->check(unit.index, 0)) continue;  // make_batch says so
    const Block::StoredRecord record = unit.block->plan->block->record(unit.index);
    auto sample = decode_sample(record.bytes, record.source, *shared_.options.fields);
    if (sample) {
      unit.sample = std::make_shared<const DecodedSample>(std::move(*sample));
      continue;
    }
    unit.damage = std::move(sample).error();
    if (shared_.options.on_bad == OnBad::kQuarantine && is_damage(*unit.damage)) are_sound = false;
  }
  return are_sound;
}

void Scheduler::collate(const JobPtr& job) {
  do {
    if (!replace_damaged(job)) return;
  } while (!decode_samples(*job));
  auto batch = make_batch(*job);
  Reads reads;
  std::vector<JobPtr> collatable;
  bool goes_on = false, is_announced = false;
  {
    MutexLock lock(mutex_);
    if (batch) {
      job->batch = std::move(*batch);
    } else if (!job->error) {
      job->error = std::move(batch).error();
    }
    job->is_done = true;
    is_announced = is_to_be_announced();
    job->units.clear();  // may free blocks, whose memory others wait for
    goes_on = !is_stopped_;
    if (goes_on) {
      reads = give_memory();
      schedule_ahead();
      collatable = take_collatable();
    }
  }
  if (is_announced) changed_.notify_all();  // without the lock, for which next() would wait at once
  submit(std::move(collatable));
  if (goes_on) reader_->add(std::move(reads));
}

Result<Batch> Scheduler::make_batch(const Job& job) {
  if (shared_.options.has_fields()) {
    auto batch = make_sample_batch(job);
    if (!batch) return tl::unexpected(as_final(std::move(batch).error()));
    return with_place(std::move(*batch), job);
  }
  const int64_t pack_seq_len = shared_.options.pack_seq_len();
  auto batch = shared_.maker.make(std::ssize(job.units), [&](int64_t row, std::vector<Piece>& pieces) -> Status {
    const Job::Unit& unit = job.units[static_cast<size_t>(row)];
    if (unit.block == nullptr) return {};  // a row of padding
    if (unit.block->error) return tl::unexpected(*unit.block->error);
    return unit.block->plan->block->pieces(unit.index, pack_seq_len, pieces);
  });
  if (!batch) return tl::unexpected(as_final(std::move(batch).error()));
  return with_place(std::move(*batch), job);
}

Result<Batch> Scheduler::make_sample_batch(const Job& job) {
  std::vector<const DecodedSample*> rows;
  for (const Job::Unit& unit : job.units) {
    if (unit.block != nullptr && unit.sample == nullptr) {
      if (unit.block->error) return tl::unexpected(*unit.block->error);
      if (unit.damage) return tl::unexpected(*unit.damage);
      RETURN_IF_ERROR(unit.block->plan->block->check(unit.index, 0));
    }
    rows.push_back(unit.sample.get());
  }
  return shared_.maker.make(rows);
}

// Says where in the order the batch is.
Batch Scheduler::with_place(Batch batch, const Job& job) const {
  batch.epoch = job.step.epoch;
  batch.position = job.step.position;
  batch.next_position = job.step.next_position;
  if (carries_places()) {
    for (const Job::Unit& unit : job.units) batch.places.push_back(unit.place);
  }
  if (shared_.options.fill_last != FillLast::kNothing) {
    for (const auto& unit : job.step.units) {
      batch.row_mask.push_back(unit.kind == OrderCursor::Step::Unit::Kind::kGiven ? 1 : 0);
    }
  }
  if (shared_.options.is_mixture()) {
    for (const auto& unit : job.step.units) {
      const bool is_padding = unit.kind == OrderCursor::Step::Unit::Kind::kPadding;
      batch.sources.push_back(is_padding ? -1 : job.step.orders[unit.order].source);
    }
  }
  return batch;
}

void Scheduler::stop() {
  MutexLock stopping(stopping_);
  {
    MutexLock lock(mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
    changed_.notify_all();
  }
  stop_.request_stop();
  planners_.clear();  // they call planned(), which uses the reader
  reader_->stop();    // its reads give work to the workers
  for (int left = submissions_; left > 0; left = submissions_) submissions_.wait(left);
  workers_.reset();
  reader_.reset();
  MutexLock lock(mutex_);
  for (const JobPtr& job : jobs_) job->units.clear();  // a job and a block that it waits for hold each other
  jobs_.clear();
  jobs_done_ = 0;
  collatable_.clear();
  live_.clear();
  without_memory_.clear();
}

}  // namespace millrace::loader
