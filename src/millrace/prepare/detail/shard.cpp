// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/shard.h"

#include <nlohmann/json.hpp>

#include "millrace/base/log.h"
#include "millrace/formats/tar.h"
#include "millrace/prepare/detail/inputs.h"

namespace millrace::prepare {

namespace {

constexpr int64_t kMaxIndexBytes = int64_t{4} << 30;

nlohmann::json position_to_json(const Position& at) {
  return {{"input", at.input}, {"offset", at.offset}, {"line", at.line}, {"document", at.document}};
}

Position position_from_json(const nlohmann::json& json) {
  return {json.at("input").get<int64_t>(), json.at("offset").get<int64_t>(), json.at("line").get<int64_t>(),
          json.at("document").get<int64_t>()};
}

// What makes a shard unusable, as against a failure to find out.
bool means_rewrite(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kNotFound:
    case ErrorCode::kCorruption:
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfRange:
    case ErrorCode::kInvalidArgument:
      return true;
    default:
      return false;
  }
}

Result<FinishedShard> check_finished_shard(const Location& folder, const std::string& name, const std::string& run,
                                           const Position& begin, std::stop_token stop) {
  const Location index_at = folder.child(name + std::string(kIndexSuffix));
  ASSIGN_OR_RETURN(const std::string bytes, read_object(*index_at.storage, index_at.key, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const formats::ShardIndex index, formats::parse_shard_index(as_bytes(bytes), index_at.url));
  const std::optional<ShardOrigin> origin = parse_origin(index.producer);
  if (!origin || origin->run != run || origin->begin != begin ||
      origin->end.document != begin.document + index.samples()) {
    return fail(ErrorCode::kInvalidArgument, "{}: it was made from other inputs or settings", index_at.url);
  }
  const Location shard_at = folder.child(name);
  ASSIGN_OR_RETURN(auto opened, shard_at.storage->open_read(shard_at.key));
  RETURN_IF_ERROR(formats::check_shard(StoppableReader(std::move(opened), std::move(stop)), index));
  return FinishedShard{
      {name, index.shard_size, index.samples(), index.total_tokens(), index.shard_hash, xxh3_128(bytes)}, *origin};
}

}  // namespace

std::string serialize_origin(const ShardOrigin& origin) {
  return nlohmann::json{{"run", origin.run},
                        {"begin", position_to_json(origin.begin)},
                        {"end", position_to_json(origin.end)},
                        {"invalid_utf8", origin.invalid_utf8}}
      .dump();
}

std::optional<ShardOrigin> parse_origin(std::string_view json) {
  try {
    const nlohmann::json root = nlohmann::json::parse(json);
    return ShardOrigin{root.at("run").get<std::string>(), position_from_json(root.at("begin")),
                       position_from_json(root.at("end")), root.at("invalid_utf8").get<int64_t>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

Result<std::optional<FinishedShard>> find_finished_shard(const Location& folder, const std::string& name,
                                                         const std::string& run, const Position& begin,
                                                         std::stop_token stop) {
  auto found = check_finished_shard(folder, name, run, begin, std::move(stop));
  if (found) return std::optional<FinishedShard>(std::move(*found));
  if (!means_rewrite(found.error())) return tl::unexpected(std::move(found).error());
  if (found.error().code() != ErrorCode::kNotFound) {
    log(LogLevel::kWarning, "{} is written anew: {}", name, found.error().to_string());
  }
  return std::optional<FinishedShard>();
}

ShardWriter::ShardWriter(Location folder, std::string name, std::unique_ptr<Writer> writer, Metrics& metrics)
    : folder_(std::move(folder)), name_(std::move(name)), writer_(std::move(writer)), metrics_(metrics) {}

Result<std::unique_ptr<ShardWriter>> ShardWriter::open(const Location& folder, std::string name, Metrics& metrics) {
  ASSIGN_OR_RETURN(auto writer, folder.storage->open_write(folder.child(name).key));
  return std::unique_ptr<ShardWriter>(new ShardWriter(folder, std::move(name), std::move(writer), metrics));
}

Status ShardWriter::write(std::string_view bytes) {
  MetricTimer timer(metrics_, Metric::kWriteSeconds);
  hash_.update(as_bytes(bytes));
  size_ += static_cast<int64_t>(bytes.size());
  metrics_.add(Metric::kWriteBytes, static_cast<int64_t>(bytes.size()));
  return writer_->append(as_bytes(bytes));
}

Status ShardWriter::append(std::string_view tar, std::span<const Sample> samples) {
  auto offset = static_cast<uint64_t>(size_);
  int64_t tokens = 0, invalid_utf8 = 0;
  for (const Sample& sample : samples) {
    index_.offset.push_back(offset);
    index_.size.push_back(sample.size);
    index_.tokens.push_back(sample.tokens);
    index_.hash.push_back(sample.hash);
    tokens += sample.tokens;
    invalid_utf8 += sample.invalid_utf8;
    offset += sample.size;
  }
  invalid_utf8_ += invalid_utf8;
  metrics_.add(Metric::kSamples, static_cast<int64_t>(samples.size()));
  metrics_.add(Metric::kTokens, tokens);
  metrics_.add(Metric::kInvalidUtf8, invalid_utf8);
  return write(tar);
}

Result<FinishedShard> ShardWriter::finish(ShardOrigin origin, Hash128 tokenizer_hash, const std::string& ids_field) {
  std::string end;
  formats::append_tar_end(end);
  RETURN_IF_ERROR(write(end));
  origin.invalid_utf8 = invalid_utf8_;
  index_.shard_size = size_;
  index_.shard_hash = hash_.digest();
  index_.tokenizer_hash = tokenizer_hash;
  index_.ids_field = ids_field;
  index_.producer = serialize_origin(origin);
  const std::string index_bytes = formats::serialize_shard_index(index_);

  MetricTimer timer(metrics_, Metric::kWriteSeconds);
  // The index of a shard that is replaced goes first: a shard and an index that are both there belong together.
  const std::string index_key = folder_.child(name_ + std::string(kIndexSuffix)).key;
  RETURN_IF_ERROR(folder_.storage->remove(std::span(&index_key, 1)));
  RETURN_IF_ERROR(writer_->commit());
  RETURN_IF_ERROR(write_object(*folder_.storage, index_key, index_bytes));
  return FinishedShard{
      {name_, size_, index_.samples(), index_.total_tokens(), index_.shard_hash, xxh3_128(index_bytes)},
      std::move(origin)};
}

}  // namespace millrace::prepare
