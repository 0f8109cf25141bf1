// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/run_reader.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/loader/detail/common_size.h"

// Each run goes through the same stations: waiting, reading, decoding. start_reads() moves runs from waiting to reading
// as long as the pool has memory; it is called when runs are added and whenever a decoded run gives its memory back, so
// somebody is always there to start the next read. Reading ends on a thread of the storage, which only queues the run
// for a worker.
//
// A run that does not read ahead (SampleRun::reads_ahead) passes the second station at once and reads on the worker.
// Such runs need no more memory than there are workers: more buffers would only push each other out of the processor's
// caches.

namespace millrace::loader {

namespace {

// A storage ends a read of its own accord long before. This bounds one that was queued and never begun.
constexpr std::chrono::minutes kReadTime{10};

}  // namespace

RunReader::RunReader(BufferPool& memory, Executor& workers, std::stop_token stop, Activities* activities)
    : memory_(memory), workers_(workers), stop_(std::move(stop)), activities_(activities) {}

void RunReader::add(std::vector<Request> requests) {
  {
    MutexLock lock(mutex_);
    for (Request& request : requests) waiting_.push_back(std::move(request));
  }
  start_reads();
}

void RunReader::start_reads() {
  while (const std::shared_ptr<Read> read = take_next()) {
    const order::SampleRun::ReadOptions options{
        .stop = stop_, .deadline = Clock::now() + kReadTime, .priority = read->request.priority};
    if (read->request.run->reads_ahead()) read->reading.emplace(activities_, "read " + read->request.run->request());
    // The run goes before read_ended(): behind it the storage may be destroyed, which must not happen on its own
    // thread.
    const auto memory = read->memory.span().first(static_cast<size_t>(read->request.run->bytes()));
    read->request.run->start(memory, options, [this, read = read](Status status) mutable {
      read->reading.reset();
      decode(std::move(read), std::move(status));
      read_ended();
    });
  }
}

// The next run with its memory; null when there is none, or its memory is not free.
std::shared_ptr<RunReader::Read> RunReader::take_next() {
  MutexLock lock(mutex_);
  while (!is_stopped_ && !waiting_.empty()) {
    const order::SampleRun& run = *waiting_.front().run;
    if (!run.reads_ahead() && blocking_ >= workers_.threads()) return nullptr;
    Result<Buffer> memory = take_memory(run);
    if (memory && !*memory && run.bytes() > 0) return nullptr;
    auto read = std::make_shared<Read>();
    read->request = std::move(waiting_.front());
    waiting_.pop_front();
    if (!read->request.run->reads_ahead()) ++blocking_;
    if (memory) {
      read->memory = std::move(*memory);
      ++reading_;
      return read;
    }
    decode(std::move(read), tl::unexpected(std::move(memory).error()));
  }
  return nullptr;
}

Result<Buffer> RunReader::take_memory(const order::SampleRun& run) {
  if (run.bytes() == 0) return Buffer();
  if (run.bytes() <= memory_.limit_bytes()) return try_acquire_common(memory_, static_cast<size_t>(run.bytes()));
  return no_memory(fmt::format("{}: a sample takes {}, more than the {} that the loader reads into; raise memory_bytes",
                               run.name(), format_bytes(run.bytes()), format_bytes(memory_.limit_bytes())));
}

void RunReader::decode(std::shared_ptr<Read> read, Status status) {
  const int priority = read->request.priority;
  workers_.submit(
      [this, read = std::move(read), status = std::move(status)]() mutable {
        const bool is_blocking = !read->request.run->reads_ahead();
        {
          const Activities::Scope decoding(activities_, fmt::format("{} {}", is_blocking ? "read and decode" : "decode",
                                                                    read->request.run->request()));
          read->request.decode(*read->request.run, std::move(status));
        }
        read->memory = {};  // goes back to the pool
        if (is_blocking) {
          MutexLock lock(mutex_);
          --blocking_;
        }
        start_reads();
      },
      priority);
}

void RunReader::read_ended() {
  MutexLock lock(mutex_);
  if (--reading_ == 0) idle_.notify_all();  // under the lock: the waiting thread may destroy this object
}

void RunReader::stop() {
  MutexLock lock(mutex_);
  is_stopped_ = true;
  waiting_.clear();
  while (reading_ > 0) idle_.wait(mutex_);
}

}  // namespace millrace::loader
