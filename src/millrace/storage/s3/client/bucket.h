// SPDX-License-Identifier: Apache-2.0
#pragma once

// State that one bucket's storage, readers and writers share. Thread-safe.

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/storage/detail/service_reader.h"
#include "millrace/storage/s3/client/service.h"

namespace millrace::s3 {

// Shared by all users of a bucket.
struct BucketState {
  struct Process {
    Executor executor{4, "mr-s3-io"};  // runs buffered submitted writes
    Mutex mutex;
    std::set<std::string> uploads GUARDED_BY(mutex);  // uploads begun by this process
  };

  // Whether the server answered our CRC-32C with its own. It then checks the bytes that it stores, so MD5 is not
  // needed.
  std::atomic<bool> checks_crc{false};
  // Whether the server compares If-Match of a PUT with the ETag without its quotes, as radosgw before 18 does.
  std::atomic<bool> bare_conditions{false};
  PerProcess<Process> process{[] { return std::make_unique<Process>(); }};
};

// A bucket as one caller sees it. A value. A copy with another `stop` is the same bucket for another caller.
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
  // Makes a request to this bucket.
  Request request(http::Method method, std::string key = {}, Pairs query = {}) const {
    return {.method = method, .bucket = bucket, .key = std::move(key), .query = std::move(query), .stop = stop};
  }
  // Waits for the answer. An answer other than 2xx is an error that begins with `what`.
  [[nodiscard]] Result<Answer> fetch(Request asked, std::string_view what) const;
  // Returns the properties of an object. Errors: not_found.
  [[nodiscard]] Result<ObjectInfo> head(const std::string& key) const;
  // Implements Storage::tags.
  [[nodiscard]] Result<ObjectTags> tags(const std::string& key) const;
  // Implements Storage::checksum.
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) const;
};

inline bool is_success(const http::Response& response) {
  return response.status / 100 == 2;
}

// Called at the end of a submitted operation, on a thread of the transport. It must return quickly.
using OnDone = std::function<void(Status)>;

// The version of an object that a reader reads. A value.
struct PinnedObject {
  std::string bucket, key, url;
  int64_t size = 0;
  std::string version;
  bool check = true;  // compare with the server's checksum of the whole object
};

// The reader of one version of an object. Thread-safe.
class S3Reader final : public ServiceReader {
 public:
  S3Reader(const Bucket& bucket, std::string key, int64_t size, std::string version);

  std::string_view name() const override { return object_->url; }
  std::string_view version() const override { return object_->version; }
  const PinnedObject& object() const { return *object_; }
  const Service* service() const { return service_.get(); }

 private:
  S3Reader(const Bucket& bucket, const std::shared_ptr<const PinnedObject>& object);

  const std::shared_ptr<Service> service_;
  const std::shared_ptr<const PinnedObject> object_;
};

// Implement Storage::open_write and resume_write.
[[nodiscard]] Result<std::unique_ptr<Writer>> open_s3_writer(std::shared_ptr<Bucket> bucket, std::string_view key,
                                                             const WriteOptions& options);
[[nodiscard]] Result<std::unique_ptr<Writer>> resume_s3_writer(std::shared_ptr<Bucket> bucket, const ObjectInfo& upload,
                                                               const WriteOptions& options);

}  // namespace millrace::s3
