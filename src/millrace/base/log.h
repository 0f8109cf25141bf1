// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library never prints: it hands lines to one sink that the CLI or the Python package installs. Thread-safe.

#include <fmt/core.h>

#include <functional>
#include <string>
#include <string_view>

namespace millrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
std::string_view log_level_name(LogLevel level);

using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink and waits until no thread is inside the old one; without a sink, lines are dropped. A sink may be
// called from any thread, from several at once. REQUIRES: not called from a sink.
void set_log_sink(LogSink sink, LogLevel lowest);

void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  log_line(level, fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace millrace
