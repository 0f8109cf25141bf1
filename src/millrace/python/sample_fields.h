// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fields of samples as Python gives them, and the columns of a batch as Python takes them.

#include <memory>

#include "millrace/loader/batch.h"
#include "millrace/loader/fields.h"
#include "millrace/python/errors.h"

namespace millrace::python {

// `specs` is a list of dicts as millrace.fields makes them; one with "all" takes all fields. A tokenizer in it must
// outlive what is returned.
std::shared_ptr<const loader::SampleFields> parse_fields(const nb::list& specs);

// Adds '__key__' and an entry for each column: an array, or a list of arrays, bytes or str, with None for gaps. A
// padded column has its lengths beside it, under its name and "_lengths".
void add_columns(const loader::Batch& batch, nb::dict& out);

}  // namespace millrace::python
