// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one place where an Error becomes a Python exception, and the way blocking calls let go of the GIL.

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/sync.h"
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

// Runs `call` without the GIL and unwraps what it answers.
template <class Call>
auto without_gil(Call&& call) {
  auto result = [&] {
    const GilRelease release;
    return call();
  }();
  return unwrap(std::move(result));
}

// How long a wait goes on before it looks whether Ctrl-C was pressed.
inline constexpr std::chrono::milliseconds kSignalPoll{50};

// Raises KeyboardInterrupt (or what a handler raised) when a signal arrived. REQUIRES: the GIL.
void check_signals();

void register_errors(nb::module_& m);
void register_tokenizer(nb::module_& m);
void register_chat(nb::module_& m);
void register_prepare(nb::module_& m);
void register_loader(nb::module_& m);
void register_checkpoint(nb::module_& m);
void register_sync(nb::module_& m);

}  // namespace millrace::python
