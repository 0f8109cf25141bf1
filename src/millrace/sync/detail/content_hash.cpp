// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/content_hash.h"

#include <algorithm>
#include <new>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/storage/local/local.h"
#include "millrace/sync/entries.h"
#include "millrace/sync/transfer.h"
#include "millrace/sync/verify.h"

namespace millrace::sync {
namespace {

// What each hash takes in its turn: it fits into the second-level cache, where the next one finds it.
constexpr int64_t kSliceBytes = 64 << 10;
constexpr int64_t kHashPieceBytes = 1 << 20;  // read at once: the least that goes past the page cache

// Aligned, so that a disk can write to it.
class PageMemory {
 public:
  explicit PageMemory(int64_t bytes) : size_(static_cast<size_t>(bytes)), data_(::operator new(size_, kPage)) {}
  ~PageMemory() { ::operator delete(data_, kPage); }
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  static constexpr std::align_val_t kPage{4096};
  const size_t size_;
  void* const data_;
};

}  // namespace

ContentHash::ContentHash(bool whole, bool blocks, std::optional<ChecksumStream> checksum)
    : checksum_(std::move(checksum)) {
  if (whole) whole_.emplace();
  if (blocks) block_.emplace();
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
    if (checksum_) checksum_->update(slice);
    if (block_) block_->update(slice);
    in_block_ += size;
    if (in_block_ == kBlockBytes) end_block();
    bytes = bytes.subspan(static_cast<size_t>(size));
  }
}

void ContentHash::finish() {
  if (in_block_ > 0) end_block();
  if (checksum_ && !told_) told_ = checksum_->finish();
}

void ContentHash::end_block() {
  if (block_) {
    blocks_.push_back(block_->digest());
    block_.emplace();
  }
  in_block_ = 0;
}

Result<Hash128> hash_object(Storage& storage, const ObjectInfo& object, std::stop_token stop, Progress* progress) {
  const OwnContentScope own;
  ASSIGN_OR_RETURN(
      const auto reader,
      storage.open_read(object.key, {.expected_version = object.version, .known_size = object.size, .once = true}));
  Xxh3Stream hash;
  Progress file(progress, std::string(base_name(object.key)), reader->size());
  const PageMemory piece(std::min(reader->size(), kHashPieceBytes));
  for (int64_t at = 0; at < reader->size();) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", reader->name());
    const int64_t size = std::min(kHashPieceBytes, reader->size() - at);
    const auto part = piece.span().first(static_cast<size_t>(size));
    RETURN_IF_ERROR(reader->read_at(at, part));
    hash.update(part);
    at += size;
    file.add(size, 0);
  }
  return hash.digest();
}

}  // namespace millrace::sync
