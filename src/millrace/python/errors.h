// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns an Error into a Python exception, which no other code does, and releases the GIL around blocking calls.

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/python/gil.h"

namespace millrace::python {

namespace nb = nanobind;

// Throws the exception for `error` (docs/design/python.md has the table).
[[noreturn]] void raise(const Error& error);

template <class T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Runs `call` without the GIL and unwraps its Result.
template <class Call>
auto without_gil(Call&& call) {
  auto result = [&] {
    const GilRelease release;
    return call();
  }();
  return unwrap(std::move(result));
}

// The interval at which a wait checks for Ctrl-C: too short for a person to notice, long enough to cost no CPU time.
inline constexpr std::chrono::milliseconds kSignalPoll{50};

// Raises KeyboardInterrupt (or the exception of a handler) when a signal arrived. REQUIRES: the GIL.
void check_signals();

// Returns `text` for people; bytes that are not UTF-8 are shown as \xff.
nb::str message_text(std::string_view text);

void register_errors(nb::module_& m);
void register_tokenizer(nb::module_& m);
void register_chat(nb::module_& m);
void register_prepare(nb::module_& m);
void register_dataset(nb::module_& m);
void register_loader(nb::module_& m);
void register_passes(nb::module_& m);
void register_checkpoint(nb::module_& m);
void register_sync(nb::module_& m);
void register_link(nb::module_& m);
void register_objects(nb::module_& m);
void register_episodes(nb::module_& m);
void register_record(nb::module_& m);
void register_rows(nb::module_& m);
void register_video(nb::module_& m);
void register_lerobot(nb::module_& m);
void register_lerobot_download(nb::module_& m);
void register_lerobot_feed(nb::module_& m);

}  // namespace millrace::python
