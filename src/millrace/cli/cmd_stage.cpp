// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/transfer_flags.h"
#include "millrace/sync/stage.h"

namespace millrace::cli {

namespace {

struct StageArgs : TransferArgs {
  sync::StageOptions stage;
};

void print_stage_step(const sync::StageStep& step, bool dry_run, Output& out) {
  const std::string_view name = sync::step_name(step.kind);
  out.print_done({{"type", "stage_step"}, {"step", name}, {"detail", step.detail}},
                 fmt::format("{:<8} {}\n", name, printable(step.detail)), dry_run);
}

void print_stage(const StageArgs& args, const sync::StageReport& report, Output& out) {
  const sync::SyncReport& upload = report.upload;
  out.print_done({{"type", "stage_summary"},
                  {"source", url_to_show(args.source)},
                  {"target", url_to_show(args.target)},
                  {"dry_run", args.options.dry_run},
                  {"ok", report.end.has_value()},
                  {"bucket_made", report.bucket_made},
                  {"copied_files", upload.copied_files},
                  {"copied_bytes", upload.copied_bytes},
                  {"moved_bytes", upload.moved_bytes},
                  {"skipped_files", upload.skipped_files},
                  {"retries", upload.retries},
                  {"objects", report.objects},
                  {"bytes", report.bytes},
                  {"sample", report.sample.empty() ? Json(nullptr) : Json(report.sample)},
                  {"sample_bytes", report.sample_bytes},
                  {"sample_members", report.members},
                  {"sample_unpacked_bytes", report.unpacked_bytes},
                  {"seconds", report.seconds}},
                 report.end && !args.options.dry_run
                     ? fmt::format("staged   {} in {}\n", format_bytes(report.bytes), format_duration(report.seconds))
                     : "");
}

Status run_stage(const StageArgs& args, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, "stage");
  sync::StageOptions options = args.stage;
  options.sync = args.options;
  options.sync.on_event = [&](const sync::SyncEvent& event) { print_event(event, args, context.out); };
  options.on_step = [&](const sync::StageStep& step) { print_stage_step(step, args.options.dry_run, context.out); };
  ASSIGN_OR_RETURN(const sync::StageReport report,
                   sync::stage(args.source, args.target, options, context.stop, &progress));
  view.reset();
  print_stage(args, report, context.out);
  return report.end;
}

}  // namespace

void add_stage(Verbs& verbs) {
  auto args = std::make_shared<StageArgs>();
  CLI::App& app = verbs.add(verbs.root(), "stage",
                            "Upload data, list it, download a sample, unpack and check it: one verified step",
                            {"millrace stage /local/data s3://training-data/datasets --create-bucket",
                             "millrace stage shards s3://bucket/shards --sample 00000.tar --sample-dir sample",
                             "millrace stage raw /fsx/raw --exclude '*.tmp' --dry-run"},
                            [args](Context& context) { return run_stage(*args, context); });
  add_source_and_target(app, args->source, args->target);
  app.add_flag("--create-bucket", args->stage.create_bucket, "Make the bucket of DST where there is none");
  app.add_option("--sample", args->stage.sample,
                 "The file to download and check, by its path below SRC (default: the smallest archive)")
      ->option_text("PATH");
  app.add_option("--sample-dir", args->stage.sample_dir,
                 "Keep the sample and its unpacked members here (default: remove them)")
      ->option_text("DIR");
  add_transfer_flags(verbs, app, *args);
}

}  // namespace millrace::cli
