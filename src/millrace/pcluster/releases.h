// SPDX-License-Identifier: Apache-2.0
#pragma once

// What differs between versions of ParallelCluster beside the keys of its files: systems, regions, limits, validators,
// and when each version came out. Read from data/facts.csv and data/noted.csv. Thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/pcluster/version.h"

namespace millrace::pcluster {

struct ReleaseFact {
  std::string_view kind;   // "os", "region", "root_volume_gib"
  std::string_view value;  // "ubuntu2404", "45"
  Version since;
  Version until;  // the first version without it; kNoVersion: the newest known one has it
};

// Null where no version has it.
const ReleaseFact* find_release_fact(std::string_view kind, std::string_view value);
bool has_release_fact(std::string_view kind, std::string_view value, const Version& version);
// The values of a kind that `version` has, in the order of the table.
std::vector<std::string_view> release_values(std::string_view kind, const Version& version);
// The number of a kind in `version`. Nothing where that version has none.
std::optional<int64_t> release_limit(std::string_view kind, const Version& version);
// "3.16 (2026-08-20)"; without the day where it is not known.
std::string dated(const Version& version);
// "it came with 3.13 (2025-04-01)" or "it went with 3.16 (2026-08-20)", for what `version` does not have.
std::string came_or_went(const Version& since, const Version& until, const Version& version);

// The lines of a table of this room, without its comments and its heading, cut at commas.
std::vector<std::vector<std::string_view>> table_rows(std::string_view csv);

}  // namespace millrace::pcluster
