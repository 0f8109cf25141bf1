// SPDX-License-Identifier: Apache-2.0
#pragma once

// Proves that the bucket has the content of a file. Thread-safe.

#include <stop_token>
#include <string>

#include "millrace/link/config.h"
#include "millrace/link/state.h"
#include "millrace/storage/checksum.h"
#include "millrace/storage/storage.h"

namespace millrace::link {

// Proves that the object has the file's content, and remembers the proof. Reads the file once if the proof is not
// known yet. Returns the first proof that applies: "checksum" (which the server keeps of the whole object), "etag",
// "sidecar", "content" (both were read). Returns "" if the two differ or either changed. Errors: those of reading.
[[nodiscard]] Result<std::string> prove(const LinkConfig& config, LinkState& state, const LinkFile& file,
                                        const std::stop_token& stop);

// Returns whether this version of a local file has the checksum `told`. Reads all of the file. Errors: corruption (the
// file has another version), unavailable (its content is in the bucket only), those of reading, cancelled.
[[nodiscard]] Result<bool> has_checksum(Storage& here, const ObjectInfo& file, const ContentChecksum& told,
                                        const std::stop_token& stop);

}  // namespace millrace::link
