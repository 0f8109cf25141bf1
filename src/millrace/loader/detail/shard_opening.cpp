// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/shard_opening.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "millrace/cache/start_delay.h"
#include "millrace/loader/detail/node_cache.h"
#include "millrace/loader/shard_source.h"

namespace millrace::loader {

namespace {

Result<std::unique_ptr<order::SampleSource>> open_shards(const LoaderOptions& options, const MixtureSource& source,
                                                         const SourceContext& context) {
  const std::string& first = source.shards.front();
  const ShardSourceOptions source_options{
      .name = source.shards.size() == 1 ? first : fmt::format("{} and others", first),
      .ids_field = source.ids_field,
      .needs_ids = !options.has_fields(),
      .keeps_sound_parts = options.on_bad == OnBad::kQuarantine,
      .index_cache_bytes = context.index_bytes,
      .run_bytes = context.run_bytes,
      .threads = options.threads,
      .tokenizer_hash = options.tokenizer_hash,
      .vocab_size = options.vocab_size,
      .activities = context.activities};
  // The nodes of a job do not ask all at once.
  ASSIGN_OR_RETURN(const ReadThrough read_through,
                   through_node_cache({.directory = options.cache,
                                       .cap_bytes = options.cache_bytes,
                                       .delay = cache::start_delay(options.rank / local_ranks()),
                                       .stop = context.stop,
                                       .metrics = context.metrics}));
  std::vector<Shard> shards;
  {
    const Activities::Scope listing(context.activities, fmt::format("list the shards of {}", source_options.name));
    ASSIGN_OR_RETURN(shards, find_shards(source.shards, read_through));
  }
  return open_shard_source(std::move(shards), source_options, context.metrics, context.stop);
}

}  // namespace

Result<std::vector<OpenSource>> sources_of(const LoaderOptions& options) {
  std::vector<MixtureSource> sources = options.sources;
  if (!options.is_mixture()) sources.push_back({options.shards, options.ids_field, options.open});
  std::vector<OpenSource> open_sources;
  for (const MixtureSource& source : sources) {
    if (source.open) {
      open_sources.push_back(source.open);
      continue;
    }
    if (source.shards.empty()) return fail(ErrorCode::kInvalidArgument, "loader: no shards were named");
    open_sources.emplace_back(
        [options, source](const SourceContext& context) { return open_shards(options, source, context); });
  }
  return open_sources;
}

}  // namespace millrace::loader
