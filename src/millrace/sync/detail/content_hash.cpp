// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/content_hash.h"

#include <algorithm>

#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

// What all of them take at once, so that the second finds it in the cache.
constexpr int64_t kSliceBytes = 64 << 10;

}  // namespace

ContentHash::ContentHash(bool whole, bool blocks, std::optional<ContentChecksum::Kind> checksum) {
  if (whole) whole_.emplace();
  if (blocks) block_.emplace();
  if (checksum) checksum_ = ContentChecksum::begin(*checksum);
}

void ContentHash::update(std::span<const std::byte> bytes) {
  if (!block_ && !checksum_) {
    if (whole_) whole_->update(bytes);
    return;
  }
  while (!bytes.empty()) {
    const int64_t size = std::min({std::ssize(bytes), kSliceBytes, kBlockBytes - in_block_});
    const auto slice = bytes.first(static_cast<size_t>(size));
    if (whole_) whole_->update(slice);
    if (checksum_) checksum_ = checksum_->followed_by(slice);
    if (block_) block_->update(slice);
    in_block_ += size;
    if (in_block_ == kBlockBytes) end_block();
    bytes = bytes.subspan(static_cast<size_t>(size));
  }
}

void ContentHash::finish() {
  if (in_block_ > 0) end_block();
}

void ContentHash::end_block() {
  if (block_) {
    blocks_.push_back(block_->digest());
    block_.emplace();
  }
  in_block_ = 0;
}

}  // namespace millrace::sync
