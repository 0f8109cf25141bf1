// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/transfer_flags.h"
#include "millrace/sync/rm.h"

namespace millrace::cli {

namespace {

struct RmArgs {
  std::string url;
  sync::RmOptions options;
};

void check_rm(const RmArgs& args) {
  if (!args.options.filter.empty() && !args.options.recursive) {
    throw CLI::ValidationError("--include and --exclude", "go with --recursive");
  }
}

Status run_rm(const RmArgs& args, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, "rm");
  sync::RmOptions options = args.options;
  options.on_removed = [&](const std::string& path, int64_t size) {
    context.out.print_done(
        {{"type", "removed"}, {"path", path}, {"bytes", size}},
        fmt::format("{} {}  {}\n", options.dry_run ? "would remove" : "removed", printable(path), format_bytes(size)),
        options.dry_run);
  };
  ASSIGN_OR_RETURN(const sync::RmReport report, sync::rm(args.url, options, context.stop, &progress));
  view.reset();
  context.out.print_done(
      {{"type", "rm_summary"},
       {"url", url_to_show(args.url)},
       {"dry_run", options.dry_run},
       {"objects", report.objects},
       {"bytes", report.bytes},
       {"failed", report.failed},
       {"seconds", report.seconds}},
      fmt::format("{}{}, {} in {}\n", options.dry_run ? "would remove " : "removed ", counted(report.objects, "object"),
                  format_bytes(report.bytes), format_duration(report.seconds)),
      options.dry_run);
  if (!report.first_failure) return {};
  Error error = *report.first_failure;
  return tl::unexpected(error.add_context(
      fmt::format("{} of {} objects stayed, the first", report.failed, report.failed + report.objects)));
}

}  // namespace

void add_rm(Verbs& verbs) {
  auto args = std::make_shared<RmArgs>();
  CLI::App& app = verbs.add(
      verbs.root(), "rm", "Remove an object, or the content of a folder with --recursive",
      {"millrace rm shards/00007.tar", "millrace rm old-run --recursive --dry-run",
       "millrace rm scratch --recursive --include '*.tmp' --exclude '*'"},
      [args](Context& context) { return run_rm(*args, context); }, [args] { check_rm(*args); });
  app.add_option("URL", args->url, "An object or folder")->required()->option_text(" ");
  CLI::Option* const recursive = app.add_flag("-r,--recursive", args->options.recursive,
                                              "Everything below URL (directories of a file system stay)");
  app.add_flag("--uploads", args->options.uploads,
               "Remove unfinished writes at URL or below it instead; on S3 also those of running programs")
      ->excludes(recursive);
  app.add_flag("--force-root", args->options.force_root, "Even when URL is a whole bucket or file system");
  add_filter_flags(app, args->options.filter);
  app.add_flag("--dry-run", args->options.dry_run, "Say what would be removed; remove no object");
}

}  // namespace millrace::cli
