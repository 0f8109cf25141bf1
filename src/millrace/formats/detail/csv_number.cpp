// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/detail/csv_number.h"

#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "millrace/base/text/strings.h"

namespace millrace::formats::detail {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";  // that float() leaves out

// float() takes an underscore between two digits.
bool drop_underscores(std::string& text) {
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      text[kept++] = text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return false;
    }
  }
  text.resize(kept);
  return true;
}

// `digits` has no sign. The library's strtod rounds correctly too, and tells the smallest numbers from zero.
NumberStatus parse_extreme(const std::string& digits, double& value) {
  static const locale_t kC = newlocale(LC_ALL_MASK, "C", nullptr);
  value = strtod_l(digits.c_str(), nullptr, kC);
  return std::isinf(value) ? NumberStatus::kTooLarge : NumberStatus::kOk;
}

NumberStatus parse_digits(const std::string& digits, double& value) {
  // from_chars knows words and a sign as well, which are not for here.
  if (digits.empty() || (!is_digit(digits.front()) && digits.front() != '.')) return NumberStatus::kNotANumber;
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, value);
  if (stopped != end || error == std::errc::invalid_argument) return NumberStatus::kNotANumber;
  return error == std::errc::result_out_of_range ? parse_extreme(digits, value) : NumberStatus::kOk;
}

}  // namespace

NumberStatus parse_number(std::string_view cell, char point, double& value) {
  cell = trimmed(cell, kSpaces);
  const bool negative = cell.starts_with('-');
  if (negative || cell.starts_with('+')) cell.remove_prefix(1);
  NumberStatus status = NumberStatus::kOk;
  if (equal_ignoring_case(cell, "inf") || equal_ignoring_case(cell, "infinity")) {
    value = std::numeric_limits<double>::infinity();
  } else if (equal_ignoring_case(cell, "nan")) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    std::string digits(cell);
    if (point != '.') {
      if (digits.find('.') != std::string::npos) return NumberStatus::kNotANumber;
      if (const size_t at = digits.find(point); at != std::string::npos) digits[at] = '.';
    }
    if (!drop_underscores(digits)) return NumberStatus::kNotANumber;
    status = parse_digits(digits, value);
  }
  if (negative) value = -value;
  return status;
}

}  // namespace millrace::formats::detail
