// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block hashes that lie beside an object: read where they fit it, written after it. Thread-safe.

#include <optional>
#include <string>
#include <string_view>

#include "millrace/formats/block_hashes.h"
#include "millrace/storage/storage.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

// "a/b/.millrace/c.blocks" for "a/b/c".
std::string sidecar_key(std::string_view key);

// std::nullopt when there are none, they are damaged, or they are of another version or size: hashes that do not fit
// are as good as none. Errors: timeout.
[[nodiscard]] Result<std::optional<formats::BlockHashes>> load_sidecar(Storage& storage, const ObjectInfo& object);

// An empty object beside which block hashes of another size lie has lost its content. Errors: corruption, naming both
// and the way out.
[[nodiscard]] Status check_not_emptied(Storage& storage, const ObjectInfo& object);

// As store_sidecar(), but a failure is only a warning: the object is right without the hashes. Its next copy has less
// to compare with.
void keep_sidecar(const Location& object, const formats::BlockHashes& hashes);
[[nodiscard]] Status store_sidecar(Storage& storage, std::string_view key, const formats::BlockHashes& hashes);

}  // namespace millrace::sync
