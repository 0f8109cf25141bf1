// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "millrace/base/io/standard_input.h"
#include "millrace/base/text/units.h"
#include "millrace/cli/transfer_flags.h"
#include "millrace/storage/url.h"
#include "millrace/sync/cp.h"

namespace millrace::cli {

namespace {

constexpr size_t kPieceBytes = 1 << 20;

// `-` is standard input. The whole input becomes the object, or no object is written.
Status cp_input(const TransferArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location to, open_url(args.target));
  if (to.key.empty() || args.target.ends_with('/')) {
    return fail(ErrorCode::kInvalidArgument, "{}: standard input has no name: the target needs one", to.url);
  }
  if (args.options.dry_run) return {};
  const auto begin = Clock::now();
  Progress progress;
  auto view = context.out.watch(progress, "cp");
  const sync::ObjectChanges& changes = args.options.transfer.object;
  RETURN_IF_ERROR(sync::check_changes(to, changes));
  ASSIGN_OR_RETURN(
      const auto writer,
      to.storage->open_write(to.key, {.metadata = changes.metadata.value_or(std::map<std::string, std::string>()),
                                      .headers = changes.headers,
                                      .tags = changes.tags.value_or(ObjectTags())}));
  ASSIGN_OR_RETURN(const StandardInput input, StandardInput::open(context.stop));
  std::vector<std::byte> piece(kPieceBytes);
  for (;;) {
    ASSIGN_OR_RETURN(const size_t size, input.read(piece));
    if (size == 0) break;
    RETURN_IF_ERROR(writer->append(std::span(piece).first(size)));
    progress.add(static_cast<int64_t>(size), 0);
  }
  ASSIGN_OR_RETURN(const ObjectInfo object, writer->commit());
  view.reset();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  context.out.print_done({{"type", "cp_summary"}, {"url", to.url}, {"moved_bytes", object.size}, {"seconds", seconds}},
                         fmt::format("moved      {} in {}\n", format_bytes(object.size), format_duration(seconds)),
                         false);
  return {};
}

}  // namespace

void add_cp(Verbs& verbs) {
  struct Args : TransferArgs {
    bool recursive = false;
  };
  auto args = std::make_shared<Args>();
  CLI::App& app = verbs.add(
      verbs.root(), "cp", "Copy an object (- is standard input), or a tree with --recursive",
      {"millrace cp model.safetensors s3://bucket/models/", "millrace cp shards s3://bucket/shards --recursive",
       "millrace cp - s3://bucket/corpus.jsonl < corpus.jsonl"},
      [args](Context& context) {
        if (args->source == "-") return cp_input(*args, context);
        return run_transfer(
            "cp", *args,
            [&](const sync::SyncOptions& options, std::stop_token stop, Progress* progress) {
              return sync::cp(args->source, args->target, args->recursive, options, stop, progress);
            },
            context);
      });
  add_source_and_target(app, args->source, args->target);
  app.add_flag("-r,--recursive", args->recursive, "Copy everything below SRC to the same paths below DST");
  add_transfer_flags(verbs, app, *args);
}

void add_mv(Verbs& verbs) {
  struct Args : TransferArgs {
    bool recursive = false;
  };
  auto args = std::make_shared<Args>();
  CLI::App& app = verbs.add(
      verbs.root(), "mv",
      "Copy, then remove from SRC each file that arrived (within one file system, mv(1) only renames)",
      {"millrace mv run1/checkpoint.safetensors s3://bucket/run1/", "millrace mv s3://bucket/old s3://bucket/new -r",
       "millrace mv logs s3://bucket/logs --recursive --exclude '*.tmp' --dry-run"},
      [args](Context& context) {
        return run_transfer(
            "mv", *args,
            [&](const sync::SyncOptions& options, std::stop_token stop, Progress* progress) {
              return sync::mv(args->source, args->target, args->recursive, options, stop, progress);
            },
            context);
      });
  add_source_and_target(app, args->source, args->target);
  app.add_flag("-r,--recursive", args->recursive, "Move everything below SRC to the same paths below DST");
  add_transfer_flags(verbs, app, *args, false);
}

}  // namespace millrace::cli
