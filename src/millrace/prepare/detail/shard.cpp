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

Status check_beside(const Location& at, Hash128 hash) {
  ASSIGN_OR_RETURN(const std::string bytes, read_object(*at.storage, at.key, kMaxIndexBytes));
  if (xxh3_128(bytes) == hash) return {};
  return fail(ErrorCode::kCorruption, "{}: it is not what was written with its shard", at.url);
}

Result<FinishedShard> check_finished_shard(const Location& folder, const std::string& name, const SampleFormat& format,
                                           const std::string& run, const Position& begin, std::stop_token stop) {
  const Location index_at = folder.child(name + std::string(kIndexSuffix));
  ASSIGN_OR_RETURN(const std::string bytes, read_object(*index_at.storage, index_at.key, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const formats::ShardIndex index, formats::parse_shard_index(as_bytes(bytes), index_at.url));
  const std::optional<ShardOrigin> origin = parse_origin(index.producer);
  if (!origin || origin->run != run || origin->begin != begin) {
    return fail(ErrorCode::kInvalidArgument, "{}: it was made from other inputs or settings", index_at.url);
  }
  if (origin->ledger_hash != Hash128{}) {
    RETURN_IF_ERROR(check_beside(folder.child(name + std::string(kLedgerSuffix)), origin->ledger_hash));
  }
  if (const auto side_file = make_layout(format)->side_file(index)) {
    RETURN_IF_ERROR(check_beside(folder.child(side_file_name(name)), xxh3_128(*side_file)));
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
                        {"invalid_utf8", origin.counts.invalid_utf8},
                        {"rejected", origin.counts.rejected},
                        {"duplicates", origin.counts.duplicates},
                        {"filtered", origin.counts.filtered},
                        {"ledger_hash", to_hex(origin.ledger_hash)}}
      .dump();
}

std::optional<ShardOrigin> parse_origin(std::string_view json) {
  try {
    const nlohmann::json root = nlohmann::json::parse(json);
    const auto count = [&](const char* key) { return root.at(key).get<int64_t>(); };
    const auto ledger_hash = hash128_from_hex(root.at("ledger_hash").get<std::string>());
    if (!ledger_hash) return std::nullopt;
    return ShardOrigin{root.at("run").get<std::string>(),
                       position_from_json(root.at("begin")),
                       position_from_json(root.at("end")),
                       {count("invalid_utf8"), count("rejected"), count("duplicates"), count("filtered")},
                       *ledger_hash};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

Result<std::optional<FinishedShard>> find_finished_shard(const Location& folder, const std::string& name,
                                                         const SampleFormat& format, const std::string& run,
                                                         const Position& begin, std::stop_token stop) {
  auto found = check_finished_shard(folder, name, format, run, begin, std::move(stop));
  if (found) return std::optional<FinishedShard>(std::move(*found));
  if (!means_rewrite(found.error())) return tl::unexpected(std::move(found).error());
  if (found.error().code() != ErrorCode::kNotFound) {
    log(LogLevel::kWarning, "{} is written anew: {}", name, found.error().to_string());
  }
  return std::optional<FinishedShard>();
}

ShardWriter::ShardWriter(Location folder, std::string name, const SampleFormat& format, std::unique_ptr<Writer> writer,
                         Metrics& metrics)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      raw_ids_(format.raw_ids()),
      layout_(make_layout(format)),
      writer_(std::move(writer)),
      metrics_(metrics),
      size_(static_cast<int64_t>(layout_->head_bytes())) {}

Result<std::unique_ptr<ShardWriter>> ShardWriter::open(const Location& folder, std::string name,
                                                       const SampleFormat& format, Metrics& metrics) {
  ASSIGN_OR_RETURN(auto writer, folder.storage->open_write(folder.child(name).key));
  std::unique_ptr<ShardWriter> shard(new ShardWriter(folder, std::move(name), format, std::move(writer), metrics));
  // The head's place, until what it says is known: some storages take bytes in their order only.
  const std::string head(static_cast<size_t>(shard->size_), '\0');
  if (!head.empty()) RETURN_IF_ERROR(shard->writer_->write_at(0, as_bytes(head)));
  return shard;
}

Status ShardWriter::write(std::string_view bytes) {
  if (bytes.empty()) return {};
  MetricTimer timer(metrics_, Metric::kWriteSeconds);
  const auto at = static_cast<uint64_t>(size_);
  std::string_view hashed = bytes;
  if (raw_ids_ && !index_.offset.empty() && at < index_.offset.front()) {  // the first block's head
    const auto before = std::min<size_t>(bytes.size(), index_.offset.front() - at);
    before_samples_ += bytes.substr(0, before);
    hashed.remove_prefix(before);
  }
  hash_.update(as_bytes(hashed));
  RETURN_IF_ERROR(writer_->write_at(size_, as_bytes(bytes)));
  size_ += static_cast<int64_t>(bytes.size());
  metrics_.add(Metric::kWriteBytes, static_cast<int64_t>(bytes.size()));
  return {};
}

Status ShardWriter::append(std::string_view bytes, std::span<const Sample> samples) {
  ASSIGN_OR_RETURN(const Laid laid, layout_->add(bytes, samples, static_cast<uint64_t>(size_)));
  int64_t tokens = 0, invalid_utf8 = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    index_.offset.push_back(laid.offsets[i]);
    index_.size.push_back(samples[i].size);
    index_.tokens.push_back(samples[i].tokens);
    index_.hash.push_back(samples[i].hash);
    tokens += samples[i].tokens;
    invalid_utf8 += samples[i].invalid_utf8;
  }
  sample_bytes_ += static_cast<int64_t>(bytes.size());
  counts_.invalid_utf8 += invalid_utf8;
  metrics_.add(Metric::kSamples, static_cast<int64_t>(samples.size()));
  metrics_.add(Metric::kTokens, tokens);
  metrics_.add(Metric::kInvalidUtf8, invalid_utf8);
  return write(laid.bytes);
}

void ShardWriter::drop(const Dropped& dropped, std::string_view source) {
  if (!dropped.rejected) {
    ++counts_.filtered;
    return;
  }
  ++counts_.rejected;
  const formats::LeftOut& place = *dropped.rejected;
  const nlohmann::json line = {
      {"input", source}, {"offset", place.offset}, {"line", place.line}, {"reason", place.reason}};
  ledger_ += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Status ShardWriter::end_file() {
  ASSIGN_OR_RETURN(const std::string end, layout_->end(index_));
  RETURN_IF_ERROR(write(end));
  std::string head = layout_->head(index_);
  if (!head.empty()) RETURN_IF_ERROR(writer_->write_at(0, as_bytes(head)));
  hash_.update(as_bytes(head + before_samples_));
  index_.shard_size = size_;
  index_.shard_hash = hash_.digest();
  return {};
}

Result<FinishedShard> ShardWriter::finish(ShardOrigin origin, Hash128 tokenizer_hash, const std::string& ids_field) {
  index_.kind = raw_ids_ ? formats::SampleExtentKind::kIds : formats::SampleExtentKind::kMembers;
  index_.tokenizer_hash = tokenizer_hash;
  index_.ids_field = ids_field;
  RETURN_IF_ERROR(end_file());
  origin.counts = counts_;
  if (!ledger_.empty()) origin.ledger_hash = xxh3_128(ledger_);
  index_.producer = serialize_origin(origin);
  const std::string index_bytes = formats::serialize_shard_index(index_);

  MetricTimer timer(metrics_, Metric::kWriteSeconds);
  // The index of a shard that is replaced goes first: a shard and an index that are both there belong together.
  const std::string index_key = folder_.child(name_ + std::string(kIndexSuffix)).key;
  const std::string ledger_key = folder_.child(name_ + std::string(kLedgerSuffix)).key;
  const std::vector<std::string> old = {index_key, ledger_key};
  RETURN_IF_ERROR(folder_.storage->remove(old));
  RETURN_IF_ERROR(writer_->commit());
  if (!ledger_.empty()) RETURN_IF_ERROR(write_object(*folder_.storage, ledger_key, ledger_));
  if (const auto side_file = layout_->side_file(index_)) {
    RETURN_IF_ERROR(write_object(*folder_.storage, folder_.child(side_file_name(name_)).key, *side_file));
  }
  RETURN_IF_ERROR(write_object(*folder_.storage, index_key, index_bytes));
  return FinishedShard{
      {name_, size_, index_.samples(), index_.total_tokens(), index_.shard_hash, xxh3_128(index_bytes)},
      std::move(origin)};
}

}  // namespace millrace::prepare
