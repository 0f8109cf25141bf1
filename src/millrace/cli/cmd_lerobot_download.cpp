// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/transfer_flags.h"
#include "millrace/lerobot/download.h"

namespace millrace::cli {

namespace {

struct DownloadArgs {
  lerobot::DownloadOptions options;
  TransferArgs transfer;  // of its lines
};

std::string download_text(const lerobot::DownloadReport& report, bool dry_run) {
  const sync::SyncReport& sync = report.sync;
  std::string text = fmt::format("{} {}, commit {}, {} {}\n", report.repo, report.revision, report.commit.substr(0, 8),
                                 dry_run ? "would be in" : "is in", report.target);
  text += fmt::format("{}    {}, {}", dry_run ? "to copy" : "copied ", counted(sync.copied_files, "file"),
                      format_bytes(sync.copied_bytes));
  if (!dry_run) text += fmt::format(" in {}", format_duration(sync.seconds));
  if (sync.resumed_bytes > 0) text += fmt::format("; {} moved by an earlier run", format_bytes(sync.resumed_bytes));
  text += '\n';
  if (sync.skipped_files > 0) {
    text += fmt::format("there      {}, {}\n", counted(sync.skipped_files, "file"), format_bytes(sync.skipped_bytes));
  }
  if (sync.deleted_files > 0) text += fmt::format("deleted    {}\n", counted(sync.deleted_files, "file"));
  if (sync.extra_files > 0) text += fmt::format("left there {}\n", counted(sync.extra_files, "file"));
  if (sync.failed + sync.refused > 0)
    text += fmt::format("failed     {}\n", counted(sync.failed + sync.refused, "file"));
  return text;
}

void print_download(const lerobot::DownloadReport& report, bool dry_run, Output& out) {
  const sync::SyncReport& sync = report.sync;
  const bool stopped = !sync.end && sync.end.error().code() == ErrorCode::kCancelled;
  const bool is_whole = sync.status().has_value();
  for (const std::string& warning : report.warnings) out.note(fmt::format("{}: {}", report.repo, warning));
  out.print_done({{"type", "lerobot_download"},
                  {"repo", report.repo},
                  {"revision", report.revision},
                  {"commit", report.commit},
                  {"output", report.target},
                  {"dry_run", dry_run},
                  {"stopped", stopped},
                  {"copied_files", sync.copied_files},
                  {"copied_bytes", sync.copied_bytes},
                  {"moved_bytes", sync.moved_bytes},
                  {"resumed_bytes", sync.resumed_bytes},
                  {"skipped_files", sync.skipped_files},
                  {"skipped_bytes", sync.skipped_bytes},
                  {"deleted_files", sync.deleted_files},
                  {"failed", sync.failed + sync.refused},
                  {"retries", sync.retries},
                  {"seconds", sync.seconds},
                  {"warnings", report.warnings}},
                 is_whole ? download_text(report, dry_run) : std::string(), dry_run);
  if (stopped) out.note("finished files stay; run the same command again to continue");
}

Status run_download(const DownloadArgs& args, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, "lerobot download");
  lerobot::DownloadOptions options = args.options;
  options.sync.on_event = [&](const sync::SyncEvent& event) { print_event(event, args.transfer, context.out); };
  ASSIGN_OR_RETURN(const lerobot::DownloadReport report, lerobot::download_dataset(options, context.stop, &progress));
  view.reset();
  print_download(report, options.sync.dry_run, context.out);
  return report.sync.status();
}

void add_patterns(CLI::App& app, const std::string& flag, std::vector<std::string>& patterns, const char* description) {
  app.add_option(flag, patterns, description)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("PATTERN");
}

}  // namespace

void add_lerobot_download(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<DownloadArgs>();
  lerobot::DownloadOptions& options = args->options;
  CLI::App& app = verbs.add(
      lerobot, "download", "Get a dataset from the Hugging Face Hub, checked and pinned to one commit",
      {"millrace lerobot download pusht", "millrace lerobot download lerobot/droid_100 --revision v2.1 --out droid",
       "millrace lerobot download aloha_sim_insertion_human --include meta/ --dry-run"},
      [args](Context& context) { return run_download(*args, context); });
  app.add_option("NAME", options.name,
                 "A name of the organisation lerobot, ORG/NAME, or hf://datasets/ORG/NAME[@REVISION]")
      ->required()
      ->option_text(" ");
  app.add_option("--out", options.target, "Target path or URL (default: the dataset's name, in the current folder)")
      ->option_text("URL");
  app.add_option("--revision", options.revision,
                 "A tag, branch or commit (default: the newest version tag; main where there is none)")
      ->option_text("REVISION");
  add_patterns(app, "--include", options.include,
               "Only files that match (rsync's patterns; \"meta/\" is all below meta)");
  add_patterns(app, "--exclude", options.exclude, "No files that match, whatever --include says");
  app.add_flag("--replace", options.replace,
               "Replace another commit in the target with this one, and remove the files that it does not have");
  add_size_flag(app, "--memory", options.sync.engine.memory_bytes,
                "Memory for parts in flight (default: 40MiB); larger values allow more connections",
                sync::kLeastTransferMemoryBytes);
  app.add_flag("--all", args->transfer.all, "Print files that are there already too");
  app.add_flag_callback(
      "--dry-run", [args] { args->options.sync.dry_run = args->transfer.options.dry_run = true; },
      "Say what would be copied; make no change");
}

}  // namespace millrace::cli
