// SPDX-License-Identifier: Apache-2.0
#pragma once

// meta/modality.json of a dataset that is there: shown as the lines of a spec (modality.h), proposed, written.
// Thread-safe.

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
  size_t proposed = 0;  // how many of them were proposed from names: the last ones
  Version version = Version::kUnknown;
  std::string version_text;
  std::string stored_version;  // of the modality.json that is there; empty: there is none
};

// With `spec` its entries, and proposals for the kinds that it lacks. Without it those of the modality.json that is
// there, else proposals. Errors: as of read_dataset; invalid_argument (the spec, naming the line), corruption
// (modality.json cannot be read).
[[nodiscard]] Result<ModalityPlan> plan_modality(const Location& root, const std::optional<std::string>& spec);

// Writes the entries as meta/modality.json. Errors: already_exists (one is there and `replace` is not set), unsupported
// (the dataset is v3.0, which GR00T does not read), unavailable (it was changed meanwhile), those of writing.
[[nodiscard]] Status write_modality(const Location& root, const ModalityPlan& plan, bool replace);

}  // namespace millrace::lerobot
