// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/log.h"

#include <fmt/format.h>

#include <atomic>

#include "millrace/base/sync.h"

namespace millrace {

namespace {

struct LogState {
  std::atomic<int> lowest{static_cast<int>(LogLevel::kError) + 1};
  Mutex mutex;
  LogSink sink GUARDED_BY(mutex);
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
  state.sink = std::move(sink);
}

void log_line(LogLevel level, std::string_view line) {
  LogState& state = log_state();
  if (static_cast<int>(level) < state.lowest) return;
  MutexLock lock(state.mutex);
  if (state.sink) state.sink(level, line);
}

}  // namespace millrace
