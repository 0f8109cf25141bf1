// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/s3/client/bucket.h"
#include "millrace/storage/s3/object/ranged_read.h"

namespace millrace::s3 {

S3Reader::S3Reader(std::shared_ptr<const Bucket> bucket, std::string key, int64_t size, std::string version)
    : service_(bucket->service),
      object_(std::make_shared<PinnedObject>(
          PinnedObject{bucket->bucket, key, bucket->url(key), size, std::move(version), bucket->check_reads})),
      stop_(bucket->stop),
      ahead_([service = service_, object = object_, own = stop_] {
        return std::make_unique<ReadAhead>(
            object->size,
            [service, object](int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                              ReadAhead::Done done) {
              start_ranges(*service, object, offset, out, stop, Clock::time_point::max(), std::move(done));
            },
            own);
      }) {}

void S3Reader::start_read(int64_t offset, std::span<std::byte> out, std::stop_token stop, Clock::time_point deadline,
                          OnDone done) const {
  if (auto valid = check_read_range(*this, offset, std::ssize(out)); !valid || out.empty()) return done(valid);
  start_ranges(*service_, object_, offset, out, stop.stop_possible() ? stop : stop_, deadline, std::move(done));
}

Status S3Reader::read_at(int64_t offset, std::span<std::byte> out) const {
  RETURN_IF_ERROR(check_read_range(*this, offset, std::ssize(out)));
  return out.empty() ? Status() : ahead_.get().read(offset, out);
}

}  // namespace millrace::s3
