// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "millrace/base/log.h"
#include "millrace/base/metrics.h"
#include "millrace/link/stub_reader.h"
#include "millrace/python/errors.h"

namespace millrace::python {

namespace {

// Sends log lines to a Python callable (level, text); None ends that. Worker threads take the GIL for a line, which
// they must not do once the interpreter is ending. So the package passes None at exit, and this function waits until no
// thread is in the callable.
void set_python_log(nb::object callable) {
  LogSink sink;
  if (!callable.is_none()) {
    auto* const kept = new nb::object(std::move(callable));  // lives as long as the process
    sink = [kept](LogLevel level, std::string_view line) {
      nb::gil_scoped_acquire gil;
      try {
        (*kept)(message_text(log_level_name(level)), message_text(line));
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

nb::dict process_metrics_dict() {
  nb::dict d;
  for (size_t i = static_cast<size_t>(Metric::kRequests); i < metric_defs().size(); ++i) {
    d[nb::str(metric_defs()[i].name.data())] = process_metrics().count(static_cast<Metric>(i));
  }
  return d;
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // users cannot fix objects that a daemon thread holds as Python ends
  m.doc() = "The C++ core of Millrace. Use the names of the package `millrace`; this module is its inside.";
  m.attr("__version__") = MILLRACE_VERSION;
  link::read_stubs_from_buckets();
  register_errors(m);
  m.def("set_log", &set_python_log, nb::arg("callable").none(),
        "Hands log lines to callable(level: str, text: str); None drops them.");
  m.def("metric_table", &metric_table, nb::sig("def metric_table() -> list[dict[str, str]]"),
        "Lists every metric: name, unit, stability, help.");
  m.def("metrics", &process_metrics_dict, nb::sig("def metrics() -> dict[str, int]"),
        "The requests of this process to servers so far (loaders, checkpoints, copies): requests, retries,\n"
        "slow_downs, sent_bytes, received_bytes; docs/metrics.md explains each.");
  register_tokenizer(m);
  register_chat(m);
  register_prepare(m);
  register_dataset(m);
  register_loader(m);
  register_passes(m);
  register_checkpoint(m);
  register_sync(m);
  register_link(m);
  register_objects(m);
  register_episodes(m);
  register_record(m);
  register_rows(m);
  register_video(m);
  register_lerobot(m);
  register_lerobot_download(m);
  register_lerobot_feed(m);
}

}  // namespace millrace::python
