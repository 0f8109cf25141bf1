// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one bucket's storage, readers and writers share. Thread-safe.

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "millrace/base/executor.h"
#include "millrace/base/per_process.h"
#include "millrace/storage/detail/read_ahead.h"
#include "millrace/storage/s3/client/service.h"

namespace millrace::s3 {

// What all who use a bucket have in common.
struct BucketState {
  struct Process {
    Executor executor{4, "mr-s3-io"};  // for writes that are buffered, when they were submitted
    Mutex mutex;
    std::set<std::string> uploads GUARDED_BY(mutex);  // begun here
  };

  // The server has answered a CRC-32C of ours with its own: it checks what it stores, and needs no MD5.
  std::atomic<bool> checks_crc{false};
  // The server compares If-Match of a PUT with the ETag without its quotes (radosgw before 18 does).
  std::atomic<bool> bare_conditions{false};
  PerProcess<Process> process{[] { return std::make_unique<Process>(); }};
};

// A value: with another `stop` it is the same bucket for another caller.
struct Bucket {
  std::shared_ptr<Service> service;
  std::shared_ptr<BucketState> state = std::make_shared<BucketState>();
  std::stop_token stop;
  std::string bucket;
  std::string name;  // "s3://bucket"
  bool checksums = true;
  bool check_reads = true;
  bool etag_is_md5 = true;

  std::string url(std::string_view key) const { return fmt::format("{}/{}", name, key); }
  // A request to this bucket.
  Request request(http::Method method, std::string key = {}, Pairs query = {}) const {
    return {.method = method, .bucket = bucket, .key = std::move(key), .query = std::move(query), .stop = stop};
  }
  // Waits for the answer; what is not 2xx is an error that begins with `what`.
  [[nodiscard]] Result<Answer> fetch(Request asked, std::string_view what) const;
  // Errors: not_found.
  [[nodiscard]] Result<ObjectInfo> head(const std::string& key) const;
  // As Storage::checksum.
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) const;
};

inline bool is_success(const http::Response& response) {
  return response.status / 100 == 2;
}

// What a submitted operation calls at its end, on a thread of the transport: it must be brief.
using OnDone = std::function<void(Status)>;

// Which bytes a reader stands for. A value.
struct PinnedObject {
  std::string bucket, key, url;
  int64_t size = 0;
  std::string version;
  bool check = true;  // against the checksum that the server keeps of the whole
};

// The reader of one version of an object. Thread-safe.
class S3Reader final : public RandomReader {
 public:
  S3Reader(std::shared_ptr<const Bucket> bucket, std::string key, int64_t size, std::string version);

  std::string_view name() const override { return object_->url; }
  int64_t size() const override { return object_->size; }
  std::string_view version() const override { return object_->version; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override;

  // As read_at, without waiting. `out` stays alive until `done`.
  void start_read(int64_t offset, std::span<std::byte> out, std::stop_token stop, Clock::time_point deadline,
                  OnDone done) const;
  const PinnedObject& object() const { return *object_; }
  const Service* service() const { return service_.get(); }

 private:
  const std::shared_ptr<Service> service_;
  const std::shared_ptr<const PinnedObject> object_;
  const std::stop_token stop_;
  mutable PerProcess<ReadAhead> ahead_;
};

// As Storage::open_write and resume_write.
[[nodiscard]] Result<std::unique_ptr<Writer>> open_s3_writer(std::shared_ptr<Bucket> bucket, std::string_view key,
                                                             const WriteOptions& options);
[[nodiscard]] Result<std::unique_ptr<Writer>> resume_s3_writer(std::shared_ptr<Bucket> bucket, const ObjectInfo& upload,
                                                               const WriteOptions& options);
// Starts the upload of a whole part from the caller's memory or file, without waiting; false when the writer is not one
// of ours or the range is no whole part. REQUIRES: a write.
bool start_part_write(const Operation& operation, const OnDone& done);

}  // namespace millrace::s3
