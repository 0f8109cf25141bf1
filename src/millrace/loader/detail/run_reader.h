// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads runs of samples into pooled memory, in the order in which they were added, and has a worker decode each. The
// pool bounds the reads under way: a run waits until memory is free. Thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/activities.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

class RunReader {
 public:
  // The arguments must outlive this object. `activities`: lists reads and decoding; null: does not list them.
  RunReader(BufferPool& memory, Executor& workers, std::stop_token stop, Activities* activities = nullptr);
  ~RunReader() { stop(); }
  RunReader(const RunReader&) = delete;
  RunReader& operator=(const RunReader&) = delete;

  struct Request {
    std::unique_ptr<order::SampleRun> run;
    int priority = 0;
    // Called once, on a worker, unless the reader is stopped before. It may call visit() only if `read` is no error.
    std::function<void(order::SampleRun& run, Status read)> decode;
  };
  void add(std::vector<Request> requests);
  // Starts no more reads and waits for those under way. REQUIRES: the stop token is set.
  void stop();

 private:
  struct Read {
    Request request;
    Buffer memory;
    std::optional<Activities::Scope> reading;
  };
  void start_reads();
  std::shared_ptr<Read> take_next();
  [[nodiscard]] Result<Buffer> take_memory(const order::SampleRun& run);
  void decode(std::shared_ptr<Read> read, Status status);
  void read_ended();

  BufferPool& memory_;
  Executor& workers_;
  const std::stop_token stop_;
  Activities* const activities_;
  Mutex mutex_;
  CondVar idle_;
  std::deque<Request> waiting_ GUARDED_BY(mutex_);
  int64_t reading_ GUARDED_BY(mutex_) = 0;   // runs whose `done` was not called yet
  int64_t blocking_ GUARDED_BY(mutex_) = 0;  // runs given to workers that read in visit()
  bool is_stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace millrace::loader
