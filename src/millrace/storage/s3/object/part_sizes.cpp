// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/part_sizes.h"

namespace millrace::s3 {
namespace {

// Parts of equal size in a row. Ten runs, each with parts twice as long as the one before, use up S3's 10,000 parts;
// from 8 MiB on they hold more than S3's 5 TiB.
constexpr int64_t kAlike = 1000;

}  // namespace

int64_t PartSizes::start_of(int64_t number) const {
  if (!grows_) return (number - 1) * first_bytes_;
  const int64_t run = (number - 1) / kAlike;
  const int64_t before = kAlike * ((int64_t{1} << run) - 1);  // the runs before this one, in units of the first part
  return first_bytes_ * (before + (((number - 1) % kAlike) << run));
}

int64_t PartSizes::number_at(int64_t offset) const {
  int64_t run = 0;
  while (grows_ && start_of((run + 1) * kAlike + 1) <= offset) ++run;
  const int64_t first = run * kAlike + 1;
  return first + (offset - start_of(first)) / (first_bytes_ << run);
}

int64_t PartSizes::size_at(int64_t offset) const {
  const int64_t number = number_at(offset);
  return start_of(number + 1) - start_of(number);
}

}  // namespace millrace::s3
