// SPDX-License-Identifier: Apache-2.0
#pragma once

// A sync's record of the files that it made equal: both versions of each, and the hash of the content. While both
// versions stay the same, the two files are equal and need not be read. A file that was changed in place and got its
// old time and size back has another version or change time, so the change is found. docs/format/sync_record.md. Losing
// a record costs time, never correctness. Readers and writers belong to one thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/unnamed_file.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

// One side of a recorded file, as stat and listings return it.
struct RecordedVersion {
  std::string version;
  int64_t changed_ns = 0;  // ObjectInfo::changed; 0: the storage has no change times
  bool operator==(const RecordedVersion&) const = default;
};
RecordedVersion recorded_version(const ObjectInfo& info);
// Whether `info` is the version that was recorded. Always false if the storage gives no versions.
bool is_version(const RecordedVersion& recorded, const ObjectInfo& info);

struct RecordEntry {
  std::string path;
  int64_t size = 0;
  RecordedVersion source, target;
  std::optional<Hash128> hash;  // XXH3-128 of both; none if neither was read
  bool attributes = false;      // owner, mode and times were copied, too
  bool operator==(const RecordEntry&) const = default;
};

// Returns the path, below the target, of the record of copies from `source`: ".millrace/sync-<hash of the source's
// name>".
std::string record_path(const Location& source);

class RecordReader {
 public:
  // Opens a record. Errors: those of open_read (not_found: there is none), corruption.
  [[nodiscard]] static Result<std::unique_ptr<RecordReader>> open(Storage& storage, std::string_view key);
  // Returns the next entry in byte order of the path; std::nullopt after the last. Errors: corruption (a damaged or
  // truncated record), those of reading.
  [[nodiscard]] Result<std::optional<RecordEntry>> next();

 private:
  explicit RecordReader(std::unique_ptr<RandomReader> reader) : reader_(std::move(reader)) {}
  [[nodiscard]] Status read(size_t bytes, std::string& out);
  [[nodiscard]] Result<bool> read_block();

  const std::unique_ptr<RandomReader> reader_;
  int64_t offset_ = 0;  // offset of the first byte not taken yet
  std::string ahead_;   // bytes read ahead; those from ahead_at_ on are not taken yet
  size_t ahead_at_ = 0;
  uint64_t entries_ = 0;
  std::string block_;
  size_t at_ = 0;
  std::string last_path_;
  bool ended_ = false;
};

// Merges two records into `older`, which may be missing: entries of `newer` replace those of `older`. Removes `newer`.
// Does nothing without a `newer`; reads a damaged one up to its damage.
[[nodiscard]] Status merge_records(Storage& storage, const std::string& older, const std::string& newer);

// Collects a record in a temporary file, because only the end of the sync shows whether the record is needed.
class RecordWriter {
 public:
  // Errors: those of UnnamedFile.
  [[nodiscard]] static Result<std::unique_ptr<RecordWriter>> create();
  // REQUIRES: paths in byte order.
  [[nodiscard]] Status add(const RecordEntry& entry);
  // Writes all entries so far as one object in one commit. More entries may be added and committed afterwards.
  [[nodiscard]] Status commit(Storage& storage, const std::string& key);

 private:
  explicit RecordWriter(UnnamedFile file) : file_(std::move(file)) {}
  [[nodiscard]] Status flush_block();
  [[nodiscard]] Status put(std::string_view bytes);
  // Writes the first `size` bytes of the file to an object.
  [[nodiscard]] Status write_to(Storage& storage, const std::string& key, int64_t size) const;

  UnnamedFile file_;
  int64_t size_ = 0;  // bytes written so far
  std::string block_;
  uint32_t block_entries_ = 0;
  uint64_t entries_ = 0;
};

}  // namespace millrace::sync
