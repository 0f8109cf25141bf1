// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads and writes the block hashes stored next to an object. They are read only if they match the object, and written
// after it. Thread-safe.

#include <optional>
#include <string>
#include <string_view>

#include "millrace/formats/block_hashes.h"
#include "millrace/storage/storage.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

// Returns "a/b/.millrace/c.blocks" for "a/b/c".
std::string sidecar_key(std::string_view key);

// Loads the block hashes of an object. Returns std::nullopt when there are none, they are damaged, or they belong to
// another version or size. Errors: timeout.
[[nodiscard]] Result<std::optional<formats::BlockHashes>> load_sidecar(Storage& storage, const ObjectInfo& object);

// Checks that an empty object has not lost its content. It has if the block hashes next to it are of another size.
// Errors: corruption, naming both and the remedy.
[[nodiscard]] Status check_not_emptied(Storage& storage, const ObjectInfo& object);

// Stores block hashes as store_sidecar() does, but a failure is only a warning. The object is valid without the
// hashes; its next copy has less to compare with.
void keep_sidecar(const Location& object, const formats::BlockHashes& hashes);
[[nodiscard]] Status store_sidecar(Storage& storage, std::string_view key, const formats::BlockHashes& hashes);

}  // namespace millrace::sync
