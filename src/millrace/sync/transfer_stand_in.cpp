// SPDX-License-Identifier: Apache-2.0
// Stands in for transfer.cpp until it is there.

#include "millrace/sync/transfer.h"

namespace millrace::sync {

struct TransferEngine::Impl {};

TransferEngine::TransferEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferEngine::~TransferEngine() = default;

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(const EngineOptions&) {
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::make_unique<Impl>()));
}

Result<TransferReport> TransferEngine::copy(const Location& from, const ObjectInfo& source, const Location& to,
                                            const TransferOptions& options, std::stop_token stop, Progress* progress) {
  ASSIGN_OR_RETURN(const auto reader, from.storage->open_read(from.key, {.expected_version = source.version}));
  ASSIGN_OR_RETURN(const auto writer, to.storage->open_write(to.key, {.size_hint_bytes = reader->size()}));
  Xxh3Stream hash;
  std::vector<std::byte> piece(1 << 20);
  for (int64_t at = 0; at < reader->size();) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "copy {}: stopped", from.url);
    const std::span<std::byte> part(piece.data(),
                                    static_cast<size_t>(std::min<int64_t>(std::ssize(piece), reader->size() - at)));
    RETURN_IF_ERROR(reader->read_at(at, part));
    hash.update(part);
    RETURN_IF_ERROR(writer->append(part));
    at += std::ssize(part);
    if (progress != nullptr) progress->add(std::ssize(part), 0);
  }
  TransferReport report;
  ASSIGN_OR_RETURN(report.object, writer->commit(options.durability));
  report.hash = hash.digest();
  report.moved_bytes = reader->size();
  return report;
}

}  // namespace millrace::sync
