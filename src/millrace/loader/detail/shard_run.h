// SPDX-License-Identifier: Apache-2.0
#pragma once

// Neighbouring samples of a shard as a SampleRun: one range of the shard's file. Each sample is verified against its
// hash in the index and split into fields.

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/formats/shard_index.h"
#include "millrace/order/sample_source.h"
#include "millrace/storage/storage.h"

namespace millrace::loader {

// An open file of a shard. `reader` belongs to `storage`.
struct OpenShard {
  std::shared_ptr<Storage> storage;
  std::shared_ptr<const RandomReader> reader;
};

class ShardRun final : public order::SampleRun, private CompletionQueue {
 public:
  // Makes a run of the samples [begin, end) of `rows`. `rows` begins with sample `first` of the shard. `metrics`
  // (read_bytes, read_seconds) and `facts` must outlive the run.
  ShardRun(OpenShard shard, const formats::ShardFacts& facts, std::shared_ptr<const formats::ShardRows> rows,
           int64_t first, size_t begin, size_t end, Metrics& metrics);

  std::string_view name() const override { return shard_.reader->name(); }
  std::string request() const override;
  int64_t samples() const override { return static_cast<int64_t>(end_ - begin_); }
  int64_t bytes() const override {
    return static_cast<int64_t>(rows_->offset[end_ - 1] + rows_->size[end_ - 1] - at());
  }
  bool reads_ahead() const override { return !shard_.storage->capabilities().is_local(); }
  void start(std::span<std::byte> memory, const ReadOptions& options, Done done) override;
  [[nodiscard]] Status visit(const Visit& visit) override;

 private:
  // Memory for one sample's names and views; reused for the next sample.
  struct SampleParts {
    std::string key;
    std::string long_name;
    std::deque<std::string> names;  // a deque, because fields point into it while it grows
    std::vector<order::Field> fields;
  };

  void push(Completion completion) override;
  [[nodiscard]] Status read_now();
  [[nodiscard]] Status take_apart(size_t row, SampleParts& parts) const;
  [[nodiscard]] Status take_members(std::span<const std::byte> extent, uint64_t offset, SampleParts& parts) const;
  uint64_t at() const { return rows_->offset[begin_]; }  // offset of the run in its shard, in bytes

  const OpenShard shard_;
  const formats::ShardFacts& facts_;
  const std::shared_ptr<const formats::ShardRows> rows_;
  const int64_t first_;
  const size_t begin_, end_;
  Metrics& metrics_;
  std::span<std::byte> memory_;
  std::stop_token stop_;
  Done done_;  // called when the read under way ends
  Clock::time_point begun_;
};

// Samples of a shard that could not be opened. Only the batches that need them fail.
class UnreadableRun final : public order::SampleRun {
 public:
  UnreadableRun(std::string name, int64_t samples, Error error)
      : name_(std::move(name)), samples_(samples), error_(std::move(error)) {}
  std::string_view name() const override { return name_; }
  int64_t samples() const override { return samples_; }
  int64_t bytes() const override { return 0; }
  bool reads_ahead() const override { return false; }
  void start(std::span<std::byte>, const ReadOptions&, Done done) override { done(tl::unexpected(error_)); }
  [[nodiscard]] Status visit(const Visit&) override { return tl::unexpected(error_); }

 private:
  const std::string name_;
  const int64_t samples_;
  const Error error_;
};

// Divides the rows of a window into runs of at most `run_bytes` (a larger sample is one run) and appends them to
// `runs`. The other arguments are those of ShardRun.
void append_runs(const OpenShard& shard, const formats::ShardFacts& facts,
                 const std::shared_ptr<const formats::ShardRows>& rows, int64_t first, int64_t run_bytes,
                 Metrics& metrics, std::vector<std::unique_ptr<order::SampleRun>>& runs);

}  // namespace millrace::loader
