// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/log.h"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace {

namespace {

struct LogState {
  std::atomic<int> lowest{static_cast<int>(LogLevel::kError) + 1};
  Mutex mutex;
  CondVar left;
  std::shared_ptr<const LogSink> sink GUARDED_BY(mutex);
  int inside GUARDED_BY(mutex) = 0;  // threads in a sink; it runs without the mutex, since it may wait for Python's GIL
};

// Never destroyed: worker threads may log while the process exits.
LogState& log_state() {
  static auto* state = new LogState;
  return *state;
}

}  // namespace

std::string_view log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

void set_log_sink(LogSink sink, LogLevel lowest) {
  LogState& state = log_state();
  MutexLock lock(state.mutex);
  state.lowest = sink ? static_cast<int>(lowest) : static_cast<int>(LogLevel::kError) + 1;
  state.sink = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  while (state.inside > 0) state.left.wait(state.mutex);
}

void log_line(LogLevel level, std::string_view line) {
  LogState& state = log_state();
  if (static_cast<int>(level) < state.lowest) return;
  std::shared_ptr<const LogSink> sink;
  {
    MutexLock lock(state.mutex);
    sink = state.sink;
    if (!sink) return;
    ++state.inside;
  }
  (*sink)(level, line);
  MutexLock lock(state.mutex);
  if (--state.inside == 0) state.left.notify_all();
}

}  // namespace millrace
