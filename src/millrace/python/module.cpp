// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "millrace/base/log.h"
#include "millrace/base/metrics.h"
#include "millrace/python/errors.h"

namespace millrace::python {

namespace {

// Lines go to a Python callable (level, text); None ends that. Worker threads take the GIL for a line, which they must
// not try once the interpreter is going away: the package passes None at exit, and this waits until no thread is in the
// callable.
void set_python_log(nb::object callable) {
  LogSink sink;
  if (!callable.is_none()) {
    auto* const kept = new nb::object(std::move(callable));  // lives as long as the process
    sink = [kept](LogLevel level, std::string_view line) {
      nb::gil_scoped_acquire gil;
      try {
        (*kept)(std::string(log_level_name(level)), std::string(line));
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("millrace log");
      }
    };
  }
  const GilRelease release;
  set_log_sink(std::move(sink), LogLevel::kInfo);
}

nb::list metric_table() {
  nb::list rows;
  for (const MetricDef& def : metric_defs()) {
    nb::dict row;
    row["name"] = def.name;
    row["unit"] = def.unit;
    row["stability"] = def.stability;
    row["help"] = def.help;
    rows.append(row);
  }
  return rows;
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // what a daemon thread still holds as Python ends is nothing that users can mend
  m.doc() = "The C++ core of Millrace. Use the names of the package `millrace`; this module is its inside.";
  m.attr("__version__") = MILLRACE_VERSION;
  register_errors(m);
  m.def("set_log", &set_python_log, nb::arg("callable").none(),
        "Hands log lines to callable(level: str, text: str); None drops them.");
  m.def("metric_table", &metric_table, nb::sig("def metric_table() -> list[dict[str, str]]"),
        "Every metric: name, unit, stability, help.");
  register_tokenizer(m);
  register_chat(m);
  register_prepare(m);
  register_loader(m);
  register_checkpoint(m);
  register_sync(m);
}

}  // namespace millrace::python
