// SPDX-License-Identifier: Apache-2.0
#pragma once

// Passes log lines to one sink, which the CLI or the Python package installs. The library itself never prints.
// Thread-safe.

#include <fmt/core.h>

#include <functional>
#include <string>
#include <string_view>

namespace millrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
std::string_view log_level_name(LogLevel level);

using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink and waits until no thread is inside the old one. Without a sink, lines are dropped. Several
// threads may call a sink at once. REQUIRES: not called from a sink.
void set_log_sink(LogSink sink, LogLevel lowest);

void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  log_line(level, fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace millrace
