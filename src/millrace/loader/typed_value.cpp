// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/typed_value.h"

#include <cstring>

#include "millrace/base/io/io.h"
#include "millrace/base/text/utf8.h"

namespace millrace::loader {

namespace {

tl::unexpected<Error> damaged(std::string_view where, std::string_view what) {
  return fail(ErrorCode::kCorruption, "{}: {}", where, what);
}

Result<Value> parse_array(std::span<const std::byte> rest, bool has_nulls, std::string_view where) {
  if (rest.empty()) return damaged(where, "an array without a dtype");
  const auto dtype_size = static_cast<size_t>(rest[0]);
  rest = rest.subspan(1);
  if (rest.size() < dtype_size + 1) return damaged(where, "an array that is cut off");
  Value value{.form = Value::Form::kArray, .dtype = std::string(as_text(rest.first(dtype_size)))};
  const auto dimensions = static_cast<size_t>(rest[dtype_size]);
  rest = rest.subspan(dtype_size + 1);
  const auto item = dtype_bytes(value.dtype);
  if (!item) return damaged(where, fmt::format("an array of dtype '{}'; its items have no fixed size", value.dtype));
  if (rest.size() < dimensions * sizeof(int64_t)) return damaged(where, "an array that is cut off");
  int64_t bytes = *item, items = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    int64_t side = 0;
    std::memcpy(&side, rest.data() + i * sizeof side, sizeof side);
    if (side < 0 || __builtin_mul_overflow(bytes, side, &bytes)) return damaged(where, "an array of an unknown shape");
    items *= side;
    value.shape.push_back(side);
  }
  value.data = rest.subspan(dimensions * sizeof(int64_t));
  const int64_t expected = has_nulls ? bytes + items : bytes;
  if (std::ssize(value.data) != expected) return damaged(where, "an array of another size than its shape says");
  if (has_nulls) {
    value.nulls = value.data.subspan(static_cast<size_t>(bytes));
    value.data = value.data.first(static_cast<size_t>(bytes));
  }
  return value;
}

}  // namespace

Result<Value> parse_typed_value(std::span<const std::byte> bytes, std::string_view where) {
  if (bytes.empty()) return damaged(where, "a value without a type");
  const auto rest = bytes.subspan(1);
  switch (static_cast<char>(bytes[0])) {
    case 'b':
      return Value{.form = Value::Form::kBytes, .data = rest};
    case 'j':
      return Value{.form = Value::Form::kJson, .data = rest};
    case 'n':
      return Value{.form = Value::Form::kNothing};
    case 't':
      if (!is_utf8(as_text(rest))) return damaged(where, "no UTF-8");
      return Value{.form = Value::Form::kText, .data = rest};
    case 'a':
    case 'h':
      return parse_array(rest, static_cast<char>(bytes[0]) == 'h', where);
    case 'v':
      if (!dtype_bytes(as_text(rest))) return damaged(where, "a null of an unknown dtype");
      return Value{.form = Value::Form::kNothing, .dtype = std::string(as_text(rest))};
    default:
      return damaged(where, "a value of an unknown type");
  }
}

}  // namespace millrace::loader
