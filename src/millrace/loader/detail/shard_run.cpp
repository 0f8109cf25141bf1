// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/shard_run.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "millrace/base/hash/hash.h"
#include "millrace/base/text/units.h"
#include "millrace/formats/tar.h"

namespace millrace::loader {

ShardRun::ShardRun(OpenShard shard, const formats::ShardFacts& facts, std::shared_ptr<const formats::ShardRows> rows,
                   int64_t first, size_t begin, size_t end, Metrics& metrics)
    : shard_(std::move(shard)),
      facts_(facts),
      rows_(std::move(rows)),
      first_(first),
      begin_(begin),
      end_(end),
      metrics_(metrics) {}

std::string ShardRun::request() const {
  return fmt::format("{}, {} at byte {}", name(), format_bytes(bytes()), at());
}

void ShardRun::start(std::span<std::byte> memory, const ReadOptions& options, Done done) {
  memory_ = memory;
  stop_ = options.stop;
  if (!reads_ahead()) return done({});
  done_ = std::move(done);
  begun_ = Clock::now();
  const Operation read{.what = Operation::Read{shard_.reader.get(), static_cast<int64_t>(at()), memory},
                       .stop = options.stop,
                       .deadline = options.deadline,
                       .priority = options.priority};
  shard_.storage->submit({&read, 1}, *this);
}

void ShardRun::push(Completion completion) {
  metrics_.add_seconds(Metric::kReadSeconds, Clock::now() - begun_);
  if (completion.status) metrics_.add(Metric::kReadBytes, bytes());
  const Done done = std::exchange(done_, nullptr);  // it may hold the last reference to this run
  done(std::move(completion.status));
}

Status ShardRun::visit(const Visit& visit) {
  if (!reads_ahead()) RETURN_IF_ERROR(read_now());
  SampleParts parts;
  for (size_t row = begin_; row < end_; ++row) {
    const auto index = static_cast<int64_t>(row - begin_);
    Status taken = take_apart(row, parts);
    RETURN_IF_ERROR(taken ? visit(index, order::Sample{parts.key, parts.fields})
                          : visit(index, tl::unexpected(std::move(taken).error())));
  }
  return {};
}

Status ShardRun::read_now() {
  if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name());
  MetricTimer timer(metrics_, Metric::kReadSeconds);
  RETURN_IF_ERROR(shard_.reader->read_at(static_cast<int64_t>(at()), memory_));
  metrics_.add(Metric::kReadBytes, bytes());
  return {};
}

Status ShardRun::take_apart(size_t row, SampleParts& parts) const {
  const uint64_t offset = rows_->offset[row];
  const std::span<const std::byte> extent = memory_.subspan(offset - at(), rows_->size[row]);
  const int64_t number = first_ + static_cast<int64_t>(row);
  if (xxh3_64(extent) != rows_->hash[row]) {
    return fail(ErrorCode::kCorruption,
                "{}: sample {} at byte {} does not match its hash in the index; `millrace shards check` lists all "
                "damage",
                name(), number, offset);
  }
  parts.fields.clear();
  if (facts_.kind != formats::SampleExtentKind::kIds) return take_members(extent, offset, parts);
  std::array<char, 20> digits{};
  parts.key.assign(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
  parts.fields.push_back({facts_.ids_field, extent});
  return {};
}

Status ShardRun::take_members(std::span<const std::byte> extent, uint64_t offset, SampleParts& parts) const {
  for (size_t at = 0; at < extent.size();) {
    ASSIGN_OR_RETURN(const formats::TarView view,
                     formats::next_tar_view(extent, at, parts.long_name, name(), static_cast<int64_t>(offset)));
    if (!view.is_regular) continue;
    auto split = formats::split_sample_name(view.name);
    if (!split) continue;
    if (parts.fields.empty()) parts.key.assign(split->key);
    if (parts.names.size() == parts.fields.size()) parts.names.emplace_back();
    std::string& field = parts.names[parts.fields.size()];
    field = std::move(split->field);
    parts.fields.push_back({field, view.data});
  }
  return {};
}

void append_runs(const OpenShard& shard, const formats::ShardFacts& facts,
                 const std::shared_ptr<const formats::ShardRows>& rows, int64_t first, int64_t run_bytes,
                 Metrics& metrics, std::vector<std::unique_ptr<order::SampleRun>>& runs) {
  const auto samples = static_cast<size_t>(rows->samples());
  const auto bytes_until = [&](size_t begin, size_t end) {
    return static_cast<int64_t>(rows->offset[end - 1] + rows->size[end - 1] - rows->offset[begin]);
  };
  for (size_t begin = 0; begin < samples;) {
    size_t end = begin + 1;
    while (end < samples && bytes_until(begin, end + 1) <= run_bytes) ++end;
    runs.push_back(std::make_unique<ShardRun>(shard, facts, rows, first, begin, end, metrics));
    begin = end;
  }
}

}  // namespace millrace::loader
