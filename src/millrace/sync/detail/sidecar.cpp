// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/sidecar.h"

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {

std::string sidecar_key(std::string_view key) {
  const size_t name = key.rfind('/') + 1;  // 0 where there is none
  return std::string(key.substr(0, name)) + ".millrace/" + std::string(key.substr(name)) + ".blocks";
}

namespace {

Result<formats::BlockHashes> read_sidecar(Storage& storage, const std::string& key) {
  ASSIGN_OR_RETURN(const std::string file, read_object(storage, key));
  return formats::parse_block_hashes(as_bytes(file), key);
}

}  // namespace

Status check_not_emptied(Storage& storage, const ObjectInfo& object) {
  const std::string key = sidecar_key(object.key);
  const auto hashes = read_sidecar(storage, key);
  if (object.size > 0 || !hashes || hashes->object_size == 0) return {};
  return fail(ErrorCode::kCorruption,
              "{}: it is empty, and its block hashes are those of {}: it has lost its content (if another program "
              "emptied it, remove {}/{})",
              object.key, format_bytes(hashes->object_size), storage.name(), key);
}

Result<std::optional<formats::BlockHashes>> load_sidecar(Storage& storage, const ObjectInfo& object) {
  if (object.version.empty()) return std::nullopt;
  const auto hashes = read_sidecar(storage, sidecar_key(object.key));
  if (!hashes) {
    if (gave_no_answer(hashes.error())) return tl::unexpected(hashes.error());
    if (hashes.error().code() != ErrorCode::kNotFound) {
      log(LogLevel::kInfo, "block hashes are not used: {}", hashes.error().to_string());
    }
    return std::nullopt;
  }
  const bool fits = hashes->object_version == object.version && hashes->object_size == object.size &&
                    hashes->block_bytes == kBlockBytes;
  if (!fits) return std::nullopt;
  return *hashes;
}

void keep_sidecar(const Location& object, const formats::BlockHashes& hashes) {
  const Status stored = store_sidecar(*object.storage, object.key, hashes);
  if (!stored) log(LogLevel::kWarning, "{}: no block hashes are kept: {}", object.url, stored.error().to_string());
}

Status store_sidecar(Storage& storage, std::string_view key, const formats::BlockHashes& hashes) {
  return write_object(storage, sidecar_key(key), formats::serialize_block_hashes(hashes), {}, Durability::kVisible)
      .map([](const ObjectInfo&) {});
}

}  // namespace millrace::sync
