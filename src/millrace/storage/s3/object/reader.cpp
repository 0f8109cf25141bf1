// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/bucket.h"
#include "millrace/storage/s3/object/ranged_read.h"

namespace millrace::s3 {

S3Reader::S3Reader(const Bucket& bucket, std::string key, int64_t size, std::string version)
    : S3Reader(bucket, std::make_shared<PinnedObject>(PinnedObject{bucket.bucket, key, bucket.url(key), size,
                                                                   std::move(version), bucket.check_reads})) {}

S3Reader::S3Reader(const Bucket& bucket, const std::shared_ptr<const PinnedObject>& object)
    : ServiceReader(
          object->size,
          [service = bucket.service, object](int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                                             Clock::time_point deadline, Done done) {
            start_ranges(*service, object, offset, out, stop, deadline, std::move(done));
          },
          bucket.stop),
      service_(bucket.service),
      object_(object) {}

}  // namespace millrace::s3
