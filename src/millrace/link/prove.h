// SPDX-License-Identifier: Apache-2.0
#pragma once

// What proves that the bucket has the content of a file. Thread-safe.

#include <stop_token>
#include <string>

#include "millrace/link/config.h"
#include "millrace/link/state.h"
#include "millrace/storage/checksum.h"
#include "millrace/storage/storage.h"

namespace millrace::link {

// What proves that the object has the file's content, by the first of these that can, with one reading of the file
// where it is not known yet: "checksum" (which the server keeps of the whole object), "etag", "sidecar", "content"
// (both were read). It is remembered. "" where the two differ or either changed. Errors: those of reading.
[[nodiscard]] Result<std::string> prove(const LinkConfig& config, LinkState& state, const LinkFile& file,
                                        const std::stop_token& stop);

// Whether this version of a local file has that checksum. Reads all of it. Errors: corruption (another version is
// there), unavailable (its content is in the bucket only), those of reading, cancelled.
[[nodiscard]] Result<bool> has_checksum(Storage& here, const ObjectInfo& file, const ContentChecksum& told,
                                        const std::stop_token& stop);

}  // namespace millrace::link
