// SPDX-License-Identifier: Apache-2.0
#pragma once

// Proves by a server's own hash that local content equals an object: its MD5s give the object's ETag in S3, or its
// SHA-256 or Git's SHA-1 is the file's version on the Hub. The ETag of an S3 object in parts is the MD5 of the parts'
// MD5s, so the size of the parts is guessed from the sizes that tools use. An ETag that does not match proves nothing:
// the parts may have another size, or the object may be encrypted with a key. Thread-safe.

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/storage/storage.h"

namespace millrace::sync {

// Returns "0123...ef" or, for an object in parts, "0123...ef-17"; for a file of the Hub its version. Empty for any
// other object or kind of ETag.
std::string_view etag_of(const Storage& storage, const ObjectInfo& object);

// Returns the part sizes, in bytes, with which `size` bytes may have become an object with `etag`; 0 means no parts.
std::vector<int64_t> possible_part_bytes(std::string_view etag, int64_t size);

struct ProvenContent {
  Hash128 hash;                 // XXH3-128 of the whole
  std::vector<Hash128> blocks;  // hashes of its blocks, if there is more than one
};

// Reads `content` once. Returns nothing if it is not proven to equal the object. Errors: those of reading, cancelled.
[[nodiscard]] Result<std::optional<ProvenContent>> prove_by_etag(const RandomReader& content, std::string_view etag,
                                                                 const std::stop_token& stop);

}  // namespace millrace::sync
