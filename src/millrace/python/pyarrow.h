// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the pyarrow package, whose Arrow library reads and writes tables.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "millrace/formats/parquet.h"

namespace millrace::python {

// Looks for pyarrow as Python would import it, but does not import it, which takes half a second. REQUIRES: the GIL.
inline void find_pyarrow() {
  namespace nb = nanobind;
  const nb::object spec = nb::module_::import_("importlib.util").attr("find_spec")("pyarrow");
  if (spec.is_none() || spec.attr("origin").is_none()) return;
  const auto file = nb::cast<std::string>(spec.attr("origin"));
  formats::set_pyarrow_folder(file.substr(0, file.rfind('/')));
}

}  // namespace millrace::python
