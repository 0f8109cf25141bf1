// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sealed JSON: a canonical object with the members "format", "version" and "checksum". The checksum is the XXH3-128,
// as 32 hexadecimal digits, of the text without that member and the comma after it. Thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/base/text/json_fields.h"
#include "millrace/base/text/json_writer.h"

namespace millrace {

// The formats and versions that a reader accepts.
struct SealedFormat {
  std::string_view name;
  int64_t oldest = 1, newest = 1;            // versions
  ErrorCode other = ErrorCode::kCorruption;  // the error for a document of another format
};

// Writes the member "checksum" with zeros, which seal() replaces. Another member must follow.
void put_checksum(JsonWriter& json);
// Returns `text` with its checksum set. REQUIRES: `text` is one object of a JsonWriter on which put_checksum() was
// called.
std::string seal(std::string text);

// Parses a compact text and checks its checksum, format and version. Errors, which name `source`: corruption,
// format.other, unsupported (version).
[[nodiscard]] Result<JsonDocument> unseal(std::string_view text, const SealedFormat& format, std::string_view source);

}  // namespace millrace
