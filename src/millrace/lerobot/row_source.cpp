// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/row_source.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/hash/hash.h"

namespace millrace::lerobot {
namespace {

using order::Field;
using order::Sample;
using order::SamplePlan;
using order::SampleRun;
using order::Window;

constexpr int64_t kNumberBytes = sizeof(uint32_t);

class RowRun final : public SampleRun {
 public:
  RowRun(std::string_view name, int64_t first_row, int64_t rows) : name_(name), first_row_(first_row), rows_(rows) {}

  std::string_view name() const override { return name_; }
  int64_t samples() const override { return rows_; }
  int64_t bytes() const override { return 0; }
  bool reads_ahead() const override { return false; }
  void start(std::span<std::byte> /*memory*/, const ReadOptions& /*options*/, Done done) override { done({}); }
  Status visit(const Visit& visit) override {
    for (int64_t i = 0; i < rows_; ++i) {
      const auto row = static_cast<uint32_t>(first_row_ + i);
      std::array<std::byte, sizeof(row)> bytes{};
      std::memcpy(bytes.data(), &row, sizeof(row));
      const std::string key = fmt::format("{}", row);
      const std::array<Field, 1> fields{{{kRowField, bytes}}};
      RETURN_IF_ERROR(visit(i, Sample{key, fields}));
    }
    return {};
  }

 private:
  const std::string_view name_;
  const int64_t first_row_, rows_;
};

class RowSource final : public order::SampleSource {
 public:
  explicit RowSource(const RowsToOrder& rows) : name_(rows.name) {
    std::string facts = rows.facts;
    for (size_t i = 0; i < rows.lengths.size(); ++i) {
      facts += fmt::format("\n{} {}", rows.episodes[i], rows.lengths[i]);
      if (rows.lengths[i] > 0) {
        lengths_.push_back(rows.lengths[i]);
        first_rows_.push_back(rows_);
        names_.push_back(fmt::format("{} episode {}", name_, rows.episodes[i]));
      }
      rows_ += rows.lengths[i];
    }
    identity_ = "episodes:" + to_hex(xxh3_128(facts));
  }

  std::string_view name() const override { return name_; }
  std::string_view identity() const override { return identity_; }
  std::optional<order::TokenIds> token_ids() const override { return order::TokenIds{.field = kRowField}; }
  std::span<const int64_t> shard_samples() const override { return lengths_; }
  std::string_view shard_name(int64_t shard) const override { return names_[static_cast<size_t>(shard)]; }
  int64_t total_bytes() override { return rows_ * kNumberBytes; }

  Result<SamplePlan> plan(std::span<const Window> windows, const std::stop_token& /*stop*/) override {
    SamplePlan plan;
    for (const Window& window : windows) {
      const auto shard = static_cast<size_t>(window.shard);
      plan.bytes.insert(plan.bytes.end(), static_cast<size_t>(window.samples), kNumberBytes);
      plan.runs.push_back(std::make_unique<RowRun>(names_[shard], first_rows_[shard] + window.first, window.samples));
    }
    return plan;
  }

 private:
  const std::string name_;
  int64_t rows_ = 0;
  std::string identity_;
  std::vector<int64_t> lengths_, first_rows_;
  std::vector<std::string> names_;
};

}  // namespace

Result<std::unique_ptr<order::SampleSource>> make_row_source(const RowsToOrder& rows) {
  if (rows.episodes.size() != rows.lengths.size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} lengths of {} episodes", rows.name, rows.lengths.size(),
                rows.episodes.size());
  }
  const int64_t all = std::accumulate(rows.lengths.begin(), rows.lengths.end(), int64_t{0});
  if (all == 0) return fail(ErrorCode::kInvalidArgument, "{}: it has no rows", rows.name);
  if (all > UINT32_MAX) {
    return fail(ErrorCode::kUnsupported, "{}: the loader orders up to 2^32 - 1 rows, and it has {}", rows.name, all);
  }
  return std::make_unique<RowSource>(rows);
}

}  // namespace millrace::lerobot
