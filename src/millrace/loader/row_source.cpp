// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/row_source.h"

#include <fmt/format.h>

#include "millrace/base/hash/hash.h"
#include "millrace/loader/detail/heap_bytes.h"

namespace millrace::loader {

namespace {

int64_t record_bytes(const Row& row) {
  int64_t bytes = order::kRecordBytes + std::ssize(row.key);
  for (const auto& [name, value] : row.fields) {
    bytes += order::kRecordFieldBytes + std::ssize(name) + std::ssize(value);
  }
  return bytes;
}

// Rows that were read; or what is wrong with all of them.
class RowRun final : public order::SampleRun {
 public:
  RowRun(std::string name, int64_t samples, Result<std::vector<Row>> rows)
      : name_(std::move(name)), samples_(samples), rows_(std::move(rows)) {}
  std::string_view name() const override { return name_; }
  int64_t samples() const override { return samples_; }
  int64_t bytes() const override { return 0; }
  bool reads_ahead() const override { return false; }
  void start(std::span<std::byte>, const ReadOptions&, Done done) override {
    rows_ ? done({}) : done(tl::unexpected(rows_.error()));
  }

  [[nodiscard]] Status visit(const Visit& visit) override {
    std::vector<order::Field> fields;
    for (int64_t i = 0; i < samples_; ++i) {
      const Row& row = (*rows_)[static_cast<size_t>(i)];
      if (row.error) {
        RETURN_IF_ERROR(visit(i, tl::unexpected(*row.error)));
        continue;
      }
      fields.clear();
      for (const auto& [name, value] : row.fields) fields.push_back({name, as_bytes(value), true});
      RETURN_IF_ERROR(visit(i, order::Sample{row.key, fields}));
    }
    return {};
  }

 private:
  const std::string name_;
  const int64_t samples_;
  const Result<std::vector<Row>> rows_;
};

class RowSource final : public order::SampleSource {
 public:
  RowSource(RowReader::Facts facts, std::unique_ptr<RowReader> reader, Metrics& metrics, Activities* activities)
      : facts_(std::move(facts)), reader_(std::move(reader)), metrics_(metrics), activities_(activities) {
    for (const auto& shard : facts_.shards) samples_.push_back(shard.rows);
  }

  std::string_view name() const override { return facts_.name; }
  std::string_view identity() const override { return facts_.identity; }
  std::span<const int64_t> shard_samples() const override { return samples_; }
  std::string_view shard_name(int64_t shard) const override { return facts_.shards[static_cast<size_t>(shard)].name; }
  int64_t total_bytes() override { return facts_.bytes; }
  int64_t window_hint() const override { return facts_.window_rows; }
  bool reads_to_plan() const override { return true; }
  int64_t held_bytes() override {
    int64_t bytes = 0;
    for (const auto& shard : facts_.shards) bytes += static_cast<int64_t>(sizeof(shard)) + heap_bytes(shard.name) + 8;
    return bytes;
  }

  Result<order::SamplePlan> plan(std::span<const order::Window> windows, const std::stop_token& stop) override {
    order::SamplePlan plan;
    for (const order::Window& window : windows) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name());
      auto rows = read(window);
      for (int64_t i = 0; i < window.samples; ++i) {
        plan.bytes.push_back(rows ? record_bytes((*rows)[static_cast<size_t>(i)]) : 0);
      }
      plan.runs.push_back(
          std::make_unique<RowRun>(std::string(shard_name(window.shard)), window.samples, std::move(rows)));
    }
    return plan;
  }

 private:
  Result<std::vector<Row>> read(const order::Window& window) {
    const int64_t end = window.first + window.samples;
    const std::string_view shard = shard_name(window.shard);
    const Activities::Scope reading(activities_, fmt::format("read rows {} to {} of {}", window.first, end, shard));
    MetricTimer timer(metrics_, Metric::kReadSeconds);
    ASSIGN_OR_RETURN(std::vector<Row> rows, reader_->read(window.shard, window.first, end));
    if (std::ssize(rows) != window.samples) {
      return fail(ErrorCode::kCorruption, "{}: {} rows were read where {} were asked for", shard, rows.size(),
                  window.samples);
    }
    int64_t bytes = 0;
    for (const Row& row : rows) bytes += record_bytes(row);
    metrics_.add(Metric::kReadBytes, bytes);
    return rows;
  }

  const RowReader::Facts facts_;
  const std::unique_ptr<RowReader> reader_;
  Metrics& metrics_;
  Activities* const activities_;
  std::vector<int64_t> samples_;
};

}  // namespace

std::unique_ptr<order::SampleSource> make_row_source(RowReader::Facts facts, std::unique_ptr<RowReader> reader,
                                                     Metrics& metrics, Activities* activities) {
  return std::make_unique<RowSource>(std::move(facts), std::move(reader), metrics, activities);
}

}  // namespace millrace::loader
