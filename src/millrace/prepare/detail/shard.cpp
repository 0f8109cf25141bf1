// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/shard.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/base/io/stoppable_reader.h"
#include "millrace/base/log.h"
#include "millrace/formats/index_pages.h"
#include "millrace/formats/megatron.h"
#include "millrace/formats/tar.h"
#include "millrace/prepare/detail/inputs.h"

namespace millrace::prepare {

namespace {

constexpr int64_t kLedgerBlock = 1 << 20;

nlohmann::json position_to_json(const Position& at) {
  return {{"input", at.input}, {"offset", at.offset}, {"line", at.line}, {"document", at.document}};
}

Position position_from_json(const nlohmann::json& json) {
  return {json.at("input").get<int64_t>(), json.at("offset").get<int64_t>(), json.at("line").get<int64_t>(),
          json.at("document").get<int64_t>()};
}

// A reason why a shard is unusable, as opposed to a failure to find out.
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

Status check_ledger(const Location& at, Hash128 hash) {
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  Xxh3Stream found;
  std::vector<std::byte> block;
  for (int64_t offset = 0; offset < file->size(); offset += static_cast<int64_t>(block.size())) {
    block.resize(static_cast<size_t>(std::min(file->size() - offset, kLedgerBlock)));
    RETURN_IF_ERROR(file->read_at(offset, block));
    found.update(block);
  }
  if (found.digest() == hash) return {};
  return fail(ErrorCode::kCorruption, "{}: it is not what was written with its shard", at.url);
}

Status check_side_file(const Location& at, const formats::IndexPages& pages, const RandomReader& index_file) {
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  const size_t width = pages.facts().ids_field == "u16" ? sizeof(uint16_t) : sizeof(uint32_t);
  return formats::check_megatron_index(*file, pages.samples(), width,
                                       [&](const auto& visit) { return pages.visit_tokens(index_file, visit); });
}

Result<FinishedShard> check_finished_shard(const Location& folder, const std::string& name, const SampleFormat& format,
                                           const std::string& run, const Position& begin, std::stop_token stop) {
  const Location index_at = folder.child(name + std::string(kIndexSuffix));
  ASSIGN_OR_RETURN(const auto index_file, index_at.storage->open_read(index_at.key));
  ASSIGN_OR_RETURN(const formats::IndexPages pages, formats::IndexPages::open(*index_file));
  const formats::ShardFacts& facts = pages.facts();
  const std::optional<ShardOrigin> origin = parse_origin(facts.producer);
  if (!origin || origin->run != run || origin->begin != begin) {
    return fail(ErrorCode::kInvalidArgument, "{}: it was made from other inputs or settings", index_at.url);
  }
  if (origin->ledger_hash != Hash128{}) {
    RETURN_IF_ERROR(check_ledger(folder.child(name + std::string(kLedgerSuffix)), origin->ledger_hash));
  }
  if (format.options.format == OutputFormat::kMegatron) {
    RETURN_IF_ERROR(check_side_file(folder.child(side_file_name(name)), pages, *index_file));
  }
  const Location shard_at = folder.child(name);
  ASSIGN_OR_RETURN(auto opened, shard_at.storage->open_read(shard_at.key));
  const StoppableReader shard(std::move(opened), std::move(stop));
  RETURN_IF_ERROR(formats::check_shard(shard, pages, *index_file));
  return FinishedShard{
      {name, facts.shard_size, pages.samples(), pages.total_tokens(), facts.shard_hash, pages.file_hash()}, *origin};
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
                        {"empty", origin.counts.empty},
                        {"ledger_hash", to_hex(origin.ledger_hash)}}
      .dump();
}

std::optional<ShardOrigin> parse_origin(std::string_view json) {
  try {
    const nlohmann::json root = nlohmann::json::parse(json);
    const auto count = [&](const char* key) { return root.at(key).get<int64_t>(); };
    const auto ledger_hash = hash128_from_hex(root.at("ledger_hash").get<std::string>());
    if (!ledger_hash) return std::nullopt;
    return ShardOrigin{
        root.at("run").get<std::string>(),
        position_from_json(root.at("begin")),
        position_from_json(root.at("end")),
        {count("invalid_utf8"), count("rejected"), count("duplicates"), count("filtered"), count("empty")},
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
      megatron_(format.options.format == OutputFormat::kMegatron),
      id_width_(format.id_width),
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
  if (raw_ids_ && rows_.samples() > 0 && at < rows_.first_offset()) {  // the first block's head
    const auto before = std::min<size_t>(bytes.size(), rows_.first_offset() - at);
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
  ASSIGN_OR_RETURN(const Placement placement, layout_->add(bytes, samples, static_cast<uint64_t>(size_)));
  int64_t tokens = 0, invalid_utf8 = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    RETURN_IF_ERROR(rows_.add(placement.offsets[i], samples[i].size, samples[i].tokens, samples[i].hash));
    tokens += samples[i].tokens;
    invalid_utf8 += samples[i].invalid_utf8;
  }
  sample_bytes_ += static_cast<int64_t>(bytes.size());
  counts_.invalid_utf8 += invalid_utf8;
  metrics_.add(Metric::kSamples, static_cast<int64_t>(samples.size()));
  metrics_.add(Metric::kTokens, tokens);
  metrics_.add(Metric::kInvalidUtf8, invalid_utf8);
  return write(placement.bytes);
}

Status ShardWriter::drop(const Dropped& dropped, std::string_view source) {
  if (!dropped.rejected) {
    ++counts_.filtered;
    return {};
  }
  ++counts_.rejected;
  const formats::LeftOut& place = *dropped.rejected;
  const nlohmann::json object = {
      {"input", source}, {"offset", place.offset}, {"line", place.line}, {"reason", place.reason}};
  const std::string line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!ledger_) {
    ASSIGN_OR_RETURN(ledger_, folder_.storage->open_write(folder_.child(name_ + std::string(kLedgerSuffix)).key));
  }
  ledger_hash_.update(as_bytes(line));
  return ledger_->append(as_bytes(line));
}

Status ShardWriter::end_file() {
  ASSIGN_OR_RETURN(const std::string end, layout_->end(rows_.total_tokens()));
  RETURN_IF_ERROR(write(end));
  std::string head = layout_->head(rows_.total_tokens());
  if (!head.empty()) RETURN_IF_ERROR(writer_->write_at(0, as_bytes(head)));
  hash_.update(as_bytes(head + before_samples_));
  facts_.shard_size = size_;
  facts_.shard_hash = hash_.digest();
  return {};
}

Status ShardWriter::write_side_file() {
  ASSIGN_OR_RETURN(const auto file, folder_.storage->open_write(folder_.child(side_file_name(name_)).key));
  RETURN_IF_ERROR(formats::write_megatron_index(*file, rows_.samples(), id_width_,
                                                [&](const auto& visit) { return rows_.visit_tokens(visit); }));
  return file->commit().map([](const ObjectInfo&) {});
}

Result<Hash128> ShardWriter::write_index() {
  ASSIGN_OR_RETURN(const auto file, folder_.storage->open_write(folder_.child(name_ + std::string(kIndexSuffix)).key));
  ASSIGN_OR_RETURN(const Hash128 hash, formats::write_shard_index(*file, facts_, rows_.samples(),
                                                                  [&](formats::IndexColumn column, const auto& visit) {
                                                                    return rows_.visit(column, visit);
                                                                  }));
  RETURN_IF_ERROR(file->commit());
  return hash;
}

Result<FinishedShard> ShardWriter::finish(ShardOrigin origin, Hash128 tokenizer_hash, const std::string& ids_field) {
  facts_.kind = raw_ids_ ? formats::SampleExtentKind::kIds : formats::SampleExtentKind::kMembers;
  facts_.tokenizer_hash = tokenizer_hash;
  facts_.ids_field = ids_field;
  RETURN_IF_ERROR(end_file());
  origin.counts = counts_;
  if (ledger_) origin.ledger_hash = ledger_hash_.digest();
  facts_.producer = serialize_origin(origin);

  MetricTimer timer(metrics_, Metric::kWriteSeconds);
  // The index of a shard that is replaced goes first: a shard and an index that are both there belong together.
  const std::vector<std::string> old = {folder_.child(name_ + std::string(kIndexSuffix)).key,
                                        folder_.child(name_ + std::string(kLedgerSuffix)).key};
  RETURN_IF_ERROR(folder_.storage->remove(old));
  RETURN_IF_ERROR(writer_->commit());
  if (ledger_) RETURN_IF_ERROR(ledger_->commit());
  if (megatron_) RETURN_IF_ERROR(write_side_file());
  ASSIGN_OR_RETURN(const Hash128 index_hash, write_index());
  return FinishedShard{{name_, size_, rows_.samples(), rows_.total_tokens(), facts_.shard_hash, index_hash},
                       std::move(origin)};
}

}  // namespace millrace::prepare
