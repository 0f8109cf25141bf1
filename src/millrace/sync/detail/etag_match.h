// SPDX-License-Identifier: Apache-2.0
#pragma once

// Proof by a server's own hash: content that is here is what an object holds when its MD5s give the object's ETag in
// S3, or when its SHA-256 or Git's SHA-1 is the file's version on the Hub. An S3 object in parts has the MD5 of the
// parts' MD5s, so their size is guessed among those that tools use. An ETag that does not fit is no proof: the parts
// may have another size, the object may be encrypted with a key. Thread-safe.

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/storage/storage.h"

namespace millrace::sync {

// "0123...ef" or, for an object in parts, "0123...ef-17"; the version of a file of the Hub. Empty for what is neither,
// or has another kind of ETag.
std::string_view etag_of(const Storage& storage, const ObjectInfo& object);

// The part sizes, in bytes, with which `size` bytes may have become an object with `etag`; 0 stands for no parts.
std::vector<int64_t> possible_part_bytes(std::string_view etag, int64_t size);

struct ProvenContent {
  Hash128 hash;                 // XXH3-128 of the whole
  std::vector<Hash128> blocks;  // hashes of its blocks, where there is more than one
};

// Reads `content` once. None where it is not proven to be the object's. Errors: those of reading, cancelled.
[[nodiscard]] Result<std::optional<ProvenContent>> prove_by_etag(const RandomReader& content, std::string_view etag,
                                                                 const std::stop_token& stop);

}  // namespace millrace::sync
