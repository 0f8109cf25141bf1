// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/dataset_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "millrace/base/thread/answer.h"
#include "millrace/formats/npy.h"
#include "millrace/loader/detail/node_cache.h"
#include "millrace/loader/shard_source.h"

namespace millrace::loader {

namespace {

Status check_cache(const DatasetOptions& options) {
  if (options.cache.empty() && options.cache_bytes != 0) {
    return fail(ErrorCode::kInvalidArgument, "cache_bytes is of a cache; name its folder");
  }
  if (options.cache_bytes < 0) return fail(ErrorCode::kInvalidArgument, "cache_bytes is negative");
  return {};
}

}  // namespace

Result<std::unique_ptr<DatasetReader>> DatasetReader::open(const std::vector<std::string>& shards,
                                                           const DatasetOptions& asked, const std::stop_token& stop) {
  std::unique_ptr<DatasetReader> reader(new DatasetReader);
  RETURN_IF_ERROR(check_cache(asked));
  ASSIGN_OR_RETURN(
      const ReadThrough read_through,
      through_node_cache(
          {.directory = asked.cache, .cap_bytes = asked.cache_bytes, .stop = {}, .metrics = reader->metrics_}));
  ASSIGN_OR_RETURN(auto found, find_shards(shards, read_through));
  if (found.empty()) return fail(ErrorCode::kInvalidArgument, "no shards were given");
  ShardSourceOptions options;
  options.name = fmt::format("{}", fmt::join(shards, ", "));
  options.ids_field = asked.ids_field;
  options.needs_ids = false;
  options.threads = available_cpus();
  reader->waits_for_server_ =
      !std::ranges::all_of(found, [](const Shard& shard) { return shard.location.storage->capabilities().is_local(); });
  ASSIGN_OR_RETURN(reader->source_, open_shard_source(std::move(found), options, reader->metrics_, stop));
  reader->first_.push_back(0);
  for (const int64_t samples : reader->source_->shard_samples()) {
    reader->first_.push_back(reader->first_.back() + samples);
  }
  return reader;
}

order::Window DatasetReader::window_of(int64_t number) const {
  const auto behind = std::upper_bound(first_.begin(), first_.end(), number);
  const int64_t shard = behind - first_.begin() - 1;
  return {.shard = shard, .first = number - first_[static_cast<size_t>(shard)], .samples = 1};
}

Result<StoredSample> DatasetReader::read(int64_t number, const std::stop_token& stop) {
  if (number < 0 || number >= size()) {
    return fail(ErrorCode::kOutOfRange, "{}: sample {}; it has {}", source_->name(), number, size());
  }
  const order::Window window = window_of(number);
  ASSIGN_OR_RETURN(const order::SamplePlan plan, source_->plan({&window, 1}, stop));
  order::SampleRun& run = *plan.runs.front();
  const auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(run.bytes()));
  RETURN_IF_ERROR(wait_for_answer<Status>(
      [&](order::SampleRun::Done done) { run.start(*memory, {.stop = stop}, std::move(done)); }));
  StoredSample sample{.memory = memory};
  RETURN_IF_ERROR(run.visit([&](int64_t, const Result<order::Sample>& found) -> Status {
    if (!found) return tl::unexpected(found.error());
    sample.key = found->key;
    for (const order::Field& field : found->fields) sample.fields.push_back({std::string(field.name), field.data});
    return {};
  }));
  return sample;
}

Result<std::vector<uint32_t>> DatasetReader::read_ids(int64_t number, const std::stop_token& stop) {
  const std::optional<order::TokenIds> ids_of = source_->token_ids();
  if (!ids_of) {
    return fail(ErrorCode::kUnsupported, "{}: its samples hold no token ids; name their field with ids_field",
                source_->name());
  }
  const std::string_view wanted = ids_of->field;
  ASSIGN_OR_RETURN(const StoredSample sample, read(number, stop));
  const auto field = std::ranges::find(sample.fields, wanted, &StoredSample::Field::name);
  if (field == sample.fields.end()) {
    return fail(ErrorCode::kCorruption, "{}: sample {} ({}) has no field {}", source_->name(), number, sample.key,
                wanted);
  }
  std::vector<uint32_t> ids;
  RETURN_IF_ERROR(formats::parse_ids(wanted, field->data, ids, source_->name()));
  return ids;
}

}  // namespace millrace::loader
