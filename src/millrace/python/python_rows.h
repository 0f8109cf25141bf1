// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads rows through a Python object, a millrace.sources.SampleSource.

#include "millrace/loader/options.h"
#include "millrace/python/errors.h"

namespace millrace::python {

// Opens `rows`, an object with `_facts()` and `_read(shard, begin, end)`; returns an empty function for None. The
// object must outlive the loader.
loader::OpenSource open_rows(nb::handle rows);

}  // namespace millrace::python
