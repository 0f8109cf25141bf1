// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes likely secrets from text that is stored or printed. Pure functions; thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::jobs {

inline constexpr std::string_view kRemovedSecret = "<removed>";

// Replaces the secrets in `text` by kRemovedSecret: values of names that end in TOKEN, PASSWORD, SECRET, API_KEY and
// the like (NAME=value, "name": "value", --name value), tokens known by their first letters (hf_, ghp_, sk-, AKIA, eyJ
// and others), passwords in URLs, Authorization headers, signatures of presigned URLs and private keys. References
// such as $HF_TOKEN stay. Adds the number of replacements to `*removed` unless it is null.
std::string without_secrets(std::string_view text, int64_t* removed = nullptr);

// Removes secrets from the words of a command, including the word after `--token`.
std::vector<std::string> without_secrets(std::span<const std::string> words, int64_t* removed = nullptr);

// Whether a variable or flag of this name holds a secret: "HF_TOKEN", "--api-key". Not "TOKENIZER".
bool names_secret(std::string_view name);

}  // namespace millrace::jobs
