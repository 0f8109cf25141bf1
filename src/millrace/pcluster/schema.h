// SPDX-License-Identifier: Apache-2.0
#pragma once

// The keys of a ParallelCluster file as a table (data/schema.csv): section, key, allowed values, the versions with
// this form of the key, and the rule that reports other values. Rules over several keys are in rules.h. Thread-safe.

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "millrace/pcluster/version.h"

namespace millrace::pcluster {

enum class Value {
  kText,    // `detail`: allowed words "A|B", or the name of a pattern "@subnet", or empty
  kInt,     // `detail`: a range "1..5", "0..", or words
  kNumber,  // as for kInt
  kBool,
  kSection,
  kSections,  // a list of sections
  kTexts,     // a list of texts, each as described by `detail`
  kInts,
  kPairs,  // a mapping of free keys to scalars
  kPairsList,
  kAction,  // a custom action: Script with Args, or a Sequence of them
  kAnything,
};

// A key in the form that it has from version `since` until before `until`. A key that changed has several rows.
struct Key {
  std::string_view section;  // "": the file itself; "Scheduling.SlurmQueues[].Networking"
  std::string_view name;
  Value value = Value::kAnything;
  std::string_view detail = {};
  int64_t least_items = 0;  // length of a list
  int64_t most_items = std::numeric_limits<int64_t>::max();
  bool required = false;
  Version since = {3, 0, 0};
  Version until = kNoVersion;      // kNoVersion: the newest known version has it
  std::string_view rule = "PC63";  // reports a value that is not allowed
};

// Returns all keys by section and name, older ones first.
std::span<const Key> schema();
// Returns the key as it is in `version`; nullptr if that version lacks it.
const Key* find_key(std::string_view section, std::string_view name, const Version& version);
// Returns the key as it is in the version nearest to `version`; nullptr if no version has it.
const Key* find_nearest_key(std::string_view section, std::string_view name, const Version& version);

// A named pattern of the schema ("@subnet"). `fits`: whether a text matches. `hint`: the pattern in words.
struct Pattern {
  std::string_view name;
  bool (*fits)(std::string_view text);
  std::string_view hint;
};
// REQUIRES: the table names this pattern.
const Pattern& find_pattern(std::string_view name);

// Returns whether `text` is a placeholder to be replaced: "subnet-xxxxxxxxx", "cr-0123...", "<your-bucket>",
// "REPLACE_ME".
bool is_placeholder(std::string_view text);

}  // namespace millrace::pcluster
