// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shows, proposes and writes the meta/modality.json of an existing dataset. Entries are shown as the lines of a spec
// (modality.h). Thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "millrace/lerobot/modality.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {

struct ModalityPlan {
  enum class Origin { kFile, kSpec, kProposed };
  Origin origin = Origin::kProposed;
  std::vector<ModalityEntry> entries;
  size_t proposed = 0;  // this many of the last entries were proposed from names
  Version version = Version::kUnknown;
  std::string version_text;
  std::string stored_version;  // version of the existing modality.json; empty: there is none
};

// Returns the entries of `spec` and proposals for the kinds it lacks. Without a `spec`, returns the entries of the
// existing modality.json, or only proposals if there is none. Errors: those of read_dataset; invalid_argument (the
// spec, naming the line), corruption (modality.json cannot be read).
[[nodiscard]] Result<ModalityPlan> plan_modality(const Location& root, const std::optional<std::string>& spec);

// Writes the entries as meta/modality.json. Errors: already_exists (the file exists and `replace` is not set),
// unsupported (the dataset is v3.0, which GR00T does not read), unavailable (the file was changed meanwhile), those of
// writing.
[[nodiscard]] Status write_modality(const Location& root, const ModalityPlan& plan, bool replace);

}  // namespace millrace::lerobot
