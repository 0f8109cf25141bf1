// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/cli/task_flag.h"
#include "millrace/cli/transfer_flags.h"

namespace millrace::cli {

namespace {

struct SyncArgs : TransferArgs {
  std::string task, dead_after;
  std::optional<sync::SharedSync> shared;
  std::string job;
};

void check_sync(SyncArgs& args, UrlOptions& urls) {
  if (args.options.max_delete && !args.options.delete_extra) {
    throw CLI::ValidationError("--max-delete", "goes with --delete");
  }
  if (args.task.empty()) return;
  for (const auto& [flag, given] :
       {std::pair("--delete", args.options.delete_extra), {"--dry-run", args.options.dry_run}}) {
    if (given) throw CLI::ValidationError("--task", fmt::format("excludes {}: run one sync for that", flag));
  }
  args.shared.emplace();
  args.shared->job = args.job.empty() ? first_variable({"SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID"}) : args.job;
  if (args.shared->job.empty()) {
    throw CLI::ValidationError("--task",
                               "needs --job NAME outside of a Slurm job: the same for all tasks of this sync");
  }
  if (!args.dead_after.empty()) {
    args.shared->dead_after = usage_value("--dead-after", parse_duration(args.dead_after));
    if (args.shared->dead_after.count() < 1) throw CLI::ValidationError("--dead-after", "is 1s or more");
  }
  // The limits of the user hold for all tasks together.
  share_budgets(args.task, urls);
}

}  // namespace

void add_sync(Verbs& verbs) {
  auto args = std::make_shared<SyncArgs>();
  sync::SyncOptions& options = args->options;
  CLI::App& app = verbs.add(
      verbs.root(), "sync", "Make DST hold the files of SRC, moving only what differs",
      {"millrace sync shards s3://bucket/shards", "millrace sync raw /fsx/raw --exclude '*.tmp' --delete --dry-run",
       "millrace sync s3://bucket/raw /fsx/raw --task 3/16 --job raw-1"},
      [args](Context& context) {
        return run_transfer(
            "sync", *args,
            [&](const sync::SyncOptions& run, std::stop_token stop, Progress* progress) {
              if (args->shared)
                return sync::sync_shared(args->source, args->target, *args->shared, run, stop, progress);
              return sync::sync(args->source, args->target, run, stop, progress);
            },
            context);
      },
      [args, &verbs] { check_sync(*args, verbs.url_options()); });
  add_source_and_target(app, args->source, args->target);
  CLI::Option* const checksum = app.add_flag_callback(
      "--checksum", [&options] { options.compare = sync::CompareBy::kChecksum; },
      "Read both sides and compare by content (default: by recorded hashes, else by other proofs: docs/transfer.md)");
  app.add_flag_callback(
         "--size-only", [&options] { options.compare = sync::CompareBy::kSize; }, "Treat files of equal size as equal")
      ->excludes(checksum);
  app.add_flag(
      "--delete", options.delete_extra,
      "After the copies, delete files from DST that SRC does not have; never after an error or when SRC has no files");
  app.add_option("--max-delete", options.max_delete, "Delete nothing if more than N files would be deleted")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  app.add_option("--task", args->task, "Do share I of N (I from 0); slurm: take both from Slurm")
      ->option_text("I/N|slurm");
  app.add_option("--job", args->job, "With --task: a name that only these tasks use (default: from Slurm's job)")
      ->option_text("NAME")
      ->needs("--task");
  app.add_option("--dead-after", args->dead_after,
                 "With --task: take over the part of a task that has been silent this long (default: 60s)")
      ->option_text("TIME")
      ->needs("--task");
  add_transfer_flags(verbs, app, *args);
}

}  // namespace millrace::cli
