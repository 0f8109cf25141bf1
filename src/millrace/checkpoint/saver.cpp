// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/executor.h"
#include "millrace/base/log.h"
#include "millrace/base/sync.h"
#include "millrace/base/units.h"
#include "millrace/base/utf8.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/commit.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/detail/rank_file.h"
#include "millrace/checkpoint/detail/retention.h"

namespace millrace::checkpoint {

namespace {

constexpr int kMaxThreads = 8;               // a few threads fill a memory bus; more would only take CPUs from training
constexpr size_t kMaxStateBytes = 64 << 20;  // escaped at worst sixfold, it still fits into a record
constexpr std::chrono::seconds kStopGrace{5};  // what a storage call under way gets to end in ~Saver

Error forked_error(int64_t step) {
  return Error(ErrorCode::kUnsupported,
               fmt::format("save of step {}: this Saver belongs to the process that forked; create one here", step));
}

class Save final : public PendingSave {
 public:
  Save(int64_t step, int64_t bytes) : step_(step), bytes_(bytes) {}

  int64_t step() const override { return step_; }
  int64_t bytes() const override { return bytes_; }
  bool done() const override { return done_; }

  [[nodiscard]] Status wait(std::stop_token stop) override {
    // After a fork the thread that would finish is the parent's, and so may be the mutex.
    if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step_));
    std::stop_callback wake(stop, [this] {
      MutexLock lock(mutex_);
      finished_.notify_all();
    });
    MutexLock lock(mutex_);
    while (!done_ && !stop.stop_requested()) finished_.wait(mutex_);
    if (!done_) return fail(ErrorCode::kCancelled, "stopped waiting for the save of step {}, which goes on", step_);
    reported_ = true;
    return status_;
  }

  bool wait_until(Clock::time_point deadline) {
    MutexLock lock(mutex_);
    while (!done_ && finished_.wait_until(mutex_, deadline)) {
    }
    return done_;
  }
  // Waits; then the failure that nobody has been told of. It counts as told.
  Status take_unreported() {
    MutexLock lock(mutex_);
    while (!done_) finished_.wait(mutex_);
    if (std::exchange(reported_, true)) return {};
    return status_;
  }
  void finish(Status status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    done_ = true;
    finished_.notify_all();
  }

 private:
  const int64_t step_, bytes_;
  const uint64_t generation_ = fork_generation();
  std::atomic<bool> done_{false};
  Mutex mutex_;
  CondVar finished_;
  Status status_ GUARDED_BY(mutex_);
  bool reported_ GUARDED_BY(mutex_) = false;
};

// What the calling thread and the background share. save() touches `image` and `sweep` only while no save is under way.
struct Core {
  Core(Location at, const SaverOptions& chosen, int threads)
      : root(std::move(at)), options(chosen), executor(std::max(threads - 1, 1), "mr-ckpt") {}  // parallel_for joins in

  const Location root;
  const SaverOptions options;
  Metrics metrics;
  Executor executor;
  std::stop_source stop;
  std::unique_ptr<BufferPool> pool;
  Buffer image;       // of the rank's file; kept from save to save, so that its pages are there
  bool sweep = true;  // what earlier attempts or a failed save left is still to be removed
};

// A save's way from the snapshot to the commit, on a thread of its own.
class SaveJob {
 public:
  SaveJob(std::shared_ptr<Core> core, std::shared_ptr<Save> save, std::shared_ptr<const RankFile> file)
      : core_(std::move(core)), save_(std::move(save)), file_(std::move(file)) {}

  void run(std::string state, std::string rank_state) {
    Status status = write(std::move(rank_state));
    if (status) status = finish(std::move(state));
    if (status) {
      core_->metrics.add(Metric::kSaves, 1);
    } else {
      core_->sweep = true;
    }
    save_->finish(std::move(status));
  }

 private:
  // Data before its record, each durable before the next is visible: a record that can be seen is true.
  Status write(std::string rank_state) {
    const SaverOptions& options = core_->options;
    MetricTimer timer(core_->metrics, Metric::kWriteSeconds);
    const Location directory = step_location(core_->root, save_->step()).child(options.attempt);
    const Location data = directory.child(rank_file_name(options.rank, options.world_size));
    ASSIGN_OR_RETURN(const auto writer, data.storage->open_write(data.key, {.size_hint_bytes = file_->bytes()}));
    ASSIGN_OR_RETURN(PartRecord part,
                     file_->write(core_->image.data(), *writer, core_->executor, core_->stop.get_token()));
    RETURN_IF_ERROR(writer->commit(Durability::kDurable));
    part.step = save_->step();
    part.attempt = options.attempt;
    part.rank = options.rank;
    part.world_size = options.world_size;
    part.state = std::move(rank_state);
    const Location record = directory.child(part_record_name(options.rank, options.world_size));
    RETURN_IF_ERROR(write_object(*record.storage, record.key, serialize(part)));
    core_->metrics.add(Metric::kWriteBytes, file_->bytes());
    return {};
  }

  Status finish(std::string state) {
    const SaverOptions& options = core_->options;
    const StepCommit commit{core_->root,
                            save_->step(),
                            options.attempt,
                            options.world_size,
                            Clock::now() + options.commit_timeout,
                            core_->stop.get_token()};
    if (options.rank != 0) return await_commit(commit);
    RETURN_IF_ERROR(commit_step(commit, std::move(state)));
    follow_up();
    return {};
  }

  // The step is committed; what comes now may fail without harm and is tried again by a later save.
  void follow_up() {
    const SaverOptions& options = core_->options;
    const Location latest = core_->root.child(kLatestName);
    if (auto written =
            write_object(*latest.storage, latest.key, step_name(save_->step()) + "\n", {}, Durability::kVisible);
        !written)
      log(LogLevel::kWarning, "checkpoint: step {} is committed, but `latest` is not moved: {}", save_->step(),
          written.error().to_string());
    const auto cleaned = clean_up(core_->root, save_->step(), options.attempt,
                                  {.keep_last = options.keep_last, .keep_every = options.keep_every}, core_->sweep);
    core_->sweep = !cleaned;
    if (!cleaned)
      log(LogLevel::kWarning, "checkpoint: step {} is committed, but older files are left: {}", save_->step(),
          cleaned.error().to_string());
  }

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Save> save_;
  const std::shared_ptr<const RankFile> file_;
};

class RankSaver final : public Saver {
 public:
  RankSaver(Location root, const SaverOptions& options, int threads)
      : core_(std::make_shared<Core>(std::move(root), options, threads)) {}

  ~RankSaver() override {
    if (generation_ != fork_generation()) {
      abandon();  // the thread and any locked mutex are the parent's
      return;
    }
    if (!last_ || last_->wait_until(Clock::now() + core_->options.commit_timeout)) return;
    core_->stop.request_stop();
    if (last_->wait_until(Clock::now() + kStopGrace)) return;
    log(LogLevel::kError, "checkpoint: the save of step {} hangs in storage and is left behind", last_->step());
    abandon();
  }

  [[nodiscard]] Result<std::shared_ptr<PendingSave>> save(int64_t step, std::span<const TensorToSave> tensors,
                                                          std::string state, std::string rank_state) override {
    if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step));
    MutexLock lock(mutex_);
    MetricTimer stall(core_->metrics, Metric::kStallSeconds);
    if (last_) {
      RETURN_IF_ERROR(with_context(last_->take_unreported(), fmt::format("the save of step {} failed", last_->step())));
    }
    RETURN_IF_ERROR(check_arguments(step, tensors, state, rank_state));
    if (!file_ || !file_->matches(tensors)) {
      ASSIGN_OR_RETURN(file_, RankFile::plan(tensors));
    }
    RETURN_IF_ERROR(make_room(file_->bytes()));

    const int64_t bytes = file_->bytes();
    Status storage_ready;
    file_->snapshot(tensors, core_->image.data(), core_->executor, [&] { storage_ready = check_storage(step, bytes); });
    RETURN_IF_ERROR(storage_ready);

    last_step_ = step;
    last_ = std::make_shared<Save>(step, file_->bytes());
    auto job = std::make_shared<SaveJob>(core_, last_, file_);
    thread_ = Thread("mr-ckpt-save", [job, state = std::move(state), rank_state = std::move(rank_state)]() mutable {
      job->run(std::move(state), std::move(rank_state));
    });
    return last_;
  }

  const Metrics& metrics() const override { return core_->metrics; }

 private:
  // Leaves a thread that cannot be joined, and what it uses, to the end of the process.
  void abandon() {
    static_cast<void>(std::make_unique<Thread>(std::move(thread_)).release());
    static_cast<void>(std::make_unique<std::shared_ptr<Core>>(core_).release());
    static_cast<void>(std::make_unique<std::shared_ptr<Save>>(last_).release());
  }

  Status check_arguments(int64_t step, std::span<const TensorToSave> tensors, std::string_view state,
                         std::string_view rank_state) const REQUIRES_LOCK(mutex_) {
    if (step < 0) return fail(ErrorCode::kInvalidArgument, "step {} is negative", step);
    if (step <= last_step_)
      return fail(ErrorCode::kInvalidArgument, "step {} does not come after step {}, the last one saved", step,
                  last_step_);
    for (const std::string_view text : {state, rank_state}) {
      if (!is_utf8(text)) return fail(ErrorCode::kInvalidArgument, "step {}: a state that is not UTF-8", step);
      if (text.size() > kMaxStateBytes)
        return fail(ErrorCode::kInvalidArgument, "step {}: a state of {}; states are small, at most {}", step,
                    format_bytes(std::ssize(text)), format_bytes(kMaxStateBytes));
    }
    for (const TensorToSave& tensor : tensors) {
      const bool empty = std::find(tensor.box.shape.begin(), tensor.box.shape.end(), 0) != tensor.box.shape.end();
      if (tensor.data == nullptr && !empty)
        return fail(ErrorCode::kInvalidArgument, "tensor '{}' has no data", tensor.name);
    }
    return {};
  }

  // The image's memory: what the last save used, unless this one needs more.
  Status make_room(int64_t bytes) REQUIRES_LOCK(mutex_) {
    constexpr int64_t kPage = 4096;
    const int64_t needed = (bytes + kPage - 1) / kPage * kPage;
    const int64_t cap = core_->options.memory_bytes;
    if (cap > 0 && needed > cap)
      return no_memory(fmt::format("the snapshot needs {} of memory, memory_bytes allows {}", format_bytes(needed),
                                   format_bytes(cap)));
    if (static_cast<int64_t>(core_->image.size()) >= needed) return {};
    core_->image = Buffer();
    core_->pool.reset();
    ASSIGN_OR_RETURN(core_->pool, BufferPool::reserve(*MemoryBudget::process(), "checkpoint", needed));
    ASSIGN_OR_RETURN(core_->image, core_->pool->acquire(static_cast<size_t>(needed)));
    return {};
  }

  Status check_storage(int64_t step, int64_t bytes) const {
    RETURN_IF_ERROR(check_step_open(core_->root, step, core_->options.attempt));
    return check_space(*core_->root.storage, prefix_below(core_->root), bytes,
                       fmt::format("step {} in {}", step, core_->root.url));
  }

  const uint64_t generation_ = fork_generation();
  const std::shared_ptr<Core> core_;
  Mutex mutex_;  // one save() at a time
  int64_t last_step_ GUARDED_BY(mutex_) = -1;
  std::shared_ptr<const RankFile> file_ GUARDED_BY(mutex_);
  std::shared_ptr<Save> last_;
  Thread thread_;
};

}  // namespace

Result<std::unique_ptr<Saver>> Saver::create(Location root, const SaverOptions& options) {
  const auto bad = [&](std::string_view reason) { return fail(ErrorCode::kInvalidArgument, "checkpoint: {}", reason); };
  if (!root.storage) return bad("no storage");
  if (!restart_of(options.attempt))
    return bad(fmt::format("'{}' is not the name of an attempt; make_attempt gives one", options.attempt));
  if (options.world_size < 1 || options.world_size > kMaxWorldSize || options.rank < 0 ||
      options.rank >= options.world_size)
    return bad(fmt::format("rank {} of {}", options.rank, options.world_size));
  if (options.threads < 0 || options.memory_bytes < 0 || options.keep_last < 0 || options.keep_every < 0 ||
      options.commit_timeout.count() < 0)
    return bad("a negative option");
  if (!root.storage->capabilities().conditional_write)
    return fail(ErrorCode::kUnsupported, "checkpoint: {} cannot create an object only if it is absent", root.url);
  SaverOptions chosen = options;
  chosen.commit_timeout = std::min<std::chrono::milliseconds>(options.commit_timeout, std::chrono::hours(24 * 365));
  const int threads = options.threads > 0 ? options.threads : std::min(available_cpus(), kMaxThreads);
  return std::make_unique<RankSaver>(std::move(root), chosen, threads);
}

}  // namespace millrace::checkpoint
