// SPDX-License-Identifier: Apache-2.0
#pragma once

// The keys of a ParallelCluster file as a table (data/schema.csv): section, key, allowed values, the versions that have
// it so, and the rule that reports other values. Rules over several keys are in rules.h. Thread-safe.

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "millrace/pcluster/version.h"

namespace millrace::pcluster {

enum class Value {
  kText,    // `detail`: allowed words "A|B", or the name of a pattern "@subnet", or empty
  kInt,     // `detail`: a range "1..5", "0.." or words
  kNumber,  // as kInt
  kBool,
  kSection,
  kSections,  // a list of them
  kTexts,     // a list of texts, each as `detail` says
  kInts,
  kPairs,  // a mapping of free keys to scalars
  kPairsList,
  kAction,  // a custom action: Script with Args, or a Sequence of them
  kAnything,
};

// A key as the versions from `since` until before `until` have it. A key that changed has several.
struct Key {
  std::string_view section;  // "" is the file itself; "Scheduling.SlurmQueues[].Networking"
  std::string_view name;
  Value value = Value::kAnything;
  std::string_view detail = {};
  int64_t least_items = 0;  // of a list
  int64_t most_items = std::numeric_limits<int64_t>::max();
  bool required = false;
  Version since = {3, 0, 0};
  Version until = kNoVersion;      // kNoVersion: the newest known version has it
  std::string_view rule = "PC63";  // for a value that is not allowed
};

// By section and name, older ones first.
std::span<const Key> schema();
// As `version` has it. Null where it has no such key.
const Key* find_key(std::string_view section, std::string_view name, const Version& version);
// As the version nearest to `version` has it. Null where none has such a key.
const Key* find_nearest_key(std::string_view section, std::string_view name, const Version& version);

// Whether `text` fits a pattern of the schema ("@subnet"). Sets `hint` to the pattern in words.
struct Pattern {
  std::string_view name;
  bool (*fits)(std::string_view text);
  std::string_view hint;
};
// REQUIRES: a pattern that the table names.
const Pattern& find_pattern(std::string_view name);

// Placeholders that a person should have replaced: "subnet-xxxxxxxxx", "cr-0123...", "<your-bucket>", "REPLACE_ME".
bool is_placeholder(std::string_view text);

}  // namespace millrace::pcluster
