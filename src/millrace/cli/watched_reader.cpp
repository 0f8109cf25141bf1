// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/watched_reader.h"

#include <utility>

namespace millrace::cli {

namespace {

class WatchedReader final : public RandomReader {
 public:
  WatchedReader(std::unique_ptr<RandomReader> reader, std::stop_token stop, Progress& progress)
      : reader_(std::move(reader)), stop_(std::move(stop)), progress_(progress) {}

  std::string_view name() const override { return reader_->name(); }
  int64_t size() const override { return reader_->size(); }
  std::string_view version() const override { return reader_->version(); }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name());
    progress_.add(static_cast<int64_t>(out.size()), 0);
    return reader_->read_at(offset, out);
  }

 private:
  const std::unique_ptr<RandomReader> reader_;
  const std::stop_token stop_;
  Progress& progress_;
};

}  // namespace

Result<std::unique_ptr<RandomReader>> open_watched(const Shard& shard, std::stop_token stop, Progress& progress) {
  ASSIGN_OR_RETURN(auto reader, shard.location.storage->open_read(shard.location.key));
  return std::make_unique<WatchedReader>(std::move(reader), std::move(stop), progress);
}

}  // namespace millrace::cli
