// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/base/thread/executor.h"
#include "millrace/cli/command.h"
#include "millrace/cli/watched_reader.h"
#include "millrace/loader/shard_check.h"

namespace millrace::cli {

namespace {

using loader::ShardCheck;

std::vector<ShardCheck> check_all(const std::vector<Shard>& shards, std::stop_token stop, Progress& progress) {
  std::vector<ShardCheck> results(shards.size());
  Executor executor(available_cpus(), "check");
  parallel_for(executor, static_cast<int64_t>(shards.size()), [&](int64_t i) {
    const Shard& shard = shards[static_cast<size_t>(i)];
    const auto reader = open_watched(shard, stop, progress);
    results[static_cast<size_t>(i)] =
        reader ? loader::check_shard_file(shard, **reader) : loader::unopened_shard(shard, reader.error());
    progress.add(0, 1);
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
                  {"links", check.skipped.links},
                  {"unnamed", check.skipped.unnamed},
                  {"bytes", check.bytes}});
}

void print_check_summary(const std::vector<ShardCheck>& checks, Output& out) {
  int64_t samples = 0, bytes = 0, damaged = 0, without_index = 0;
  formats::TarSkipped skipped;
  for (const ShardCheck& check : checks) {
    samples += check.samples;
    bytes += check.bytes;
    skipped.links += check.skipped.links;
    skipped.unnamed += check.skipped.unnamed;
    if (skipped.first_unnamed.empty()) skipped.first_unnamed = check.skipped.first_unnamed;
    damaged += check.damage.empty() ? 0 : 1;
    without_index += check.indexed || !check.damage.empty() ? 0 : 1;
  }
  std::string text;
  if (without_index > 0) {
    text = fmt::format(
        "{} without an index: only the structure was checked, no content compared with hashes "
        "(millrace shards index)\n",
        counted(without_index, "shard"));
  }
  text += skipped_text(skipped);
  text +=
      fmt::format("{}, {}, {}: {}\n", counted(static_cast<int64_t>(checks.size()), "shard"), counted(samples, "sample"),
                  format_bytes(bytes), damaged == 0 ? "no damage found" : fmt::format("{} damaged", damaged));
  out.print({{"type", "check_summary"},
             {"shards", checks.size()},
             {"damaged", damaged},
             {"without_index", without_index},
             {"samples", samples},
             {"links", skipped.links},
             {"unnamed", skipped.unnamed},
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
  CLI::App& app = verbs.add(shards, "check", "Read shards whole and compare them with their indexes",
                            {"millrace shards check shards", "millrace shards check shards/00000.tar",
                             "millrace shards check foreign/*.tar --json"},
                            [urls](Context& context) { return run_shards_check(*urls, context); });
  add_shard_arguments(app, *urls);
}

}  // namespace millrace::cli
