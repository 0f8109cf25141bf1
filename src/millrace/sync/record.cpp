// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "millrace/sync/entries.h"
#include "millrace/sync/fields.h"

namespace millrace::sync {
namespace {

constexpr std::string_view kMagic = "MRSYNC\x01\n";
constexpr size_t kBlockTarget = 64 << 10;       // a choice: a damaged block costs some hundred files a comparison
constexpr int64_t kRecordPieceBytes = 1 << 20;  // written at once, where the storage does not say
constexpr size_t kBlockLimit = 1 << 20;       // a block holds at least one entry, and a key has at most 4 KiB somewhere
constexpr int64_t kReadAheadBytes = 1 << 20;  // a choice: sixteen blocks a request
constexpr size_t kHeaderBytes = 16;           // of a block: bytes, entries, hash
constexpr uint8_t kHasHash = 1, kHasAttributes = 2;

void append_version(std::string& out, const RecordedVersion& version) {
  append_text(out, version.version);
  append_number(out, version.changed_ns);
}

RecordedVersion take_version(Fields& fields) {
  RecordedVersion version;
  version.version = fields.text();
  version.changed_ns = fields.number<int64_t>();
  return version;
}

std::string header_of(std::string_view block, uint32_t entries) {
  std::string header;
  append_number(header, static_cast<uint32_t>(block.size()));
  append_number(header, entries);
  append_number(header, xxh3_64(block));
  return header;
}

}  // namespace

RecordedVersion recorded_version(const ObjectInfo& info) {
  return {info.version, info.changed.wrapped_ns()};
}

bool is_version(const RecordedVersion& recorded, const ObjectInfo& info) {
  return !info.version.empty() && recorded == recorded_version(info);
}

std::string record_path(const Location& source) {
  const std::string name = fmt::format("{}/{}", source.storage->name(), source.key);
  return fmt::format("{}/sync-{:016x}", kHiddenFolder, xxh3_64(name));
}

Result<std::unique_ptr<RecordReader>> RecordReader::open(Storage& storage, std::string_view key) {
  ASSIGN_OR_RETURN(auto reader, storage.open_read(key));
  std::unique_ptr<RecordReader> record(new RecordReader(std::move(reader)));
  std::string magic;
  RETURN_IF_ERROR(record->read(kMagic.size(), magic));
  if (magic != kMagic) {
    return fail(ErrorCode::kCorruption, "{} is no record of a sync, or one of another version",
                record->reader_->name());
  }
  return record;
}

Status RecordReader::read(size_t bytes, std::string& out) {
  if (static_cast<int64_t>(bytes) > reader_->size() - offset_) {
    return fail(ErrorCode::kCorruption, "{} ends at {}, inside a block", reader_->name(), reader_->size());
  }
  out.clear();
  while (out.size() < bytes) {
    if (ahead_at_ == ahead_.size()) {
      ahead_.resize(static_cast<size_t>(std::min(kReadAheadBytes, reader_->size() - offset_)));
      ahead_at_ = 0;
      RETURN_IF_ERROR(reader_->read_at(offset_, std::as_writable_bytes(std::span<char>(ahead_))));
    }
    const size_t some = std::min(bytes - out.size(), ahead_.size() - ahead_at_);
    out.append(ahead_, ahead_at_, some);
    ahead_at_ += some;
    offset_ += static_cast<int64_t>(some);
  }
  return {};
}

// False at the end of the record.
Result<bool> RecordReader::read_block() {
  std::string header;
  RETURN_IF_ERROR(read(kHeaderBytes, header));
  Fields fields(header);
  const auto bytes = fields.number<uint32_t>();
  const auto entries = fields.number<uint32_t>();
  const auto hash = fields.number<uint64_t>();
  const auto damaged = [&] {
    return fail(ErrorCode::kCorruption, "{} is damaged before byte {}", reader_->name(), offset_);
  };
  if (bytes == 0) {
    if (hash != entries_ || offset_ != reader_->size()) return damaged();
    return false;
  }
  if (bytes > kBlockLimit) return damaged();
  RETURN_IF_ERROR(read(bytes, block_));
  if (xxh3_64(block_) != hash) return damaged();
  at_ = 0;
  entries_ += entries;
  return true;
}

Result<std::optional<RecordEntry>> RecordReader::next() {
  if (!ended_ && at_ == block_.size()) {
    ASSIGN_OR_RETURN(const bool more, read_block());
    ended_ = !more;
  }
  if (ended_) return std::nullopt;
  Fields fields(std::string_view(block_).substr(at_));
  RecordEntry entry;
  entry.path = fields.text();
  entry.size = fields.number<int64_t>();
  entry.source = take_version(fields);
  entry.target = take_version(fields);
  const auto flags = fields.number<uint8_t>();
  entry.attributes = (flags & kHasAttributes) != 0;
  if ((flags & kHasHash) != 0) {
    const auto high = fields.number<uint64_t>();
    entry.hash = Hash128{high, fields.number<uint64_t>()};
  }
  if (!fields.good() || (!last_path_.empty() && entry.path <= last_path_)) {
    return fail(ErrorCode::kCorruption, "{}: an entry before byte {} is not what this version writes", reader_->name(),
                offset_);
  }
  at_ = block_.size() - fields.left();
  last_path_ = entry.path;
  return entry;
}

Status merge_records(Storage& storage, const std::string& older, const std::string& newer) {
  auto new_reader = RecordReader::open(storage, newer);
  if (!new_reader && new_reader.error().code() == ErrorCode::kNotFound) return {};
  auto old_reader = RecordReader::open(storage, older);
  ASSIGN_OR_RETURN(const auto merged, RecordWriter::create());
  // What cannot be read is lost, which costs time only.
  const auto next = [](Result<std::unique_ptr<RecordReader>>& reader) -> std::optional<RecordEntry> {
    if (!reader) return std::nullopt;
    auto entry = (*reader)->next();
    return entry ? std::move(*entry) : std::nullopt;
  };
  auto old_entry = next(old_reader);
  auto new_entry = next(new_reader);
  while (old_entry || new_entry) {
    const bool take_new = new_entry && (!old_entry || new_entry->path <= old_entry->path);
    const bool both = take_new && old_entry && old_entry->path == new_entry->path;
    RETURN_IF_ERROR(merged->add(take_new ? *new_entry : *old_entry));
    if (both || !take_new) old_entry = next(old_reader);
    if (take_new) new_entry = next(new_reader);
  }
  old_reader = tl::unexpected(Error(ErrorCode::kCancelled, "closed"));
  RETURN_IF_ERROR(merged->commit(storage, older));
  return storage.remove(std::span<const std::string>(&newer, 1));
}

Result<std::unique_ptr<RecordWriter>> RecordWriter::create() {
  ASSIGN_OR_RETURN(UnnamedFile file, UnnamedFile::create("the record of a run"));
  std::unique_ptr<RecordWriter> writer(new RecordWriter(std::move(file)));
  RETURN_IF_ERROR(writer->put(kMagic));
  return writer;
}

Status RecordWriter::put(std::string_view bytes) {
  RETURN_IF_ERROR(file_.write_at(size_, as_bytes(bytes)));
  size_ += std::ssize(bytes);
  return {};
}

Status RecordWriter::add(const RecordEntry& entry) {
  constexpr size_t kLongest = UINT16_MAX;
  if (std::max({entry.path.size(), entry.source.version.size(), entry.target.version.size()}) > kLongest) return {};
  append_text(block_, entry.path);
  append_number(block_, entry.size);
  append_version(block_, entry.source);
  append_version(block_, entry.target);
  append_number(block_, static_cast<uint8_t>((entry.hash ? kHasHash : 0) | (entry.attributes ? kHasAttributes : 0)));
  if (entry.hash) {
    append_number(block_, entry.hash->high);
    append_number(block_, entry.hash->low);
  }
  ++block_entries_;
  ++entries_;
  return block_.size() >= kBlockTarget ? flush_block() : Status();
}

Status RecordWriter::flush_block() {
  if (block_entries_ == 0) return {};
  RETURN_IF_ERROR(put(header_of(block_, block_entries_)));
  RETURN_IF_ERROR(put(block_));
  block_.clear();
  block_entries_ = 0;
  return {};
}

Status RecordWriter::commit(Storage& storage, const std::string& key) {
  RETURN_IF_ERROR(flush_block());
  const int64_t end_of_blocks = size_;
  std::string end;
  append_number(end, uint32_t{0});
  append_number(end, uint32_t{0});
  append_number(end, entries_);
  Status written = put(end);
  if (written) written = write_to(storage, key, size_);
  size_ = end_of_blocks;  // what is added goes over the end
  return written;
}

Status RecordWriter::write_to(Storage& storage, const std::string& key, int64_t size) const {
  ASSIGN_OR_RETURN(const auto writer, storage.open_write(key, {.size_hint_bytes = size}));
  // Part by part, so that there is memory of one only.
  const int64_t part_bytes = writer->part_bytes() > 0 ? writer->part_bytes() : kRecordPieceBytes;
  std::vector<std::byte> part(static_cast<size_t>(std::min(part_bytes, size)));
  for (int64_t at = 0; at < size; at += part_bytes) {
    const auto piece = std::span(part).first(static_cast<size_t>(std::min(part_bytes, size - at)));
    RETURN_IF_ERROR(file_.read_at(at, piece));
    RETURN_IF_ERROR(writer->write_at(at, piece));
  }
  return writer->commit(Durability::kVisible).map([](const ObjectInfo&) {});
}

}  // namespace millrace::sync
