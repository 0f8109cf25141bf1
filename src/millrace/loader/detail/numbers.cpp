// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/text/strings.h"

namespace millrace::loader {

namespace {

using nlohmann::json;

constexpr std::byte kZeroBytes[8] = {};             // a zero of any dtype
constexpr std::byte kNullMark[1] = {std::byte{1}};  // Value::nulls of a null

// IEEE 754 half precision, as NumPy's float16.
struct Half {
  uint16_t bits = 0;

  explicit operator double() const {
    const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double size = 0;
    if (exponent == 0x1f) {
      size = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    } else {
      size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
    }
    return (bits & 0x8000) != 0 ? -size : size;
  }
};

// Calls `call` with a zero of the C++ type of a dtype of this machine's byte order; false: there is no such type.
template <class Call>
bool with_type(std::string_view dtype, const Call& call) {
  if (dtype.size() != 3 || dtype[0] == '>') return false;
  const std::string_view kind = dtype.substr(1);
  if (kind == "b1") return call(bool{}), true;
  if (kind == "i1") return call(int8_t{}), true;
  if (kind == "i2") return call(int16_t{}), true;
  if (kind == "i4") return call(int32_t{}), true;
  if (kind == "i8") return call(int64_t{}), true;
  if (kind == "u1") return call(uint8_t{}), true;
  if (kind == "u2") return call(uint16_t{}), true;
  if (kind == "u4") return call(uint32_t{}), true;
  if (kind == "u8") return call(uint64_t{}), true;
  if (kind == "f2") return call(Half{}), true;
  if (kind == "f4") return call(float{}), true;
  if (kind == "f8") return call(double{}), true;
  return false;
}

// Converts a number; false: `To` cannot represent it. A float dtype takes any number, rounded to the nearest.
template <class From, class To>
bool convert(From from, To& to) {
  if constexpr (std::same_as<From, Half>) {
    return convert(static_cast<double>(from), to);
  } else if constexpr (std::floating_point<To>) {
    to = static_cast<To>(from);
    return true;
  } else if constexpr (std::same_as<To, bool>) {
    to = from != From{};
    return from == From{} || from == static_cast<From>(1);
  } else if constexpr (std::same_as<From, bool>) {
    to = static_cast<To>(from ? 1 : 0);
    return true;
  } else if constexpr (std::integral<From>) {
    to = static_cast<To>(from);
    return std::in_range<To>(from);
  } else {
    // Both bounds are powers of two, so a double represents them exactly.
    constexpr double kEnd = static_cast<double>(std::numeric_limits<To>::max() / 2 + 1) * 2;
    constexpr double kBegin = static_cast<double>(std::numeric_limits<To>::min());
    const auto number = static_cast<double>(from);
    if (!(number >= kBegin && number < kEnd) || std::trunc(number) != number) return false;
    to = static_cast<To>(number);
    return true;
  }
}

template <class T>
T load(std::span<const std::byte> data, size_t item) {
  T value{};
  std::memcpy(&value, data.data() + item * sizeof value, sizeof value);
  return value;
}

tl::unexpected<Error> not_a_number(std::string_view where, std::string_view dtype) {
  return fail(ErrorCode::kInvalidArgument, "{}: values of dtype {} do not become numbers", where, dtype);
}

// Reads a null as `fill`: 0 where only a mask is asked for.
double filling(const FieldSpec& spec) {
  return spec.fill.value_or(0);
}

// Converts items of From to items of To; nulls become the filling.
template <class From, class To>
Status convert_items(const FieldSpec& spec, const Value& value, std::span<std::byte> out, std::string_view where) {
  const size_t items = value.data.size() / sizeof(From);
  for (size_t i = 0; i < items; ++i) {
    To converted{};
    const bool is_null = !value.nulls.empty() && value.nulls[i] != std::byte{0};
    const bool fits = is_null ? convert(filling(spec), converted) : convert(load<From>(value.data, i), converted);
    if (!fits) {
      std::string number;
      if (is_null) {
        number = fmt::format("fill={}", filling(spec));
      } else if constexpr (std::same_as<From, Half>) {
        number = fmt::format("{}", static_cast<double>(load<From>(value.data, i)));
      } else {
        number = fmt::format("{}", load<From>(value.data, i));
      }
      return fail(ErrorCode::kInvalidArgument, "{}: {} is not exactly a number of {}", where, number, spec.dtype);
    }
    std::memcpy(out.data() + i * sizeof converted, &converted, sizeof converted);
  }
  return {};
}

// Returns `value`, an array, with the dtype of `spec`, without nulls.
Result<Value> with_dtype(const FieldSpec& spec, Value value, std::string_view where) {
  FieldSpec target = spec;
  if (target.dtype.empty()) target.dtype = value.dtype;
  if (value.nulls.empty() && target.dtype == value.dtype) return value;
  Status status;
  std::vector<std::byte> out;
  const bool is_number = with_type(value.dtype, [&](auto from) {
    const bool is_known = with_type(target.dtype, [&](auto to) {
      using To = decltype(to);
      out.resize(value.data.size() / sizeof from * sizeof to);
      if constexpr (std::same_as<To, Half>) {
        status = fail(ErrorCode::kUnsupported, "{}: numbers are not converted to float16; use float32", where);
      } else {
        status = convert_items<decltype(from), To>(target, value, out, where);
      }
    });
    if (!is_known) status = not_a_number(where, target.dtype);
  });
  if (!is_number) return not_a_number(where, value.dtype);
  RETURN_IF_ERROR(status);
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(out));
  value.dtype = target.dtype;
  value.nulls = {};
  value.data = *owner;
  value.memory = owner;
  return value;
}

template <class T>
Value scalar(T number, std::string_view dtype) {
  auto owner = std::make_shared<const T>(number);
  return {.form = Value::Form::kArray,
          .dtype = std::string(dtype),
          .data = std::as_bytes(std::span(owner.get(), 1)),
          .memory = owner};
}

Result<Value> parse_number(std::string_view text, std::string_view where) {
  text = trimmed(text);
  const std::string_view shown = text.substr(0, 40);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto parse = [&](auto& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  };
  if (int64_t number = 0; parse(number)) return scalar(number, "<i8");
  if (uint64_t number = 0; parse(number)) return scalar(number, "<u8");
  if (double number = 0; parse(number)) return scalar(number, "<f8");
  return fail(ErrorCode::kCorruption, "{}: '{}' is not a number", where, shown);
}

Result<Value> null_number(const FieldSpec& spec, std::string_view dtype, std::string_view where) {
  Value null{.form = Value::Form::kArray, .dtype = std::string(dtype), .nulls = kNullMark};
  const bool is_known = with_type(dtype, [&](auto zero) { null.data = std::span(kZeroBytes).first(sizeof zero); });
  if (!is_known) return not_a_number(where, dtype);
  return with_dtype(spec, std::move(null), where);
}

// The numbers of nested lists, and the shape that they have.
struct Nested {
  std::vector<int64_t> shape;
  std::vector<double> numbers;
  std::vector<std::byte> nulls;
};

Status gather(const json& list, size_t depth, Nested& out, std::string_view where) {
  const auto size = static_cast<int64_t>(list.size());
  if (depth == out.shape.size()) out.shape.push_back(size);
  if (out.shape[depth] != size) {
    return fail(ErrorCode::kInvalidArgument, "{}: lists of {} and of {} numbers do not make an array", where,
                out.shape[depth], size);
  }
  for (const json& item : list) {
    if (item.is_array()) {
      if (depth + 1 == out.shape.size() && !out.numbers.empty()) {
        return fail(ErrorCode::kInvalidArgument, "{}: numbers beside lists do not make an array", where);
      }
      RETURN_IF_ERROR(gather(item, depth + 1, out, where));
      continue;
    }
    if ((!item.is_number() && !item.is_boolean() && !item.is_null()) || depth + 1 != out.shape.size()) {
      return fail(ErrorCode::kInvalidArgument, "{}: '{}' is not a number of an array", where,
                  item.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 40));
    }
    out.numbers.push_back(item.is_boolean() ? (item.get<bool>() ? 1 : 0) : item.is_null() ? 0 : item.get<double>());
    out.nulls.push_back(item.is_null() ? std::byte{1} : std::byte{0});
  }
  return {};
}

// Parses JSON such as [[1, 2], [3, 4]]. Numbers pass through float64, which represents integers up to 2^53 exactly.
Result<Value> parse_lists(std::string_view text, std::string_view where) {
  const json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_array()) {
    return fail(ErrorCode::kInvalidArgument, "{}: it is an object, which does not become an array", where);
  }
  Nested found;
  RETURN_IF_ERROR(gather(parsed, 0, found, where));
  auto owner = std::make_shared<const Nested>(std::move(found));
  Value value{.form = Value::Form::kArray, .dtype = "<f8", .shape = owner->shape};
  value.data = std::as_bytes(std::span(owner->numbers));
  if (std::ranges::any_of(owner->nulls, [](std::byte null) { return null != std::byte{0}; })) {
    value.nulls = owner->nulls;
  }
  value.memory = owner;
  return value;
}

}  // namespace

tl::unexpected<Error> unexpected_null(std::string_view where, std::string_view dtype, bool is_array) {
  if (is_array) {
    return fail(
        ErrorCode::kInvalidArgument,
        "{}: a null in a column of lists of {}: give mr.array(fill=...) for nulls in lists, or optional=True for "
        "rows without a list",
        where, dtype);
  }
  return fail(
      ErrorCode::kInvalidArgument,
      "{}: a null in a column of {}: give mr.number(fill=...), mr.number(mask=True), or optional=True for lists "
      "with None",
      where, dtype);
}

Result<Value> to_number(const FieldSpec& spec, const Value& value, std::string_view where) {
  using Form = Value::Form;
  if (value.form == Form::kNothing) {
    const std::string_view dtype = value.dtype.empty() ? std::string_view(spec.dtype) : std::string_view(value.dtype);
    if (!spec.fill && !spec.with_mask) return unexpected_null(where, dtype.empty() ? "numbers" : dtype, false);
    if (dtype.empty()) {
      return fail(ErrorCode::kInvalidArgument, "{}: a null in a column whose type is not known: give mr.number(dtype)",
                  where);
    }
    ASSIGN_OR_RETURN(Value number, null_number(spec, dtype, where));
    if (spec.with_mask) number.nulls = kNullMark;
    return number;
  }
  if (value.is_array()) {
    if (!value.shape.empty()) {
      return fail(ErrorCode::kInvalidArgument, "{}: it is an array of shape [{}]: give mr.array()", where,
                  fmt::join(value.shape, ", "));
    }
    return with_dtype(spec, value, where);
  }
  if (spec.dtype.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{}: it is text: give its type, such as mr.number('float32')", where);
  }
  ASSIGN_OR_RETURN(Value number, parse_number(as_text(value.data), where));
  return with_dtype(spec, std::move(number), where);
}

Result<Value> to_array(const FieldSpec& spec, Value value, std::string_view where) {
  if (value.form == Value::Form::kJson) {
    if (spec.dtype.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: it is a list of JSON: give its type, such as mr.array(dtype='int64')", where);
    }
    ASSIGN_OR_RETURN(value, parse_lists(as_text(value.data), where));
  }
  if (!value.nulls.empty() && !spec.fill) return unexpected_null(where, value.dtype, true);
  const auto fits = [](int64_t side, int64_t named) { return named == -1 || side == named; };
  if (!spec.shape.empty() && !std::ranges::equal(value.shape, spec.shape, fits)) {
    return fail(ErrorCode::kInvalidArgument, "{}: its shape is [{}], not [{}]", where, fmt::join(value.shape, ", "),
                fmt::join(spec.shape, ", "));
  }
  return with_dtype(spec, std::move(value), where);
}

}  // namespace millrace::loader
