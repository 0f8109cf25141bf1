// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "millrace/cli/transfer_flags.h"

namespace millrace::cli {

namespace {

void check_sync(const TransferArgs& args) {
  if (args.options.max_delete && !args.options.delete_extra) {
    throw CLI::ValidationError("--max-delete", "goes with --delete");
  }
}

}  // namespace

void add_sync(Verbs& verbs) {
  auto args = std::make_shared<TransferArgs>();
  sync::SyncOptions& options = args->options;
  CLI::App& app = verbs.add(
      verbs.root(), "sync", "Make DST hold the files of SRC, moving only what differs",
      {"millrace sync shards s3://bucket/shards", "millrace sync raw /fsx/raw --exclude '*.tmp' --delete --dry-run",
       "millrace sync /nvme/run1 s3://bucket/run1 --checksum"},
      [args](Context& context) {
        return run_transfer(
            "sync", *args,
            [&](const sync::SyncOptions& run, std::stop_token stop, Progress* progress) {
              return sync::sync(args->source, args->target, run, stop, progress);
            },
            context);
      },
      [args] { check_sync(*args); });
  add_source_and_target(app, args->source, args->target);
  CLI::Option* const checksum = app.add_flag_callback(
      "--checksum", [&options] { options.compare = sync::CompareBy::kChecksum; },
      "Read both sides and compare by content (default: by recorded hashes, else by what proves two files equal: "
      "docs/transfer.md)");
  app.add_flag_callback(
         "--size-only", [&options] { options.compare = sync::CompareBy::kSize; }, "Take files of one size for equal")
      ->excludes(checksum);
  app.add_flag("--delete", options.delete_extra,
               "At the end, delete from DST what SRC does not have; never after an error, nor when SRC has no files");
  app.add_option("--max-delete", options.max_delete, "Delete nothing when it would be more files than this")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  add_transfer_flags(app, *args);
}

}  // namespace millrace::cli
