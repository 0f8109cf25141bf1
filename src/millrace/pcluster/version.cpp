// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/version.h"

#include <cassert>
#include <charconv>
#include <vector>

namespace millrace::pcluster {

Result<Version> parse_version(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  for (bool more = true; more && numbers.size() < 4;) {
    int number = -1;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0) break;
    numbers.push_back(number);
    more = next != end && *next == '.';
    at = next + (more ? 1 : 0);
  }
  const bool shape = at == end && (numbers.size() == 2 || numbers.size() == 3);
  if (!shape || numbers[0] != 3 || numbers[1] > 99) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is not a version of ParallelCluster 3, such as 3.16 or 3.11.1",
                text);
  }
  return Version{numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 0};
}

Version known_version(std::string_view text) {
  const Result<Version> version = parse_version(text);
  assert(version.has_value());
  return version.value_or(kNoVersion);
}

std::string to_string(const Version& version) {
  std::string text = fmt::format("{}.{}", version.major, version.minor);
  return version.patch == 0 ? text : text + fmt::format(".{}", version.patch);
}

}  // namespace millrace::pcluster
