// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "millrace/base/executor.h"
#include "millrace/base/units.h"
#include "millrace/cli/command.h"
#include "millrace/cli/watched_reader.h"
#include "millrace/formats/index_pages.h"
#include "millrace/formats/megatron.h"
#include "millrace/formats/tar.h"

namespace millrace::cli {

namespace {

struct ShardCheck {
  std::vector<Error> damage;
  std::optional<Error> failure;  // the shard could not be looked at
  bool indexed = false;
  int64_t samples = 0;
  int64_t bytes = 0;
};

// What says something of the bytes, as opposed to of the way to them. A file is only missed where a manifest names it.
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

// Without an index: every header, the order of members and the archive's end; payloads cannot be checked.
Result<int64_t> count_samples(const RandomReader& reader) {
  formats::SampleReader samples(reader);
  for (int64_t count = 0;; ++count) {
    ASSIGN_OR_RETURN(const std::optional<formats::SampleExtent> sample, samples.next());
    if (!sample) return count;
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

// A file of ids without a head is Megatron's, whose readers need the .idx beside it.
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
  return formats::check_shard(reader, pages, index_file);
}

Status check_one(const Shard& shard, std::stop_token stop, Progress& progress, ShardCheck& result) {
  ASSIGN_OR_RETURN(const auto reader, open_watched(shard, std::move(stop), progress));
  result.bytes = reader->size();
  const Location index_at = index_location(shard);
  const auto index_file = index_at.storage->open_read(index_at.key);
  if (index_file) return check_indexed(shard, *reader, **index_file, result);
  if (index_file.error().code() != ErrorCode::kNotFound) return tl::unexpected(index_file.error());
  // Only for entries of a manifest an index is owed.
  if (shard.entry) result.damage.emplace_back(ErrorCode::kNotFound, index_at.url + ": missing");
  ASSIGN_OR_RETURN(result.samples, count_samples(*reader));
  return {};
}

std::vector<ShardCheck> check_all(const std::vector<Shard>& shards, std::stop_token stop, Progress& progress) {
  std::vector<ShardCheck> results(shards.size());
  Executor executor(available_cpus(), "check");
  parallel_for(executor, static_cast<int64_t>(shards.size()), [&](int64_t i) {
    ShardCheck& result = results[static_cast<size_t>(i)];
    const Status status = check_one(shards[static_cast<size_t>(i)], stop, progress, result);
    progress.add(0, 1);
    if (status) return;
    if (is_damage(shards[static_cast<size_t>(i)], status.error())) {
      result.damage.push_back(status.error());
    } else {
      result.failure = status.error();
    }
  });
  return results;
}

void print_check(const Shard& shard, const ShardCheck& check, Output& out) {
  for (const Error& error : check.damage) out.finding(shard.location.url, error);
  out.print_json({{"type", "shard_check"},
                  {"url", shard.location.url},
                  {"ok", check.damage.empty()},
                  {"index", check.indexed},
                  {"samples", check.samples},
                  {"bytes", check.bytes}});
}

void print_check_summary(const std::vector<ShardCheck>& checks, Output& out) {
  int64_t samples = 0, bytes = 0, damaged = 0, without_index = 0;
  for (const ShardCheck& check : checks) {
    samples += check.samples;
    bytes += check.bytes;
    damaged += check.damage.empty() ? 0 : 1;
    without_index += check.indexed || !check.damage.empty() ? 0 : 1;
  }
  std::string text;
  if (without_index > 0) {
    text = fmt::format(
        "{} without an index: only the structure was read, no content held against hashes "
        "(millrace shards index)\n",
        counted(without_index, "shard"));
  }
  text +=
      fmt::format("{}, {}, {}: {}\n", counted(static_cast<int64_t>(checks.size()), "shard"), counted(samples, "sample"),
                  format_bytes(bytes), damaged == 0 ? "no damage found" : fmt::format("{} damaged", damaged));
  out.print({{"type", "check_summary"},
             {"shards", checks.size()},
             {"damaged", damaged},
             {"without_index", without_index},
             {"samples", samples},
             {"bytes", bytes}},
            text);
}

Status run_shards_check(const std::vector<std::string>& urls, Context& context) {
  const auto shards = find_shards(urls);
  if (!shards && shards.error().code() == ErrorCode::kCorruption) {
    context.out.finding(urls.front(), shards.error());
    return {};
  }
  if (!shards) return tl::unexpected(shards.error());
  Progress progress;
  int64_t bytes = 0;
  for (const Shard& shard : *shards) bytes += shard.entry ? shard.entry->size : 0;
  progress.set_totals(bytes, static_cast<int64_t>(shards->size()));
  auto view = context.out.watch(progress, "check");
  const std::vector<ShardCheck> checks = check_all(*shards, context.stop, progress);
  view.reset();
  for (size_t i = 0; i < checks.size(); ++i) {
    if (checks[i].failure) return tl::unexpected(*checks[i].failure);
    print_check((*shards)[i], checks[i], context.out);
  }
  print_check_summary(checks, context.out);
  return {};
}

}  // namespace

void add_shards_check(Verbs& verbs, CLI::App& shards) {
  auto urls = std::make_shared<std::vector<std::string>>();
  CLI::App& app = verbs.add(shards, "check", "Read shards whole and hold them against their indexes",
                            {"millrace shards check shards", "millrace shards check shards/00000.tar",
                             "millrace shards check foreign/*.tar --json"},
                            [urls](Context& context) { return run_shards_check(*urls, context); });
  add_shard_arguments(app, *urls);
}

}  // namespace millrace::cli
