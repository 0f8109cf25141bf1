// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/cli/watched_reader.h"

namespace millrace::cli {

namespace {

struct ShardRow {
  std::string url;
  std::optional<int64_t> samples, tokens, bytes;  // nullopt: unknown, or (bytes) the file is missing
  bool indexed = false;
};

// nullopt when the key is missing. Errors: those of storage but not_found.
Result<std::optional<int64_t>> stored_size(const Location& at) {
  const auto info = at.storage->stat(at.key);
  if (!info && info.error().code() == ErrorCode::kNotFound) return std::nullopt;
  if (!info) return tl::unexpected(info.error());
  return info->size;
}

Result<ShardRow> list_shard(const Shard& shard) {
  ShardRow row{.url = shard.location.url};
  ASSIGN_OR_RETURN(row.bytes, stored_size(shard.location));
  if (shard.entry) {
    row.samples = shard.entry->samples;
    row.tokens = shard.entry->tokens;
    ASSIGN_OR_RETURN(const std::optional<int64_t> index_size, stored_size(index_location(shard)));
    row.indexed = index_size.has_value();
    return row;
  }
  if (!row.bytes) return fail(ErrorCode::kNotFound, "{}: no such file", row.url);
  ASSIGN_OR_RETURN(const std::optional<StoredIndex> stored, read_index(shard));
  if (!stored) return row;
  row.indexed = true;
  row.samples = stored->index.samples();
  if (stored->index.tokens_known()) row.tokens = stored->index.total_tokens();
  return row;
}

Json json_or_null(const std::optional<int64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string count_or_dash(const std::optional<int64_t>& value) {
  return value ? format_count(*value) : "-";
}

void add_to(std::optional<int64_t>& total, const std::optional<int64_t>& value) {
  total = total && value ? std::optional(*total + *value) : std::nullopt;
}

Status run_shards_ls(const std::vector<std::string>& urls, Context& context) {
  ASSIGN_OR_RETURN(const std::vector<Shard> shards, find_shards(urls));
  TextTable table({{"shard"}, {"samples", true}, {"tokens", true}, {"bytes", true}, {"index"}});
  std::optional<int64_t> samples = 0, tokens = 0;
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    if (context.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    ASSIGN_OR_RETURN(const ShardRow row, list_shard(shard));
    context.out.print_json({{"type", "shard"},
                            {"url", row.url},
                            {"samples", json_or_null(row.samples)},
                            {"tokens", json_or_null(row.tokens)},
                            {"bytes", json_or_null(row.bytes)},
                            {"index", row.indexed}});
    table.add({row.url, count_or_dash(row.samples), count_or_dash(row.tokens),
               row.bytes ? format_bytes(*row.bytes) : "missing", row.indexed ? "yes" : "no"});
    add_to(samples, row.samples);
    add_to(tokens, row.tokens);
    bytes += row.bytes.value_or(0);
  }
  context.out.print_text(table.to_string());
  context.out.print(
      {{"type", "total"},
       {"shards", shards.size()},
       {"samples", json_or_null(samples)},
       {"tokens", json_or_null(tokens)},
       {"bytes", bytes}},
      fmt::format("{}, {} samples, {} tokens, {}\n", counted(static_cast<int64_t>(shards.size()), "shard"),
                  count_or_dash(samples), count_or_dash(tokens), format_bytes(bytes)));
  return {};
}

}  // namespace

void add_shards_ls(Verbs& verbs, CLI::App& shards) {
  auto urls = std::make_shared<std::vector<std::string>>();
  CLI::App& app = verbs.add(shards, "ls", "List shards with their samples, tokens and bytes",
                            {"millrace shards ls shards", "millrace shards ls 'shards/{00000..00009}.tar'",
                             "millrace shards ls shards --json"},
                            [urls](Context& context) { return run_shards_ls(*urls, context); });
  add_shard_arguments(app, *urls);
}

}  // namespace millrace::cli
