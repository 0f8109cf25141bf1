// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/transfer_flags.h"
#include "millrace/storage/s3/s3.h"
#include "millrace/sync/ls.h"

namespace millrace::cli {

namespace {

struct LsArgs {
  std::string url = ".";
  sync::LsOptions options;
  bool uploads = false;
  bool summarize = false;
  bool bytes = false;
};

std::string size_text(int64_t bytes, bool exact) {
  return exact ? fmt::format("{}", bytes) : format_bytes(bytes);
}

// Lines are printed as they come, so columns have fixed widths.
void print_entry(const sync::LsEntry& entry, const LsArgs& args, Output& out) {
  if (entry.is_folder) {
    out.print({{"type", "folder"}, {"path", entry.path}},
              fmt::format("{:<20}  {:>{}}  {}\n", "", "-", args.bytes ? 15 : 9, printable(entry.path)));
    return;
  }
  const bool is_file = entry.kind == sync::Entry::Kind::kFile;
  const std::string modified = is_file ? utc_text(entry.info.modified) : "";
  Json object{{"type", "object"}, {"path", entry.path}, {"bytes", entry.info.size}};
  object["modified"] = is_file ? Json(modified) : Json(nullptr);
  object["version"] = entry.info.version.empty() ? Json(nullptr) : Json(entry.info.version);
  if (!is_file) object["note"] = entry_kind_name(entry.kind);
  out.print(object,
            fmt::format("{:<20}  {:>{}}  {}{}\n", modified, is_file ? size_text(entry.info.size, args.bytes) : "-",
                        args.bytes ? 15 : 9, printable(entry.path),
                        is_file ? "" : fmt::format("  ({})", entry_kind_name(entry.kind))));
}

Status ls_uploads(const LsArgs& args, Output& out) {
  ASSIGN_OR_RETURN(const Location at, open_url(args.url));
  ASSIGN_OR_RETURN(const auto uploads, sync::list_uploads(at));
  for (const auto& [path, is_folder, kind, upload] : uploads) {
    const std::string modified = utc_text(upload.modified);
    out.print({{"type", "upload"}, {"path", path}, {"bytes", upload.size}, {"modified", modified}},
              fmt::format("{:<20}  {:>{}}  {}  (never finished)\n", modified, size_text(upload.size, args.bytes),
                          args.bytes ? 15 : 9, printable(path)));
  }
  return {};
}

Status ls_buckets(Output& out) {
  ASSIGN_OR_RETURN(const S3Options options, S3Options::from(process_url_options()));
  ASSIGN_OR_RETURN(const auto buckets, list_s3_buckets(options));
  for (const ObjectInfo& bucket : buckets) {
    const std::string made = utc_text(bucket.modified);
    out.print({{"type", "bucket"}, {"name", bucket.key}, {"made", made}},
              fmt::format("{:<20}  s3://{}\n", made, bucket.key));
  }
  return {};
}

Status run_ls(const LsArgs& args, Context& context) {
  if (args.url == "s3://" || args.url == "s3:") return ls_buckets(context.out);
  if (args.uploads) return ls_uploads(args, context.out);
  ASSIGN_OR_RETURN(const auto listing, sync::Listing::open(args.url, args.options, context.stop));
  for (;;) {
    ASSIGN_OR_RETURN(const auto entry, listing->next());
    if (!entry) break;
    print_entry(*entry, args, context.out);
  }
  if (!args.summarize) return {};
  const sync::LsReport& report = listing->report();
  context.out.print({{"type", "ls_summary"},
                     {"url", url_to_show(args.url)},
                     {"objects", report.objects},
                     {"bytes", report.bytes},
                     {"folders", report.folders}},
                    fmt::format("{}, {}{}\n", counted(report.objects, "object"),
                                args.bytes ? fmt::format("{} bytes", report.bytes) : format_bytes(report.bytes),
                                report.folders > 0 ? ", " + counted(report.folders, "folder") : ""));
  return {};
}

}  // namespace

void add_ls(Verbs& verbs) {
  auto args = std::make_shared<LsArgs>();
  CLI::App& app = verbs.add(verbs.root(), "ls", "List a folder or bucket",
                            {"millrace ls s3://bucket/shards", "millrace ls /fsx/run1 --recursive --summarize",
                             "millrace ls shards --recursive --include '*.tar' --exclude '*' --json"},
                            [args](Context& context) { return run_ls(*args, context); });
  app.add_option("URL", args->url, "A folder, bucket or object; s3:// for all buckets (default: the current folder)")
      ->option_text(" ");
  CLI::Option* const recursive =
      app.add_flag("-r,--recursive", args->options.recursive, "Everything below, instead of one level");
  CLI::Option* const summarize = app.add_flag("--summarize", args->summarize, "Count and add up at the end");
  app.add_flag("--uploads", args->uploads,
               "List unfinished writes at URL or below it instead; they take space, and cost money on S3")
      ->excludes(recursive)
      ->excludes(summarize);
  app.add_flag("--bytes", args->bytes, "Sizes as exact numbers of bytes");
  app.add_flag("--hidden", args->options.hidden, "Show Millrace's own files below .millrace/ too");
  add_filter_flags(app, args->options.filter);
}

}  // namespace millrace::cli
