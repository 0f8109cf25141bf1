// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

#include "millrace/order/pass_machine.h"
#include "millrace/python/errors.h"

namespace millrace::python {

namespace {

using order::PassMachine;
using StartTuple = std::pair<std::optional<int64_t>, int64_t>;  // of order::NextStart

// Calls `where`, which returns (number, is_over).
order::AskPosition asking(const nb::callable& where) {
  return [&where] {
    const auto [number, is_over] = nb::cast<std::pair<int64_t, bool>>(where());
    return order::PassPosition{number, is_over};
  };
}

StartTuple next_start(const PassMachine& self, const nb::callable& where) {
  const order::NextStart start = self.next_start(asking(where));
  return {start.number, start.moves};
}

std::optional<int64_t> pass_of_worker(const StartTuple& start, const StartTuple& last, bool is_endless,
                                      const nb::callable& where) {
  const auto number =
      order::pass_of_worker({start.first, start.second}, {last.first, last.second}, is_endless, asking(where));
  if (!number) throw std::runtime_error(number.error().message());  // RuntimeError
  return *number;
}

}  // namespace

// millrace::order::PassMachine; its header explains the methods.
void register_passes(nb::module_& m) {
  nb::class_<PassMachine>(m, "PassMachine",
                          "Decides which pass of a loader comes next. `where` is called to ask the reader for its "
                          "position, (number of the pass, whether it is over).")
      .def(nb::init<bool>(), nb::arg("is_endless"))
      .def("ask",
           [](PassMachine& self, int64_t number, const nb::callable& where) { return self.ask(number, asking(where)); })
      .def("loaded", &PassMachine::loaded)
      .def("moved", &PassMachine::moved)
      .def("began", &PassMachine::began)
      .def("gave", &PassMachine::gave)
      .def("ended", &PassMachine::ended)
      .def("for_begins", [](PassMachine& self, const nb::callable& where) { return self.for_begins(asking(where)); })
      .def("for_goes_on", &PassMachine::for_goes_on)
      .def("next_begins", &PassMachine::next_begins)
      .def("following",
           [](const PassMachine& self, const nb::callable& where) { return self.following(asking(where)); })
      .def("pass_of_length",
           [](const PassMachine& self, const nb::callable& where) { return self.pass_of_length(asking(where)); })
      .def("pass_of_state",
           [](const PassMachine& self, const nb::callable& where) { return self.pass_of_state(asking(where)); })
      .def("next_start", &next_start)
      .def_prop_ro("is_endless", &PassMachine::is_endless)
      .def_prop_ro("is_touched", &PassMachine::is_touched)
      .def_prop_ro("moves", &PassMachine::moves);
  m.def("pass_of_worker", &pass_of_worker, nb::arg("start"), nb::arg("last"), nb::arg("is_endless"), nb::arg("where"),
        "The pass that a worker of a DataLoader begins; None: it continues. Raises RuntimeError (workers have begun "
        "with an "
        "endless loader before).");
}

}  // namespace millrace::python
