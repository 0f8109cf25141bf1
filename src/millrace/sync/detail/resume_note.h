// SPDX-License-Identifier: Apache-2.0
#pragma once

// The note that a copy writes beside its unfinished target. With it, another process can prove what is there and go on.
// Values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/hash/hash.h"

namespace millrace::sync {

struct ResumeNote {
  Hash128 identity;   // hash of everything that must be the same: see copy_identity
  int64_t parts = 0;  // the number of parts, from the first on, that are written
  Hash128 digest;     // XXH3-128 of their content
  auto operator<=>(const ResumeNote&) const = default;
};

// Identifies a copy: where the bytes come from and go to, in which version, size and parts.
Hash128 copy_identity(std::string_view source, std::string_view version, std::string_view target, int64_t size,
                      int64_t part_bytes);

std::string serialize_note(const ResumeNote& note);
// std::nullopt for what is not a whole note: damaged, of another version, of another program.
std::optional<ResumeNote> parse_note(std::string_view text);

}  // namespace millrace::sync
