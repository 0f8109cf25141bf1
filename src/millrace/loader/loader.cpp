// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/published.h"
#include "millrace/base/text/units.h"
#include "millrace/loader/detail/batch_maker.h"
#include "millrace/loader/detail/dataset.h"
#include "millrace/loader/detail/opening.h"
#include "millrace/loader/detail/rejected_rows.h"
#include "millrace/loader/detail/scheduler.h"
#include "millrace/loader/detail/shard_opening.h"
#include "millrace/loader/detail/state_damage.h"
#include "millrace/loader/detail/step_samples.h"
#include "millrace/loader/detail/watchdog.h"
#include "millrace/storage/url.h"

// The face of the loader. It holds what a loader has once (the options, the opened dataset) and the scheduler of where
// it stands now. Sending the loader elsewhere stops that scheduler and makes another one; a thread that waits in next()
// meanwhile goes on waiting, for the batch of the new one.

namespace millrace::loader {

namespace {

tl::unexpected<Error> closed_error() {
  return fail(ErrorCode::kCancelled, "the loader is closed");
}

Status check_has_passes(const LoaderOptions& options) {
  if (!options.is_endless()) return {};
  return fail(ErrorCode::kInvalidArgument, "an endless loader has no passes; give {}",
              options.is_mixture() ? "a stop rule" : "epochs, the number of them in a pass");
}

order::LoaderState with_damaged_shards(order::LoaderState state, const Dataset& dataset) {
  damaged_shards_of(state) = dataset.damaged_shards;
  return state;
}

std::string state_text(order::LoaderState state, const Dataset& dataset) {
  return order::serialize_state(with_damaged_shards(std::move(state), dataset));
}

// Counts the wait for a batch, for the loader and for those who watch the process.
class WaitTimer {
 public:
  explicit WaitTimer(Metrics& metrics) : metrics_(metrics) {}
  ~WaitTimer() {
    const Clock::duration waited = Clock::now() - begun_;
    metrics_.add_seconds(Metric::kWaitSeconds, waited);
    publish_add(Published::kWaitNs, std::chrono::nanoseconds(waited).count());
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  Metrics& metrics_;
  const Clock::time_point begun_ = Clock::now();
};

}  // namespace

struct Loader::Impl {
  using SchedulerPtr = std::shared_ptr<Scheduler>;

  Impl(const LoaderOptions& loader_options, std::vector<OpenSource> sources)
      : options(loader_options), open_sources(std::move(sources)), opening([this] { return open(); }) {}
  ~Impl() { close(); }

  Status open();
  Status move_to(const order::LoaderState& state) REQUIRES_LOCK(moving);
  SchedulerPtr make_scheduler(Start start);
  Status set_scheduler(SchedulerPtr fresh);
  // The scheduler, once the dataset is open.
  Result<SchedulerPtr> opened(Clock::time_point deadline = Clock::time_point::max());
  Result<std::optional<Batch>> next(Clock::time_point deadline);
  // Shows a batch that was handed out.
  void publish(const Batch& batch, const Scheduler& from);
  std::string waits_for();
  Result<SchedulerPtr> next_after(const SchedulerPtr& old, Clock::time_point deadline);
  void take_over(const Impl& parent);
  void close();

  const LoaderOptions options;
  const std::vector<OpenSource> open_sources;
  const uint64_t generation = fork_generation();
  std::optional<order::LoaderState> resume;  // of the parent, in a child after a fork
  Metrics metrics;
  Activities activities;
  RejectedRows rejected;
  Watchdog watchdog{options.stall, options.on_stall};
  std::atomic<int64_t> depth{2};  // grows while next() has to wait
  std::atomic<int64_t> published_bytes{0}, published_queue{0};
  std::stop_source closing;

  // Set by open(), constant afterwards.
  std::unique_ptr<Dataset> dataset;
  std::optional<BatchMaker> maker;

  Mutex moving;  // while the loader is sent elsewhere; taken before `mutex`
  Mutex mutex;
  CondVar changed;
  bool is_closed GUARDED_BY(mutex) = false;
  SchedulerPtr scheduler GUARDED_BY(mutex);  // null before the dataset is open

  Opening opening;  // last: its thread uses everything above
};

// On the thread of `opening`. What it opens by URL ends its requests when the loader is closed, then and later.
Status Loader::Impl::open() {
  {
    MutexLock lock(mutex);
    if (is_closed) return closed_error();
  }
  const StopScope scope(closing.get_token());
  maker.reset();
  dataset.reset();  // of an attempt that failed
  ASSIGN_OR_RETURN(dataset, open_dataset(options, open_sources, metrics, activities, closing.get_token()));
  maker.emplace(options, *dataset->memory.batches, dataset->memory.pooled_batches, metrics);
  Start start = dataset->beginning;
  if (resume) {
    ASSIGN_OR_RETURN(start, dataset->order->start_at(*resume, dataset->beginning));
  }
  return set_scheduler(make_scheduler(std::move(start)));
}

Loader::Impl::SchedulerPtr Loader::Impl::make_scheduler(Start start) {
  return std::make_shared<Scheduler>(Scheduler::Shared{options, *dataset, *maker, depth, metrics, activities, rejected},
                                     std::move(start));
}

Status Loader::Impl::set_scheduler(SchedulerPtr fresh) {
  MutexLock lock(mutex);
  if (is_closed) return closed_error();
  scheduler = std::move(fresh);
  changed.notify_all();
  return {};
}

Result<Loader::Impl::SchedulerPtr> Loader::Impl::opened(Clock::time_point deadline) {
  RETURN_IF_ERROR(opening.wait(deadline));
  MutexLock lock(mutex);
  return scheduler;
}

Result<std::optional<Batch>> Loader::Impl::next(Clock::time_point deadline) {
  const Clock::time_point until = deadline == Scheduler::kDoNotWait ? Clock::now() : deadline;
  ASSIGN_OR_RETURN(SchedulerPtr current, opened(until));
  const WaitTimer timer(metrics);
  for (;;) {
    auto batch = current->next(deadline);
    if (batch && *batch) publish(**batch, *current);
    if (batch || !current->is_stopped()) return batch;
    ASSIGN_OR_RETURN(current, next_after(current, until));
  }
}

void Loader::Impl::publish(const Batch& batch, const Scheduler& from) {
  publish_add(Published::kBatches, 1);
  publish_add(Published::kSamples, batch.rows);
  publish_add(Published::kTokens, batch.tokens);
  publish_now(Published::kLastBatchNs);
  // Several loaders of a process add up.
  const int64_t bytes = metrics.count(Metric::kReadBytes), queue = from.ready_batches();
  publish_add(Published::kReadBytes, bytes - published_bytes.exchange(bytes));
  publish_add(Published::kQueueBatches, queue - published_queue.exchange(queue));
}

// For the watchdog: the stage that the next batch is in, and the oldest requests.
std::string Loader::Impl::waits_for() {
  constexpr size_t kNamed = 3;
  SchedulerPtr current;
  {
    MutexLock lock(mutex);
    current = scheduler;
  }
  return fmt::format("stage {}; under way: {}", current ? current->stage() : "open (the dataset)",
                     activities.describe(kNamed));
}

// `old` was stopped: waits for the one that follows it.
Result<Loader::Impl::SchedulerPtr> Loader::Impl::next_after(const SchedulerPtr& old, Clock::time_point deadline) {
  MutexLock lock(mutex);
  while (scheduler == old && !is_closed) {
    if (!changed.wait_until(mutex, deadline) && Clock::now() >= deadline) {
      return fail(ErrorCode::kTimeout, "no batch is ready yet");
    }
  }
  if (is_closed) return closed_error();
  return scheduler;
}

Status Loader::Impl::move_to(const order::LoaderState& state) {
  ASSIGN_OR_RETURN(const SchedulerPtr old, opened());
  ASSIGN_OR_RETURN(Start start, dataset->order->start_at(state, old->position()));
  old->stop();  // before the next one needs the memory
  return set_scheduler(make_scheduler(std::move(start)));
}

// Without the parent's locks, which nobody would release.
MILLRACE_ANNOTATE(no_thread_safety_analysis)
void Loader::Impl::take_over(const Impl& parent) {
  is_closed = parent.is_closed;
  if (parent.scheduler != nullptr) resume = parent.scheduler->state_without_lock();
}

void Loader::Impl::close() {
  SchedulerPtr ending;
  {
    MutexLock lock(mutex);
    is_closed = true;
    ending = scheduler;
    changed.notify_all();
  }
  if (const int64_t queue = published_queue.exchange(0); queue != 0) publish_add(Published::kQueueBatches, -queue);
  closing.request_stop();
  opening.stop();
  if (ending != nullptr) ending->stop();
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
  auto fresh = std::make_unique<Impl>(impl->options, impl->open_sources);
  fresh->take_over(*impl);
  if (impl_.compare_exchange_strong(impl, fresh.get())) return *fresh.release();
  return *impl;  // another thread was first
}

Result<std::unique_ptr<Loader>> Loader::create(const LoaderOptions& options) {
  ASSIGN_OR_RETURN(const LoaderOptions resolved, resolve(options));
  ASSIGN_OR_RETURN(std::vector<OpenSource> sources, sources_of(resolved));
  return create(resolved, std::move(sources));
}

Result<std::unique_ptr<Loader>> Loader::create(const LoaderOptions& options, std::vector<OpenSource> open_sources) {
  ASSIGN_OR_RETURN(const LoaderOptions resolved, resolve(options));
  const size_t datasets = resolved.is_mixture() ? resolved.weights.front().weights.size() : 1;
  if (open_sources.size() != datasets) {
    return fail(ErrorCode::kInvalidArgument, "loader: {} datasets, {} were named", datasets, open_sources.size());
  }
  return std::unique_ptr<Loader>(new Loader(std::make_unique<Impl>(resolved, std::move(open_sources))));
}

Status Loader::open(Clock::time_point deadline) {
  Impl& impl = here();
  return impl.watchdog.watch(
      deadline, [&](Clock::time_point until) { return impl.opening.wait(until); }, [&] { return impl.waits_for(); });
}

Result<std::optional<Batch>> Loader::next(Clock::time_point deadline) {
  Impl& impl = here();
  return impl.watchdog.watch(
      deadline, [&](Clock::time_point until) { return impl.next(until); }, [&] { return impl.waits_for(); });
}

Result<std::optional<Batch>> Loader::try_next() {
  auto batch = here().next(Scheduler::kDoNotWait);
  if (!batch && batch.error().code() == ErrorCode::kTimeout) return std::nullopt;
  return batch;
}

Result<Loader::RingSpace> Loader::ring_space(int64_t kept) {
  constexpr int64_t kMostBytes = 128 << 20;  // more batches than that hide no more, and pinning costs 0.2 s a GB
  Impl& impl = here();
  if (impl.options.has_fields()) {
    return fail(ErrorCode::kInvalidArgument, "loader: batches of samples of any kind have no largest size");
  }
  RETURN_IF_ERROR(impl.opened().map([](const auto&) {}));
  const LoaderMemory& memory = impl.dataset->memory;
  const int64_t fewest = kept + 2;
  if (kept < 0 || fewest > memory.pooled_batches) {
    return fail(ErrorCode::kInvalidArgument, "loader: its memory holds {} batches, too few to keep {}",
                memory.pooled_batches, kept);
  }
  const int64_t most = std::min(memory.pooled_batches, kMostBytes / memory.batch_bytes);
  return RingSpace{memory.batch_bytes, std::max(most, fewest)};
}

Status Loader::use_ring(std::shared_ptr<BatchRing> ring) {
  Impl& impl = here();
  RETURN_IF_ERROR(impl.opened().map([](const auto&) {}));
  const LoaderMemory& memory = impl.dataset->memory;
  if (impl.options.has_fields() || impl.maker->ring() != nullptr) {
    return fail(ErrorCode::kInvalidArgument, "loader: its batches lie in other memory already");
  }
  if (ring->buffer_bytes() < memory.batch_bytes || ring->bytes() > memory.batches->limit_bytes()) {
    return fail(ErrorCode::kInvalidArgument, "loader: {} buffers of {} are not what ring_space() asks for",
                ring->buffers(), format_bytes(ring->buffer_bytes()));
  }
  impl.maker->set_ring(std::move(ring));
  return {};
}

Result<std::string> Loader::state() {
  Impl& impl = here();
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return state_text(scheduler->position().state, *impl.dataset);
}

Result<order::LoaderState> Loader::position() {
  Impl& impl = here();
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return with_damaged_shards(scheduler->position().state, *impl.dataset);
}

Result<std::string> Loader::state_behind(uint64_t epoch, int64_t next_position) {
  Impl& impl = here();
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  ASSIGN_OR_RETURN(const auto state, impl.dataset->order->behind(scheduler->position(), epoch, next_position));
  return state_text(state, *impl.dataset);
}

Status Loader::load_state(std::string_view text) {
  ASSIGN_OR_RETURN(order::LoaderState state, order::parse_loader_state(text));
  Impl& impl = here();
  RETURN_IF_ERROR(impl.opening.wait(Clock::time_point::max()));
  const auto damaged = std::exchange(damaged_shards_of(state), {});  // the dataset knows its own
  MutexLock lock(impl.moving);
  Status moved = impl.move_to(state);
  if (moved || moved.error().code() != ErrorCode::kInvalidArgument) return moved;
  return tl::unexpected(with_damage(std::move(moved).error(), damaged, impl.dataset->damaged_shards));
}

Status Loader::start_pass(uint64_t number) {
  Impl& impl = here();
  RETURN_IF_ERROR(check_has_passes(impl.options));
  RETURN_IF_ERROR(impl.opening.wait(Clock::time_point::max()));
  MutexLock lock(impl.moving);
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return impl.move_to(impl.dataset->order->pass_start(scheduler->position(), number));
}

Status Loader::set_weights(std::vector<double> weights) {
  Impl& impl = here();
  if (!impl.options.is_mixture()) {
    return fail(ErrorCode::kInvalidArgument, "loader: only a mixture has weights");
  }
  RETURN_IF_ERROR(impl.opening.wait(Clock::time_point::max()));
  MutexLock lock(impl.moving);
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  auto state = std::get<order::MixtureState>(scheduler->position().state);
  ASSIGN_OR_RETURN(auto mixture, order::Mixture::create(state.mix, nullptr));
  RETURN_IF_ERROR(mixture.set_weights(std::move(weights)));
  state.mix = mixture.state();
  return impl.move_to(state);
}

Result<std::vector<std::vector<RowParts>>> Loader::provenance(int64_t step, std::span<const std::string> states) {
  Impl& impl = here();
  if (step < 0) return fail(ErrorCode::kInvalidArgument, "loader: there is no step {}", step);
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  Start start = scheduler->position();
  ASSIGN_OR_RETURN(auto quarantined, ledger_with(start.state, states));
  ASSIGN_OR_RETURN(start.state, impl.dataset->order->at_step(start, step));
  return step_samples(impl.options, *impl.dataset, std::move(start), quarantined, impl.closing.get_token());
}

Result<int64_t> Loader::step() {
  Impl& impl = here();
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return impl.dataset->order->step_of(scheduler->position());
}

Status Loader::skip(int64_t begin, int64_t end) {
  Impl& impl = here();
  if (begin < 0 || begin >= end) {
    return fail(ErrorCode::kInvalidArgument, "loader: there are no steps from {} to {} to skip", begin, end);
  }
  RETURN_IF_ERROR(impl.opening.wait(Clock::time_point::max()));
  MutexLock lock(impl.moving);
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  const Start now = scheduler->position();
  ASSIGN_OR_RETURN(const auto more, impl.dataset->order->skipped_steps(now, begin, end));
  order::LoaderState state = now.state;
  std::visit(
      [&](auto& of) {
        for (const auto& range : more) order::add_skipped(of.skipped, range);
      },
      state);
  return impl.move_to(state);
}

Result<std::vector<order::QuarantinedUnit>> Loader::quarantined() {
  ASSIGN_OR_RETURN(const auto scheduler, here().opened());
  return std::visit([](auto state) { return std::move(state.quarantined); }, scheduler->position().state);
}

Result<std::vector<order::DamagedShard>> Loader::damaged_shards() {
  Impl& impl = here();
  RETURN_IF_ERROR(impl.opened().map([](const auto&) {}));
  return impl.dataset->damaged_shards;
}

Status Loader::reject(std::span<const std::pair<Batch::RowPlace, std::string>> rows) {
  Impl& impl = here();
  if (impl.options.on_bad != OnBad::kQuarantine) {
    return fail(ErrorCode::kInvalidArgument, "loader: rows can be rejected with on_bad='quarantine' only");
  }
  for (const auto& [place, reason] : rows) {
    const int64_t count = impl.rejected.add(place, reason);
    if (count <= impl.options.max_bad) continue;
    return fail(ErrorCode::kCorruption, "{} rows were rejected, max_bad is {}; the newest: {}", count,
                impl.options.max_bad, reason);
  }
  return {};
}

Result<Pass> Loader::pass() {
  Impl& impl = here();
  RETURN_IF_ERROR(check_has_passes(impl.options));
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return impl.dataset->order->pass(scheduler->position());
}

Result<int64_t> Loader::pass_batches(uint64_t number) {
  Impl& impl = here();
  RETURN_IF_ERROR(check_has_passes(impl.options));
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return impl.dataset->order->pass_batches(scheduler->position(), number);
}

Result<int64_t> Loader::epoch_units() {
  Impl& impl = here();
  ASSIGN_OR_RETURN(const auto scheduler, impl.opened());
  return impl.dataset->order->epoch_units(scheduler->position());
}

void Loader::close() {
  here().close();
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
int64_t Loader::ready_batches() const {
  return impl_.load()->published_queue;
}

}  // namespace millrace::loader
