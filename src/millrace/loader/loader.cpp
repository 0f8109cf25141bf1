// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/loader.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/executor.h"
#include "millrace/base/log.h"
#include "millrace/base/units.h"
#include "millrace/loader/block.h"
#include "millrace/loader/shard_source.h"

// How a batch comes to be. The scheduler (schedule_ahead) walks the order, batch by batch; for each it finds the blocks
// its units lie in, plans those that are not in memory yet and queues their windows. When the last window of the last
// block of a batch is decoded, the batch is collated; next() takes batches from the front of the queue. Everything that
// is read ahead is bounded twice: by `depth_` batches, and by the pools, which hold all ids and all batches. A block
// lives as long as a batch in the queue refers to it or the scheduler may still need it.

namespace millrace::loader {

namespace detail {

struct Unit {
  std::shared_ptr<Block> block;
  int64_t index = 0;
};

// A batch on its way.
struct Job {
  int64_t number = 0;
  uint64_t epoch = 0;
  int64_t position = 0;
  int64_t count = 0;               // positions of the global batch
  bool scheduled = false;          // every unit has its block
  std::vector<int64_t> positions;  // of this rank
  std::vector<Unit> units;
  int64_t blocks_left = 0;  // blocks that are not decoded yet
  bool done = false;
  std::optional<Error> error;
  Batch batch;
};

// What is known of a block while it is in memory. Guarded by the loader's mutex.
struct LiveBlock {
  std::shared_ptr<Block> block;
  int64_t windows_left = 0;
  std::vector<std::shared_ptr<Job>> waiting;
};

struct BatchMemory {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
};

}  // namespace detail

using detail::BatchMemory;
using detail::Job;
using detail::LiveBlock;
using detail::Unit;

namespace {

constexpr int64_t kMaxDepth = 64;
constexpr int64_t kMaxEpochs = 1'000'000;
constexpr int64_t kKeptByUser = 2;  // batches the user is expected to hold at once: the last one and the one before

// Earlier batches first.
int priority_of(const Job& job) {
  return static_cast<int>(-(job.number % (1 << 30)));
}

int default_threads() {
  return std::clamp(available_cpus() / local_ranks(), 1, 8);
}

int64_t default_memory(const MemoryBudget& budget) {
  return std::min<int64_t>(1 << 30, budget.cap_bytes() / 4);
}

tl::unexpected<Error> closed_error() {
  return fail(ErrorCode::kCancelled, "the loader is closed");
}

tl::unexpected<Error> endless_error() {
  return fail(ErrorCode::kInvalidArgument,
              "an endless loader has no passes; give epochs, the number of them in a pass");
}

}  // namespace

struct Loader::Impl {
  explicit Impl(const LoaderOptions& loader_options)
      : options(loader_options),
        global_batch(options.global_batch_size > 0 ? options.global_batch_size
                                                   : options.batch_size * options.world_size),
        generation(fork_generation()) {}

  ~Impl() { stop_threads(); }

  Status ensure_open();
  Status open() REQUIRES_LOCK(opening);
  Result<std::shared_ptr<const order::WindowTable>> cut_windows(int64_t window_samples) const;
  Status move_to(const order::OrderState& state) REQUIRES_LOCK(opening);
  Status check_order(const order::OrderState& state) REQUIRES_LOCK(opening);
  Status reserve_memory() REQUIRES_LOCK(opening);
  Result<int64_t> units_of(uint64_t number) REQUIRES_LOCK(mutex);
  Result<int64_t> batches_of(uint64_t pass) REQUIRES_LOCK(mutex);
  Status start_epoch(uint64_t number) REQUIRES_LOCK(mutex);
  void schedule_ahead() REQUIRES_LOCK(mutex);
  bool schedule_next() REQUIRES_LOCK(mutex);
  bool begin_job() REQUIRES_LOCK(mutex);
  Result<LiveBlock*> live_block(const order::EpochOrder::Place& place) REQUIRES_LOCK(mutex);
  void forget_passed_blocks(const Job& job) REQUIRES_LOCK(mutex);
  void fail_job(const std::shared_ptr<Job>& job, Error error) REQUIRES_LOCK(mutex);
  void window_done(const std::shared_ptr<LiveBlock>& block);
  void submit_collate(const std::shared_ptr<Job>& job) REQUIRES_LOCK(mutex);
  void collate(const std::shared_ptr<Job>& job);
  Result<Batch> make_batch(const Job& job);
  BatchMemory batch_memory(int64_t bytes);
  void restart();
  void stop_threads();
  void take_over(const Impl& parent);

  bool is_whole(int64_t count) const { return count == global_batch || (!options.drop_last && count > 0); }
  int64_t pack_seq_len() const { return options.collate == Collate::kPack ? options.seq_len : 0; }
  int64_t row_bytes() const {
    return options.seq_len * static_cast<int64_t>(id_bytes(options.id_type) * batch_arrays(options.collate).size());
  }

  const LoaderOptions options;
  const int64_t global_batch;
  const uint64_t generation;
  Metrics metrics;

  Mutex opening;  // while the dataset is opened, or the loader moved to another state; taken before `mutex`
  std::atomic<bool> opened{false};
  std::atomic<bool> closed{false};
  std::optional<order::OrderState> resume GUARDED_BY(opening);  // of the parent, in a child after a fork

  // Set by open(), constant afterwards.
  std::unique_ptr<ShardSource> source;
  std::unique_ptr<BufferPool> block_pool, batch_pool;
  int64_t most_batches = 2;  // that fit the batch pool beside what the user keeps
  std::string field;

  Mutex mutex;
  CondVar changed;
  order::OrderState at GUARDED_BY(mutex);  // behind the batch that next() returned last
  std::shared_ptr<const order::WindowTable> windows GUARDED_BY(mutex);
  uint64_t starts GUARDED_BY(mutex) = 0;  // of the threads
  int64_t to_skip GUARDED_BY(mutex) = 0;  // global batches that are passed over before the next one
  std::stop_source stop GUARDED_BY(mutex);
  std::shared_ptr<const order::EpochOrder> order GUARDED_BY(mutex);
  uint64_t epoch GUARDED_BY(mutex) = 0;
  int64_t position GUARDED_BY(mutex) = 0;  // the next global batch to schedule
  bool ended GUARDED_BY(mutex) = false;
  int64_t job_number GUARDED_BY(mutex) = 0;
  std::deque<std::shared_ptr<Job>> queue GUARDED_BY(mutex);
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<LiveBlock>> live GUARDED_BY(mutex);  // by (lane, block)
  std::atomic<int64_t> depth{2};
  std::atomic<bool> warned_copies{false};
  // Last: its threads use everything above. There is one unless `stop` was requested.
  std::unique_ptr<Executor> executor GUARDED_BY(mutex);
};

// Without the parent's lock, which nobody would release.
MILLRACE_ANNOTATE(no_thread_safety_analysis)
void Loader::Impl::take_over(const Impl& parent) {
  if (parent.opened) resume = parent.at;
}

Status Loader::Impl::ensure_open() {
  if (opened) return {};
  MutexLock lock(opening);
  if (opened) return {};
  RETURN_IF_ERROR(open());
  if (resume) {
    RETURN_IF_ERROR(move_to(*resume));
  } else {
    restart();
  }
  opened = true;
  return {};
}

Status Loader::Impl::open() {
  ShardSourceOptions source_options;
  source_options.urls = options.shards;
  source_options.ids_field = options.ids_field;
  source_options.threads = options.threads;
  source_options.tokenizer_hash = options.tokenizer_hash;
  source_options.vocab_size = options.vocab_size;
  ASSIGN_OR_RETURN(source, open_shard_source(source_options, metrics));
  field = source->ids_field();

  const auto shard_samples = source->shard_samples();
  int64_t samples = 0;
  for (const int64_t n : shard_samples) samples += n;
  if (samples == 0) return fail(ErrorCode::kInvalidArgument, "{}: no samples", source->name());
  ASSIGN_OR_RETURN(const int64_t tokens, source->total_tokens());
  order::OrderOptions wanted = options.order;
  wanted.pack_seq_len = pack_seq_len();
  const order::OrderOptions resolved = order::resolve_options(wanted, samples, tokens);
  ASSIGN_OR_RETURN(auto cut, cut_windows(resolved.window_samples));
  RETURN_IF_ERROR(reserve_memory());
  MutexLock lock(mutex);
  at.source = source->identity();
  at.options = resolved;
  windows = std::move(cut);
  return {};
}

Status Loader::Impl::reserve_memory() {
  const auto budget = MemoryBudget::process();
  const int64_t memory = options.memory_bytes > 0 ? options.memory_bytes : default_memory(*budget);
  const int64_t rank_rows = (global_batch + options.world_size - 1) / options.world_size;
  const int64_t batch_bytes = (rank_rows * row_bytes() + 4095) / 4096 * 4096;
  const int64_t wanted_batches = std::min(kMaxDepth, std::max<int64_t>(memory / 4 / batch_bytes, 4)) + kKeptByUser;
  const int64_t for_batches = wanted_batches * batch_bytes;
  if (for_batches >= memory) {
    return no_memory(
        fmt::format("the loader's memory of {} does not hold its batches ({} each); raise memory_bytes to {} or more",
                    format_bytes(memory), format_bytes(batch_bytes), format_bytes(for_batches * 2)));
  }
  most_batches = wanted_batches - kKeptByUser;
  ASSIGN_OR_RETURN(batch_pool, BufferPool::reserve(*budget, "loader batches", for_batches));
  ASSIGN_OR_RETURN(block_pool, BufferPool::reserve(*budget, "loader read-ahead", memory - for_batches));
  return {};
}

// The windows of `window_samples` each. When packing their tokens decide where rows lie, so all lengths are read, once.
Result<std::shared_ptr<const order::WindowTable>> Loader::Impl::cut_windows(int64_t window_samples) const {
  const auto shard_samples = source->shard_samples();
  const bool packed = pack_seq_len() > 0;
  ASSIGN_OR_RETURN(auto table, order::WindowTable::create(shard_samples, window_samples, packed));
  if (packed) {
    std::vector<Status> read(shard_samples.size());
    Executor readers(options.threads, "mr-open");
    parallel_for(readers, static_cast<int64_t>(read.size()), [&](int64_t shard) {
      read[static_cast<size_t>(shard)] = source->window_tokens(shard, window_samples, table.shard_tokens(shard));
    });
    for (const Status& status : read) RETURN_IF_ERROR(status);
  }
  return std::make_shared<const order::WindowTable>(std::move(table));
}

// Errors: invalid_argument, naming what differs between `state` and this loader.
Status Loader::Impl::check_order(const order::OrderState& state) {
  std::string differs;
  const auto compare = [&](std::string_view what, const auto& there, const auto& here) {
    if (there != here) differs += fmt::format(" {} is {} in the state and {} here;", what, there, here);
  };
  compare("the dataset", state.source, source->identity());
  compare("seed", state.options.seed, options.order.seed);
  compare("shuffle", state.options.shuffle, options.order.shuffle);
  compare("packed seq_len", state.options.pack_seq_len, pack_seq_len());
  if (differs.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "this loader state belongs to another order:{}", differs);
}

// Forgets what was read ahead; the next batch is the one that `state` names. A thread that waits in next() goes on
// waiting, for that batch.
Status Loader::Impl::move_to(const order::OrderState& state) {
  RETURN_IF_ERROR(check_order(state));
  bool same_windows = false;
  {
    MutexLock lock(mutex);
    same_windows = state.options.window_samples == at.options.window_samples;
  }
  // Another version may have chosen other windows: they are the state's, so that the order goes on as it was.
  std::shared_ptr<const order::WindowTable> cut;
  if (!same_windows) {
    ASSIGN_OR_RETURN(cut, cut_windows(state.options.window_samples));
  }
  stop_threads();
  {
    MutexLock lock(mutex);
    at = state;
    if (cut != nullptr) windows = std::move(cut);
  }
  restart();
  return {};
}

Result<int64_t> Loader::Impl::units_of(uint64_t number) {
  if (order != nullptr && epoch == number) return order->units();
  if (at.options.pack_seq_len == 0) {
    const auto samples = source->shard_samples();
    return std::accumulate(samples.begin(), samples.end(), int64_t{0});
  }
  ASSIGN_OR_RETURN(const auto other, order::EpochOrder::create(windows, at.options, number));
  return other.units();
}

Result<int64_t> Loader::Impl::batches_of(uint64_t pass) {
  const bool all_equal = at.options.pack_seq_len == 0;
  const int64_t different = all_equal ? 1 : options.epochs;
  int64_t batches = 0;
  for (int64_t i = 0; i < different; ++i) {
    ASSIGN_OR_RETURN(const int64_t units,
                     units_of(pass * static_cast<uint64_t>(options.epochs) + static_cast<uint64_t>(i)));
    batches += options.drop_last ? units / global_batch : (units + global_batch - 1) / global_batch;
  }
  return all_equal ? batches * options.epochs : batches;
}

Status Loader::Impl::start_epoch(uint64_t number) {
  ASSIGN_OR_RETURN(auto made, order::EpochOrder::create(windows, at.options, number));
  order = std::make_shared<const order::EpochOrder>(std::move(made));
  epoch = number;
  live.clear();
  return {};
}

void Loader::Impl::schedule_ahead() {
  while (!ended && static_cast<int64_t>(queue.size()) < std::min(depth.load(), most_batches) && schedule_next()) {
  }
}

// Makes the job at the back of the queue whole, or starts the next one. False when it has to wait for memory.
bool Loader::Impl::schedule_next() {
  if ((queue.empty() || queue.back()->scheduled) && !begin_job()) return false;
  const std::shared_ptr<Job> job = queue.back();
  while (job->units.size() < job->positions.size()) {
    const auto place = order->place(job->positions[job->units.size()]);
    auto found = live_block(place);
    if (!found) {
      fail_job(job, std::move(found).error());
      return false;
    }
    if (*found == nullptr) return false;
    LiveBlock& block = **found;
    job->units.push_back({block.block, place.index});
    const bool counted = !block.waiting.empty() && block.waiting.back() == job;
    if (block.windows_left > 0 && !counted) {
      block.waiting.push_back(job);
      ++job->blocks_left;
    }
  }
  job->scheduled = true;
  forget_passed_blocks(*job);
  position = job->position + job->count;
  if (job->blocks_left == 0) submit_collate(job);
  return true;
}

// False at the end of a pass, and on an error, which the job at the back then carries.
bool Loader::Impl::begin_job() {
  auto job = std::make_shared<Job>();
  for (;;) {
    const int64_t left = order == nullptr ? 0 : order->units() - position;
    job->count = std::min(global_batch, left);
    if (order != nullptr && is_whole(job->count)) {
      if (to_skip == 0) break;
      --to_skip;
      position += job->count;
      continue;
    }
    const uint64_t next = order == nullptr ? epoch : epoch + 1;
    if (options.epochs > 0 && order != nullptr && next % static_cast<uint64_t>(options.epochs) == 0) {
      ended = true;
      changed.notify_all();
      return false;
    }
    const bool first = order == nullptr;
    Status started = start_epoch(next);
    if (!first) position = 0;
    if (started && options.drop_last && order->units() < global_batch) {
      started = fail(ErrorCode::kInvalidArgument,
                     "an epoch has {} rows, fewer than the global batch of {}; use drop_last=False or a smaller batch",
                     order->units(), global_batch);
    }
    if (!started) {
      queue.push_back(job);
      fail_job(job, std::move(started).error());
      return false;
    }
  }
  to_skip = options.step_stride - 1;
  job->number = job_number++;
  job->epoch = epoch;
  job->position = position;
  job->positions = order::rank_positions(*order, position, job->count, options.rank, options.world_size);
  queue.push_back(std::move(job));
  return true;
}

// The block of a place, planned and queued when it is new; nullptr when its memory is not free yet.
Result<LiveBlock*> Loader::Impl::live_block(const order::EpochOrder::Place& place) {
  const std::pair key{place.lane, place.block};
  if (const auto found = live.find(key); found != live.end()) return found->second.get();
  ASSIGN_OR_RETURN(auto planned, Block::plan(*source, order->block(place.lane, place.block),
                                             order->permutation(place.lane, place.block)));
  ASSIGN_OR_RETURN(Buffer arena, block_pool->try_acquire(static_cast<size_t>(planned->bytes())));
  if (!arena) {
    const bool others_will_free = std::any_of(queue.begin(), queue.end(), [&](const auto& j) { return j->scheduled; });
    if (others_will_free) return nullptr;
    return no_memory(
        fmt::format("one batch needs more than the {} that the loader may read ahead (lane blocks of about {}); raise "
                    "memory_bytes",
                    format_bytes(block_pool->limit_bytes()), format_bytes(planned->bytes())));
  }
  planned->set_arena(std::move(arena));
  planned->set_id_limit(options.vocab_size);
  auto block = std::make_shared<LiveBlock>();
  block->block = std::move(planned);
  block->windows_left = block->block->windows();
  const int priority = priority_of(*queue.back());
  for (int64_t window = 0; window < block->block->windows(); ++window) {
    executor->submit(
        [this, block, window, token = stop.get_token()] {
          block->block->decode_window(*source, window, field, token, metrics);
          window_done(block);
        },
        priority);
  }
  return (live[key] = std::move(block)).get();
}

// Rows of a lane are taken in order, so a block before the one a lane has reached is not needed again.
void Loader::Impl::forget_passed_blocks(const Job& job) {
  std::map<int64_t, int64_t> reached;
  for (const int64_t p : job.positions) {
    const auto place = order->place(p);
    reached[place.lane] = std::max(reached[place.lane], place.block);
  }
  for (const auto& [lane, block] : reached) {
    live.erase(live.lower_bound({lane, 0}), live.lower_bound({lane, block}));
  }
}

// An error of planning: nothing is read behind it; load_state starts again.
void Loader::Impl::fail_job(const std::shared_ptr<Job>& job, Error error) {
  job->error = std::move(error);
  job->done = true;
  job->scheduled = true;
  job->units.clear();
  ended = true;
  changed.notify_all();
}

void Loader::Impl::window_done(const std::shared_ptr<LiveBlock>& block) {
  MutexLock lock(mutex);
  if (--block->windows_left > 0 || stop.stop_requested()) return;
  for (const std::shared_ptr<Job>& job : block->waiting) {
    if (--job->blocks_left == 0 && job->scheduled) submit_collate(job);
  }
  block->waiting.clear();
}

void Loader::Impl::submit_collate(const std::shared_ptr<Job>& job) {
  executor->submit([this, job] { collate(job); }, priority_of(*job));
}

void Loader::Impl::collate(const std::shared_ptr<Job>& job) {
  auto batch = make_batch(*job);
  MutexLock lock(mutex);
  if (batch) {
    job->batch = std::move(*batch);
  } else {
    job->error = std::move(batch).error();
  }
  job->done = true;
  job->units.clear();  // may free blocks, whose memory schedule_ahead can use
  changed.notify_all();
  if (!stop.stop_requested()) schedule_ahead();
}

Result<Batch> Loader::Impl::make_batch(const Job& job) {
  MetricTimer timer(metrics, Metric::kCollateSeconds);
  Batch batch;
  batch.rows = static_cast<int64_t>(job.units.size());
  batch.seq_len = options.seq_len;
  batch.type = options.id_type;
  batch.epoch = job.epoch;
  batch.position = job.position;
  batch.next_position = job.position + job.count;
  const auto specs = batch_arrays(options.collate);
  const int64_t array_bytes = batch.rows * options.seq_len * static_cast<int64_t>(id_bytes(options.id_type));
  const BatchMemory memory = batch_memory(array_bytes * static_cast<int64_t>(specs.size()));
  batch.memory = memory.owner;
  std::vector<std::byte*> arrays;
  for (size_t i = 0; i < specs.size(); ++i) {
    arrays.push_back(memory.data + static_cast<int64_t>(i) * array_bytes);
    batch.arrays.push_back({specs[i].name, arrays.back()});
  }
  std::vector<Piece> pieces;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const Unit& unit = job.units[static_cast<size_t>(row)];
    pieces.clear();
    RETURN_IF_ERROR(unit.block->pieces(unit.index, pack_seq_len(), pieces));
    collate_row(options.collate, options.id_type, pieces, options.seq_len, options.pad_id, row, arrays);
    int64_t tokens = 0;
    for (const Piece& piece : pieces) tokens += static_cast<int64_t>(piece.ids.size());
    batch.tokens += std::min(tokens, options.seq_len);
    if (tokens > options.seq_len) metrics.add(Metric::kTruncatedTokens, tokens - options.seq_len);
  }
  return batch;
}

// Of the pool, or, when the user holds more batches than it expects, ordinary memory: next() never blocks for it.
BatchMemory Loader::Impl::batch_memory(int64_t bytes) {
  auto pooled = batch_pool->try_acquire(static_cast<size_t>(bytes));
  if (pooled && *pooled) {
    auto owner = std::make_shared<Buffer>(std::move(*pooled));
    std::byte* const data = owner->data();
    return {std::move(owner), data};
  }
  metrics.add(Metric::kBatchCopies, 1);
  if (!warned_copies.exchange(true)) {
    log(LogLevel::kWarning,
        "more than {} batches are kept at once; further ones take new memory beyond memory_bytes. Copy what you keep, "
        "or "
        "raise memory_bytes",
        most_batches + kKeptByUser);
  }
  auto owner = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  std::byte* const data = owner->data();
  return {std::move(owner), data};
}

void Loader::Impl::stop_threads() {
  if (generation != fork_generation()) return;
  std::unique_ptr<Executor> ending;
  {
    MutexLock lock(mutex);
    stop.request_stop();
    ending = std::move(executor);
    changed.notify_all();
  }
  ending.reset();
  MutexLock lock(mutex);
  queue.clear();
  live.clear();
}

// Threads anew, which begin with the batch that `at` names. REQUIRES: there are none.
void Loader::Impl::restart() {
  MutexLock lock(mutex);
  if (closed) return;
  stop = std::stop_source();
  order.reset();
  epoch = at.epoch;
  position = at.position;
  to_skip = options.first_step;
  ended = false;
  executor = std::make_unique<Executor>(options.threads, "mr-loader");
  ++starts;
  changed.notify_all();
}

Loader::Loader(std::unique_ptr<Impl> impl) : impl_(impl.release()) {}

Loader::~Loader() {
  Impl* const impl = impl_;
  // In a child after fork the threads and whatever they held locked are the parent's.
  if (impl->generation == fork_generation()) delete impl;
}

// What this process uses: in a child after a fork something new, which goes on from the parent's state. The parent's is
// left as it is, since its locks may be held by threads that the child does not have.
Loader::Impl& Loader::here() {
  Impl* impl = impl_;
  if (impl->generation == fork_generation()) return *impl;
  auto fresh = std::make_unique<Impl>(impl->options);
  fresh->closed = impl->closed.load();
  fresh->take_over(*impl);
  if (impl_.compare_exchange_strong(impl, fresh.get())) return *fresh.release();
  return *impl;  // another thread was first
}

Result<std::unique_ptr<Loader>> Loader::create(const LoaderOptions& given) {
  LoaderOptions options = given;
  const auto bad = [](std::string_view what) { return fail(ErrorCode::kInvalidArgument, "loader: {}", what); };
  if (options.shards.empty()) return bad("no shards were named");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return bad(fmt::format("rank {} of {} does not exist", options.rank, options.world_size));
  }
  if ((options.batch_size > 0) == (options.global_batch_size > 0)) {
    return bad("give batch_size (samples a rank) or global_batch_size (over all ranks), above 0, and only one of them");
  }
  if (options.global_batch_size % options.world_size != 0 && !options.uneven_ranks) {
    return bad(
        fmt::format("global_batch_size {} is no multiple of the {} ranks, so that some would train on more rows than "
                    "others; choose {} or {}, or ask for it with uneven_ranks",
                    options.global_batch_size, options.world_size,
                    std::max<int64_t>(options.global_batch_size / options.world_size, 1) * options.world_size,
                    (options.global_batch_size / options.world_size + 1) * options.world_size));
  }
  if (options.seq_len < 1) return bad("seq_len must be at least 1");
  if (options.epochs > kMaxEpochs) return bad(fmt::format("a pass has at most {} epochs", kMaxEpochs));
  if (options.epochs < 0 || options.threads < 0 || options.memory_bytes < 0 || options.vocab_size < 0) {
    return bad("a count is negative");
  }
  if (options.step_stride < 1 || options.first_step < 0) return bad("step_stride is at least 1, first_step 0");
  if (options.threads == 0) options.threads = default_threads();
  return std::unique_ptr<Loader>(new Loader(std::make_unique<Impl>(options)));
}

Result<std::optional<Batch>> Loader::next(Clock::time_point deadline) {
  Impl& impl = here();
  if (impl.closed) return closed_error();
  RETURN_IF_ERROR(impl.ensure_open());
  MetricTimer timer(impl.metrics, Metric::kWaitSeconds);
  MutexLock lock(impl.mutex);
  bool waited = false;
  for (uint64_t scheduled = 0;;) {
    // close() may come from another thread, at interpreter exit for one; behind it there is no executor.
    if (impl.closed) return closed_error();
    if (!impl.stop.stop_requested()) {  // else another thread moves the loader, and starts it again
      if (scheduled != impl.starts) impl.schedule_ahead();
      scheduled = impl.starts;
      if (impl.queue.empty() ? impl.ended : impl.queue.front()->done) break;
    }
    waited = true;
    if (!impl.changed.wait_until(impl.mutex, deadline) && Clock::now() >= deadline) {
      return fail(ErrorCode::kTimeout, "no batch is ready yet");
    }
  }
  if (impl.queue.empty()) return std::nullopt;
  const std::shared_ptr<Job> job = impl.queue.front();
  if (job->error) return tl::unexpected(*job->error);
  impl.queue.pop_front();
  if (waited) impl.depth = std::min(impl.depth + 1, impl.most_batches);
  impl.at.epoch = job->epoch;
  impl.at.position = job->position + job->count;
  impl.schedule_ahead();
  impl.metrics.add(Metric::kBatches, 1);
  impl.metrics.add(Metric::kSamples, job->batch.rows);
  impl.metrics.add(Metric::kTokens, job->batch.tokens);
  return std::move(job->batch);
}

Result<std::string> Loader::state() {
  Impl& impl = here();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.mutex);
  return order::serialize_state(impl.at);
}

Result<std::string> Loader::state_behind(uint64_t epoch, int64_t next_position) {
  Impl& impl = here();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.mutex);
  order::OrderState state = impl.at;
  state.epoch = epoch;
  state.position = next_position;
  return order::serialize_state(state);
}

Status Loader::load_state(std::string_view text) {
  ASSIGN_OR_RETURN(const order::OrderState state, order::parse_state(text));
  Impl& impl = here();
  if (impl.closed) return closed_error();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.opening);
  return impl.move_to(state);
}

Status Loader::start_pass(uint64_t number) {
  Impl& impl = here();
  if (impl.closed) return closed_error();
  if (impl.options.epochs == 0) return endless_error();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.opening);
  order::OrderState state;
  {
    MutexLock inner(impl.mutex);
    state = impl.at;
  }
  state.epoch = number * static_cast<uint64_t>(impl.options.epochs);
  state.position = 0;
  return impl.move_to(state);
}

Result<Loader::Pass> Loader::pass() {
  Impl& impl = here();
  if (impl.options.epochs == 0) return endless_error();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.mutex);
  const auto epochs = static_cast<uint64_t>(impl.options.epochs);
  Pass pass{.number = impl.at.epoch / epochs};
  ASSIGN_OR_RETURN(pass.batches, impl.batches_of(pass.number));
  ASSIGN_OR_RETURN(const int64_t units, impl.units_of(impl.at.epoch));
  const int64_t left = units - impl.at.position;
  pass.over = (impl.at.epoch + 1) % epochs == 0 && !impl.is_whole(std::min(left, impl.global_batch));
  return pass;
}

Result<int64_t> Loader::pass_batches(uint64_t number) {
  Impl& impl = here();
  if (impl.options.epochs == 0) return endless_error();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.mutex);
  return impl.batches_of(number);
}

Result<int64_t> Loader::epoch_units() {
  Impl& impl = here();
  RETURN_IF_ERROR(impl.ensure_open());
  MutexLock lock(impl.mutex);
  return impl.units_of(impl.at.epoch);
}

void Loader::close() {
  Impl& impl = here();
  {
    MutexLock lock(impl.mutex);
    impl.closed = true;
  }
  impl.stop_threads();
}

const Metrics& Loader::metrics() const {
  return impl_.load()->metrics;
}
const LoaderOptions& Loader::options() const {
  return impl_.load()->options;
}
int64_t Loader::prefetch_depth() const {
  return impl_.load()->depth;
}

}  // namespace millrace::loader
