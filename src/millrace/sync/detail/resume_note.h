// SPDX-License-Identifier: Apache-2.0
#pragma once

// The note that a copy writes next to its unfinished target. With the note, another process can prove the parts at the
// target and continue. Values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/hash/hash.h"

namespace millrace::sync {

struct ResumeNote {
  Hash128 identity;   // hash of everything that must be the same: see copy_identity
  int64_t parts = 0;  // the number of written parts, counted from the first without a gap
  Hash128 digest;     // XXH3-128 of their content
  auto operator<=>(const ResumeNote&) const = default;
};

// Returns the identity of a copy: the hash of source, version, target, size and part size.
Hash128 copy_identity(std::string_view source, std::string_view version, std::string_view target, int64_t size,
                      int64_t part_bytes);

std::string serialize_note(const ResumeNote& note);
// Parses a note. Returns std::nullopt for any other text: damaged, of another version, of another program.
std::optional<ResumeNote> parse_note(std::string_view text);

}  // namespace millrace::sync
