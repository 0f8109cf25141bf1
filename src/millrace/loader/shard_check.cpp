// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/shard_check.h"

#include <utility>

#include "millrace/formats/index_pages.h"
#include "millrace/formats/megatron.h"
#include "millrace/formats/tar.h"

namespace millrace::loader {

namespace {

// True for errors about the bytes, not about the way to them. Only a file that a manifest names can be missing.
bool is_damage(const Shard& shard, const Error& error) {
  switch (error.code()) {
    case ErrorCode::kCorruption:
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfRange:
      return true;
    case ErrorCode::kNotFound:
      return shard.entry.has_value();
    default:
      return false;
  }
}

// Without an index: checks every header, the order of members and the archive's end. Payloads cannot be checked.
Status check_structure(const RandomReader& reader, ShardCheck& result) {
  formats::SampleReader samples(reader);
  for (;; ++result.samples) {
    ASSIGN_OR_RETURN(const std::optional<formats::SampleExtent> sample, samples.next());
    result.skipped = samples.skipped();
    if (!sample) return {};
  }
}

Status check_against_entry(const Shard& shard, const formats::IndexPages& pages) {
  if (!shard.entry) return {};
  if (pages.file_hash() != shard.entry->index_hash) {
    return fail(ErrorCode::kCorruption, "{}: not the index that the manifest names", index_location(shard).url);
  }
  if (pages.facts().shard_hash != shard.entry->hash) {
    return fail(ErrorCode::kCorruption, "{}: its index and the manifest name different content", shard.location.url);
  }
  return {};
}

// A file of ids without a head is Megatron's. Its readers need the .idx beside it.
Status check_megatron(const Shard& shard, const formats::IndexPages& pages, const RandomReader& index_file) {
  const int64_t width = pages.facts().ids_field == "u16" ? sizeof(uint16_t) : sizeof(uint32_t);
  const std::string_view suffix = ".bin";
  if (pages.facts().kind != formats::SampleExtentKind::kIds || !shard.location.key.ends_with(suffix) ||
      pages.facts().shard_size != pages.total_tokens() * width) {
    return {};
  }
  const auto beside = [&](const std::string& name) {
    return name.substr(0, name.size() - suffix.size()) + std::string(formats::kMegatronIndexSuffix);
  };
  const auto file = shard.location.storage->open_read(beside(shard.location.key));
  if (!file && file.error().code() == ErrorCode::kNotFound) {
    return fail(ErrorCode::kCorruption, "{}: missing, and Megatron-LM reads {} by it; run prepare again",
                beside(shard.location.url), shard.location.url);
  }
  if (!file) return tl::unexpected(file.error());
  return formats::check_megatron_index(**file, pages.samples(), static_cast<size_t>(width),
                                       [&](const auto& visit) { return pages.visit_tokens(index_file, visit); });
}

Status check_indexed(const Shard& shard, const RandomReader& reader, const RandomReader& index_file,
                     ShardCheck& result) {
  ASSIGN_OR_RETURN(const formats::IndexPages pages, formats::IndexPages::open(index_file));
  result.indexed = true;
  result.samples = pages.samples();
  RETURN_IF_ERROR(check_against_entry(shard, pages));
  if (const Status idx = check_megatron(shard, pages, index_file); !idx) {
    if (!is_damage(shard, idx.error())) return idx;
    result.damage.push_back(idx.error());
  }
  RETURN_IF_ERROR(formats::check_shard(reader, pages, index_file));
  // They lie between the samples, and `prepare` writes none.
  if (shard.entry || pages.facts().kind != formats::SampleExtentKind::kMembers) return {};
  ASSIGN_OR_RETURN(result.skipped, formats::count_skipped(reader));
  return {};
}

Status check_into(const Shard& shard, const RandomReader& reader, ShardCheck& result) {
  result.bytes = reader.size();
  const Location index_at = index_location(shard);
  const auto index_file = index_at.storage->open_read(index_at.key);
  if (index_file) return check_indexed(shard, reader, **index_file, result);
  if (index_file.error().code() != ErrorCode::kNotFound) return tl::unexpected(index_file.error());
  // Only entries of a manifest must have an index.
  if (shard.entry) result.damage.emplace_back(ErrorCode::kNotFound, index_at.url + ": missing");
  return check_structure(reader, result);
}

void add_error(const Shard& shard, Error error, ShardCheck& result) {
  if (is_damage(shard, error)) {
    result.damage.push_back(std::move(error));
  } else {
    result.failure = std::move(error);
  }
}

}  // namespace

ShardCheck check_shard_file(const Shard& shard, const RandomReader& reader) {
  ShardCheck result;
  if (Status status = check_into(shard, reader, result); !status) add_error(shard, status.error(), result);
  return result;
}

ShardCheck unopened_shard(const Shard& shard, Error error) {
  ShardCheck result;
  add_error(shard, std::move(error), result);
  return result;
}

}  // namespace millrace::loader
