// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/releases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "millrace/base/text/strings.h"

namespace millrace::pcluster {

namespace data {
extern const std::string_view k_facts, k_noted;
}

namespace {

std::vector<ReleaseFact> read_facts() {
  std::vector<ReleaseFact> facts;
  for (const std::string_view csv : {data::k_noted, data::k_facts}) {
    for (const auto& row : table_rows(csv)) {
      facts.push_back({row[0], row[1], known_version(row[2]), row[3].empty() ? kNoVersion : known_version(row[3])});
    }
  }
  return facts;
}

// Those that are noted by hand come first.
const std::vector<ReleaseFact>& release_facts() {
  static const std::vector<ReleaseFact> kFacts = read_facts();
  return kFacts;
}

bool holds(const ReleaseFact& fact, const Version& version) {
  return fact.since <= version && version < fact.until;
}

}  // namespace

std::vector<std::vector<std::string_view>> table_rows(std::string_view csv) {
  std::vector<std::vector<std::string_view>> rows;
  bool heading = true;
  while (!csv.empty()) {
    const std::string_view line = take_line(csv);
    if (line.empty() || line.starts_with('#')) continue;
    if (std::exchange(heading, false)) continue;
    rows.push_back(split(line, ','));
  }
  return rows;
}

const ReleaseFact* find_release_fact(std::string_view kind, std::string_view value) {
  const auto& facts = release_facts();
  const auto found = std::find_if(facts.begin(), facts.end(),
                                  [&](const ReleaseFact& f) { return f.kind == kind && f.value == value; });
  return found == facts.end() ? nullptr : &*found;
}

bool has_release_fact(std::string_view kind, std::string_view value, const Version& version) {
  const ReleaseFact* fact = find_release_fact(kind, value);
  return fact != nullptr && holds(*fact, version);
}

std::vector<std::string_view> release_values(std::string_view kind, const Version& version) {
  std::vector<std::string_view> values;
  for (const ReleaseFact& fact : release_facts()) {
    if (fact.kind == kind && holds(fact, version)) values.push_back(fact.value);
  }
  return values;
}

std::optional<int64_t> release_limit(std::string_view kind, const Version& version) {
  const std::vector<std::string_view> values = release_values(kind, version);
  if (values.empty()) return std::nullopt;
  int64_t limit = 0;
  std::from_chars(values.front().data(), values.front().data() + values.front().size(), limit);
  return limit;
}

std::string dated(const Version& version) {
  for (const ReleaseFact& fact : release_facts()) {
    if (fact.kind == "release" && fact.since == version) {
      return fmt::format("{} ({})", to_string(version), fact.value);
    }
  }
  return to_string(version);
}

std::string came_or_went(const Version& since, const Version& until, const Version& version) {
  return version < since ? fmt::format("came with {}", dated(since)) : fmt::format("went with {}", dated(until));
}

}  // namespace millrace::pcluster
