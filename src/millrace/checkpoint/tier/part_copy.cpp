// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/tier/part_copy.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/memory/buffer_pool.h"
#include "millrace/checkpoint/io/write_window.h"
#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

namespace {

// Checks the bytes of a rank's file, which come in order.
class FileVerifier {
 public:
  explicit FileVerifier(const PartRecord& part) {
    if (part.data_offset > 0) chunks_.push_back({0, part.data_offset, part.header_hash, {}});
    for (const PartTensor& tensor : part.tensors) {
      if (tensor.source) continue;  // in another file
      for (size_t i = 0; i < tensor.hashes.size(); ++i) {
        const int64_t begin = part.data_offset + tensor.begin + static_cast<int64_t>(i) * part.chunk_bytes;
        const int64_t end = std::min(begin + part.chunk_bytes, part.data_offset + tensor.begin + tensor.bytes);
        chunks_.push_back({begin, end, tensor.hashes[i], tensor.name});
      }
    }
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
  }

  // Errors: corruption, naming the chunk.
  Status update(int64_t offset, std::span<const std::byte> bytes, const std::string& name) {
    const int64_t end = offset + std::ssize(bytes);
    while (next_ < chunks_.size() && chunks_[next_].begin < end) {
      const Chunk& chunk = chunks_[next_];
      const int64_t from = std::max(chunk.begin, offset), to = std::min(chunk.end, end);
      stream_.update(bytes.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from)));
      if (chunk.end > end) break;
      if (stream_.digest() != chunk.hash)
        return fail(ErrorCode::kCorruption, "{}: {} bytes [{}, {}) do not match their hash", name,
                    chunk.tensor.empty() ? "its header," : fmt::format("tensor '{}',", chunk.tensor), chunk.begin,
                    chunk.end);
      stream_ = Xxh3Stream();
      ++next_;
    }
    return {};
  }

 private:
  struct Chunk {
    int64_t begin = 0, end = 0;  // in the file
    Hash128 hash;
    std::string_view tensor;  // empty: the header
  };
  std::vector<Chunk> chunks_;  // in the order of the file
  size_t next_ = 0;
  Xxh3Stream stream_;
};

// Writes under way from pooled buffers. A buffer returns to the pool when its write has ended.
class PooledWrites final : public CompletionQueue {
 public:
  void add(int64_t tag, Buffer buffer) {
    MutexLock lock(mutex_);
    buffers_.emplace(tag, std::move(buffer));
  }
  void push(Completion completion) override {
    Buffer free;  // given back outside of the lock
    {
      MutexLock lock(mutex_);
      const auto at = buffers_.find(static_cast<int64_t>(completion.tag));
      free = std::move(at->second);
      buffers_.erase(at);
    }
    free = Buffer();
    window_.push(std::move(completion));
  }
  WriteWindow& window() { return window_; }

 private:
  Mutex mutex_;
  std::map<int64_t, Buffer> buffers_ GUARDED_BY(mutex_);
  WriteWindow window_{64};  // more than there are buffers
};

// `most` buffers, or as many as there is memory for, but one at least. Sets `most` to their number.
Result<StagingMemory::Reservation> reserve_buffers(StagingMemory& memory, int64_t piece, int64_t& most) {
  most = std::clamp<int64_t>(memory.copy_share() / piece, 1, most);
  for (; most > 1; most /= 2) {
    auto reserved = memory.reserve(StagingMemory::Use::kCopy, most * piece);
    if (reserved) return reserved;
  }
  return memory.reserve(StagingMemory::Use::kCopy, piece);
}

// The size of a write: the service's, else one of which two fit into the memory.
int64_t piece_of(const Writer& writer, const StagingMemory& memory) {
  if (writer.part_bytes() != 0) return writer.part_bytes();
  return std::clamp(memory.copy_share() / 2 / kStagingPage * kStagingPage, kStagingPage, kWriteBytes);
}

// Writes a file of `size` bytes, which `read` gives piece by piece, in order.
Status write_pieces(const Location& to, int64_t size, StagingMemory& memory, const std::stop_token& stop,
                    const std::function<Status(int64_t, std::span<std::byte>)>& read) {
  ASSIGN_OR_RETURN(const auto writer, to.storage->open_write(to.key, {.size_hint_bytes = size}));
  const int64_t piece = piece_of(*writer, memory);
  const int64_t pieces = std::max<int64_t>((size + piece - 1) / piece, 2);
  int64_t buffers = std::min<int64_t>(to.storage->capabilities().is_local() ? 4 : 32, pieces);
  ASSIGN_OR_RETURN(const auto reserved, reserve_buffers(memory, piece, buffers));
  const auto together = static_cast<size_t>(std::clamp<int64_t>(buffers / 2, 1, writes_together(*writer)));
  PooledWrites writes;
  WriteWindow& window = writes.window();
  std::vector<Operation> group;  // read, not submitted yet
  const auto submit_group = [&] {
    to.storage->submit(group, writes);
    group.clear();
  };
  const auto send = [&](int64_t offset) -> Status {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped while writing {}", to.url);
    ASSIGN_OR_RETURN(Buffer buffer, reserved.pool().acquire(static_cast<size_t>(piece), stop));
    const auto bytes = buffer.span().first(static_cast<size_t>(std::min(piece, size - offset)));
    RETURN_IF_ERROR(read(offset, bytes));
    window.acquire();
    writes.add(offset, std::move(buffer));
    const WriteRange range{writer.get(), offset, bytes};
    group.push_back({.tag = static_cast<uint64_t>(offset), .what = range, .stop = stop});
    if (group.size() == together) submit_group();
    return {};
  };
  for (int64_t offset = 0; offset < size && !window.failed(); offset += piece) {
    if (auto sent = send(offset); !sent) window.fail_with(std::move(sent).error());
  }
  submit_group();
  RETURN_IF_ERROR(window.drain());
  return writer->commit(Durability::kDurable).map([](const ObjectInfo&) {});
}

// The file at `from`, opened. Errors: those of reading; corruption (its size).
Result<std::unique_ptr<RandomReader>> open_source(const Location& from, const PartRecord& part) {
  ASSIGN_OR_RETURN(auto reader, from.storage->open_read(from.key, {.once = true}));
  if (reader->size() == part.file_bytes) return reader;
  return fail(ErrorCode::kCorruption, "{}: it has {} bytes, {} were written", from.url, reader->size(),
              part.file_bytes);
}

}  // namespace

PartCopy copy_part_file(const Location& from, const Location& to, const PartRecord& part, const std::stop_token& stop,
                        const std::function<void(bool reading)>& at_source, StagingMemory* memory) {
  const auto note = [&](bool reading) {
    if (at_source) at_source(reading);
  };
  note(true);
  const auto reader = open_source(from, part);
  note(false);
  if (!reader) return {tl::unexpected<Error>(reader.error()), true};
  bool source_failed = false;
  FileVerifier verifier(part);
  const auto read = [&](int64_t offset, std::span<std::byte> bytes) -> Status {
    note(true);
    Status status = (*reader)->read_at(offset, bytes);
    note(false);
    if (status) status = verifier.update(offset, bytes, from.url);
    source_failed = !status;
    return status;
  };
  StagingMemory uncapped(0, 0);
  Status status = write_pieces(to, part.file_bytes, memory == nullptr ? uncapped : *memory, stop, read);
  return {std::move(status), source_failed};
}

Status bring_part(std::span<const Location> from, const Location& to, const WrittenRecord& record,
                  const std::stop_token& stop) {
  const PartRecord& part = record.part;
  const std::string file = part.places().file(part.rank);
  std::optional<Error> first;
  bool is_there = false;
  for (const Location& directory : from) {
    PartCopy copied = copy_part_file(directory.child(file), to.child(file), part, stop);
    is_there = copied.status.has_value();
    if (is_there) break;
    if (!first) first = copied.status.error();
    if (!copied.source_failed) break;
  }
  if (!is_there) return tl::unexpected<Error>(std::move(*first));
  const Location at = to.child(part.places().record(part.rank));
  return write_object(*at.storage, at.key, record.text).map([](const ObjectInfo&) {});
}

bool is_whole_part(const Location& at, const WrittenRecord& record, const std::stop_token& stop) {
  const PartRecord& part = record.part;
  const Location text_at = at.child(part.places().record(part.rank));
  const auto text = read_object(*text_at.storage, text_at.key, kMaxRecordBytes);
  if (!text || *text != record.text) return false;
  const Location file = at.child(part.places().file(part.rank));
  const auto reader = open_source(file, part);
  if (!reader) return false;
  auto pool = BufferPool::reserve(*MemoryBudget::process(), "checkpoint tiers", kWriteBytes);
  if (!pool) return false;
  auto buffer = (*pool)->acquire(kWriteBytes, stop);
  if (!buffer) return false;
  FileVerifier verifier(part);
  for (int64_t offset = 0; offset < part.file_bytes; offset += kWriteBytes) {
    const auto bytes = buffer->span().first(static_cast<size_t>(std::min(kWriteBytes, part.file_bytes - offset)));
    if (stop.stop_requested() || !(*reader)->read_at(offset, bytes) || !verifier.update(offset, bytes, file.url))
      return false;
  }
  return true;
}

}  // namespace millrace::checkpoint
