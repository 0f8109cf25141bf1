// SPDX-License-Identifier: Apache-2.0
#pragma once

// The keys of a ParallelCluster file as a table: section, key, allowed values, first version, and the rule
// that reports other values. Rules over several keys are in rules.h. Thread-safe.

#include <span>
#include <string_view>

#include "millrace/pcluster/version.h"

namespace millrace::pcluster {

enum class Value {
  kText,    // `detail`: allowed words "A|B", or the name of a pattern "@subnet", or empty
  kInt,     // `detail`: a range "1..5", "0.." or words
  kNumber,  // as kInt
  kBool,
  kSection,   // `detail`: the section below
  kSections,  // a list of them
  kTexts,     // a list of texts, each as `detail` says
  kInts,
  kPairs,  // a mapping of free keys to scalars
  kPairsList,
  kAction,  // a custom action: Script with Args, or a Sequence of them
  kAnything,
};

struct Key {
  std::string_view section;  // "" is the file itself; "SlurmQueue.Networking"
  std::string_view name;
  Value value;
  std::string_view detail = {};
  bool required = false;
  Version since = {3, 0, 0};
  std::string_view rule = "PC63";  // for a value that is not allowed
};

std::span<const Key> schema();
// Null where `section` has no such key.
const Key* find_key(std::string_view section, std::string_view name);

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
