// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/cli/watched_reader.h"
#include "millrace/formats/megatron.h"
#include "millrace/formats/token_file.h"

namespace millrace::cli {

namespace {

struct IndexArgs {
  std::vector<std::string> urls;
  std::optional<uint32_t> document_start;
  bool force = false;
  bool dry_run = false;
};

// Whether the shard has a usable index. A damaged one is an error that names --force.
Result<bool> has_index(const Shard& shard) {
  const auto stored = read_index(shard);
  if (!stored) {
    return fail(stored.error().code(), "{}; --force builds it again", stored.error().to_string());
  }
  return stored->has_value();
}

// A shard of a manifest has its index from `prepare`. A new index would differ from the manifest's hash.
Status check_not_ours(const Shard& shard) {
  if (!shard.entry) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: its index comes from prepare; run that again to restore it",
              shard.location.url);
}

// A token file tells its documents apart by the id that begins each, a `.bin` of Megatron by the `.idx` beside it.
Result<formats::ShardIndex> index_bin(const Shard& shard, const RandomReader& reader, const IndexArgs& args) {
  ASSIGN_OR_RETURN(const bool is_token_file, formats::is_token_file(reader));
  if (is_token_file) return formats::index_token_file(reader, args.document_start);
  const auto idx_of = [](std::string_view bin) {
    return std::string(bin.substr(0, bin.rfind('.'))) + std::string(formats::kMegatronIndexSuffix);
  };
  const auto idx = shard.location.storage->open_read(idx_of(shard.location.key));
  if (!idx && idx.error().code() == ErrorCode::kNotFound) {
    return fail(
        ErrorCode::kNotFound,
        "{}: is no token file of llm.c, and as one of Megatron it needs {} beside it, which tells its documents apart",
        shard.location.url, idx_of(shard.location.url));
  }
  if (!idx) return tl::unexpected(idx.error());
  return formats::index_megatron(reader, **idx);
}

Result<formats::ShardIndex> build_index(const Shard& shard, const IndexArgs& args, Context& context, Progress& progress,
                                        formats::TarSkipped& skipped) {
  ASSIGN_OR_RETURN(const auto reader, open_watched(shard, context.stop, progress));
  const bool is_bin = shard.location.key.ends_with(".bin");
  ASSIGN_OR_RETURN(formats::ShardIndex index,
                   is_bin ? index_bin(shard, *reader, args) : formats::index_shard(*reader, "", &skipped));
  const Location at = index_location(shard);
  RETURN_IF_ERROR(write_object(*at.storage, at.key, formats::serialize_shard_index(index)));
  return index;
}

Status index_one(const Shard& shard, const IndexArgs& args, Context& context, Progress& progress, int64_t& built) {
  if (!args.force) {
    ASSIGN_OR_RETURN(const bool there, has_index(shard));
    if (there) return {};
  }
  RETURN_IF_ERROR(check_not_ours(shard));
  ++built;
  const std::string url = index_location(shard).url;
  if (args.dry_run) {
    context.out.print({{"type", "index"}, {"url", url}, {"dry_run", true}}, fmt::format("would build {}\n", url));
    return {};
  }
  formats::TarSkipped skipped;
  ASSIGN_OR_RETURN(const formats::ShardIndex index, build_index(shard, args, context, progress, skipped));
  context.out.print_done(
      {{"type", "index"},
       {"url", url},
       {"dry_run", false},
       {"samples", index.samples()},
       {"tokens", index.tokens_known() ? Json(index.total_tokens()) : Json(nullptr)},
       {"ids_field", index.ids_field},
       {"links", skipped.links},
       {"unnamed", skipped.unnamed}},
      fmt::format("built {}: {}, {} tokens\n{}", url, counted(index.samples(), "sample"),
                  index.tokens_known() ? format_count(index.total_tokens()) : "unknown", skipped_text(skipped)));
  return {};
}

Status run_shards_index(const IndexArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::vector<Shard> shards, find_shards(args.urls));
  Progress progress;
  progress.set_totals(0, static_cast<int64_t>(shards.size()));
  auto view = context.out.watch(progress, "index");
  int64_t built = 0;
  for (const Shard& shard : shards) {
    RETURN_IF_ERROR(index_one(shard, args, context, progress, built));
    progress.add(0, 1);
  }
  view.reset();
  const auto kept = static_cast<int64_t>(shards.size()) - built;
  context.out.print_done({{"type", "index_summary"}, {"built", built}, {"kept", kept}, {"dry_run", args.dry_run}},
                         fmt::format("{} {}, {} there before\n",
                                     args.dry_run ? "to build:" : "built:", format_count(built), format_count(kept)),
                         args.dry_run);
  return {};
}

}  // namespace

void add_shards_index(Verbs& verbs, CLI::App& shards) {
  auto args = std::make_shared<IndexArgs>();
  CLI::App& app =
      verbs.add(shards, "index", "Build the indexes that shards of other tools lack",
                {"millrace shards index 'foreign/{00000..00127}.tar'", "millrace shards index megatron/*.bin",
                 "millrace shards index fineweb_train_*.bin --document-start 50256"},
                [args](Context& context) { return run_shards_index(*args, context); });
  add_shard_arguments(app, args->urls);
  app.add_flag("--force", args->force, "Rebuild existing indexes");
  app.add_flag("--dry-run", args->dry_run, "Say what would be built; write no file");
  app.add_option("--document-start", args->document_start,
                 "Token files: the id that begins each document (default: 50256 of GPT-2, 128000 of Llama-3)");
}

}  // namespace millrace::cli
