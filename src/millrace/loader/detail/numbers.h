// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts the numbers of fields to the dtype that a FieldSpec names, and fills nulls. Pure functions; thread-safe.

#include <string_view>

#include "millrace/base/status.h"
#include "millrace/loader/fields.h"

namespace millrace::loader {

// Converts a value to a number (kNumber): an array without dimensions, digits as text, or a null. Value::nulls is set
// only with FieldSpec::with_mask, and the item of a null is FieldSpec::fill or 0. Errors: invalid_argument (another
// form; a number that the dtype cannot represent: an integer dtype takes whole numbers within its range only; a null
// without `fill` and `with_mask`), corruption (text that is not a number).
[[nodiscard]] Result<Value> to_number(const FieldSpec& spec, const Value& value, std::string_view where);

// Converts an array, or nested lists of numbers as JSON, to the dtype and shape of a kNpy spec; nulls are filled.
// Errors: as above; invalid_argument (another shape, lists of different lengths).
[[nodiscard]] Result<Value> to_array(const FieldSpec& spec, Value value, std::string_view where);

// Returns the error for a null in a column that has no rule for nulls. `is_array`: the null is in an array, or is one.
tl::unexpected<Error> unexpected_null(std::string_view where, std::string_view dtype, bool is_array);

}  // namespace millrace::loader
