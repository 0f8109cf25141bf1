// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts the fields of samples from Python, and the columns of a batch to Python.

#include <memory>

#include "millrace/loader/batch.h"
#include "millrace/loader/fields.h"
#include "millrace/python/errors.h"

namespace millrace::python {

// Parses `specs`, a list of dicts as millrace.fields makes them. A dict with "all" takes all fields. A tokenizer in
// `specs` must outlive the result.
std::shared_ptr<const loader::SampleFields> parse_fields(const nb::list& specs);

// Adds '__key__' and an entry for each column: an array, or a list of arrays, bytes or str, with None for gaps. A
// padded column gets a second entry with its lengths, named with "_lengths" appended.
void add_columns(const loader::Batch& batch, nb::dict& out);

}  // namespace millrace::python
