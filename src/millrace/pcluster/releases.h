// SPDX-License-Identifier: Apache-2.0
#pragma once

// The differences between versions of ParallelCluster, except for the keys of its files: systems, regions, limits,
// validators, and release dates. Read from data/facts.csv and data/noted.csv. Thread-safe.

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
  Version until;  // the first version without it; kNoVersion: the newest known version has it
};

// Returns nullptr if no version has the fact.
const ReleaseFact* find_release_fact(std::string_view kind, std::string_view value);
bool has_release_fact(std::string_view kind, std::string_view value, const Version& version);
// Returns the values of a kind in `version`, in the order of the table.
std::vector<std::string_view> release_values(std::string_view kind, const Version& version);
// Returns the number of a kind in `version`; nullopt if that version has none.
std::optional<int64_t> release_limit(std::string_view kind, const Version& version);
// Returns "3.16 (2026-08-20)"; without the date if it is unknown.
std::string dated(const Version& version);
// Returns "it came with 3.13 (2025-04-01)" or "it went with 3.16 (2026-08-20)", for a fact that `version` does not
// have.
std::string came_or_went(const Version& since, const Version& until, const Version& version);

// Returns the lines of a table of this room, split at commas, without comments and heading.
std::vector<std::vector<std::string_view>> table_rows(std::string_view csv);

}  // namespace millrace::pcluster
