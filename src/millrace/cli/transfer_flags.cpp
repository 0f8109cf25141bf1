// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/transfer_flags.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/object_flags.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

using Event = sync::SyncEvent;
using AddRule = std::function<Status(sync::Filter&, const std::string&)>;

// Rules apply in the order in which they are typed, so each is stored when it is parsed.
void add_rule_flag(CLI::App& app, const std::string& flag, sync::Filter& filter, const AddRule& add, const char* value,
                   const std::string& description) {
  app.add_option_function<std::vector<std::string>>(
         flag,
         [flag, &filter, add](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             if (const Status added = add(filter, text); !added) {
               throw CLI::ValidationError(flag, added.error().to_string());
             }
           }
         },
         description)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->trigger_on_parse()
      ->option_text(value);
}

Status add_filter_file(sync::Filter& filter, const std::string& url) {
  ASSIGN_OR_RETURN(const Location file, open_url(url));
  ASSIGN_OR_RETURN(const std::string lines, read_object(*file.storage, file.key));
  return filter.add_lines(lines, url);
}

bool is_worth_a_line(const Event& event, bool all) {
  return all || (event.kind != Event::Kind::kSkipped && event.kind != Event::Kind::kExtra);
}

double rate_of(const sync::SyncReport& report) {
  return report.seconds > 0 ? static_cast<double>(report.moved_bytes + report.server_bytes) / report.seconds : 0;
}

std::string files_text(int64_t files, int64_t bytes) {
  return counted(files, "file") + ", " + format_bytes(bytes);
}

// "4.29 GB", or "16.8 MB of 4.29 GB" when the rest did not move.
std::string size_text(const Event& event) {
  const bool is_part = event.kind == Event::Kind::kCopied && event.moved_bytes < event.size;
  return (is_part ? format_bytes(event.moved_bytes) + " of " : "") + format_bytes(event.size);
}

// A line for each count that is not zero.
std::string report_text(const sync::SyncReport& report, bool dry_run) {
  std::string text =
      fmt::format("{}    {}\n", dry_run ? "to copy" : "copied ", files_text(report.copied_files, report.copied_bytes));
  text += fmt::format("{}    {}", dry_run ? "to move" : "moved  ", format_bytes(report.moved_bytes));
  if (!dry_run)
    text += fmt::format(" in {}, {}", format_duration(report.seconds),
                        format_rate(report.seconds > 0 ? static_cast<double>(report.moved_bytes) / report.seconds : 0));
  if (report.server_bytes > 0)
    text += fmt::format("; {} copied by the storage itself", format_bytes(report.server_bytes));
  if (report.resumed_bytes > 0) text += fmt::format("; {} moved by an earlier run", format_bytes(report.resumed_bytes));
  text += '\n';
  if (report.saved_bytes() > 0) {
    text += fmt::format("{}    {}\n", dry_run ? "to save" : "saved  ", format_bytes(report.saved_bytes()));
  }
  if (report.skipped_files > 0) {
    text += fmt::format("skipped    {}\n", files_text(report.skipped_files, report.skipped_bytes));
  }
  if (report.deleted_files > 0) {
    text += fmt::format("{}  {}\n", dry_run ? "to delete" : "deleted  ",
                        files_text(report.deleted_files, report.deleted_bytes));
  }
  if (report.removed_files > 0)
    text += fmt::format("removed    {} at the source\n", counted(report.removed_files, "file"));
  if (report.extra_files > 0) text += fmt::format("left there {}\n", counted(report.extra_files, "file"));
  if (report.made_folders > 0) {
    text += fmt::format("{}    {}\n", dry_run ? "to make" : "made   ", counted(report.made_folders, "empty folder"));
  }
  if (report.set_folders > 0) {
    text +=
        fmt::format("{}     attributes of {}\n", dry_run ? "to set" : "set   ", counted(report.set_folders, "folder"));
  }
  if (report.passed > 0) text += fmt::format("passed     {} not plain files\n", format_count(report.passed));
  if (report.refused > 0) text += fmt::format("refused    {}\n", format_count(report.refused));
  if (report.retries > 0) text += fmt::format("sent again {}\n", counted(report.retries, "request"));
  if (report.failed > 0) text += fmt::format("failed     {}\n", counted(report.failed, "file"));
  return text;
}

void print_report(const TransferArgs& args, const sync::SyncReport& report, Output& out) {
  const bool stopped = !report.end && report.end.error().code() == ErrorCode::kCancelled;
  out.print_done({{"type", "transfer_summary"},
                  {"source", url_to_show(args.source)},
                  {"target", url_to_show(args.target)},
                  {"dry_run", args.options.dry_run},
                  {"stopped", stopped},
                  {"copied_files", report.copied_files},
                  {"copied_bytes", report.copied_bytes},
                  {"moved_bytes", report.moved_bytes},
                  {"server_bytes", report.server_bytes},
                  {"resumed_bytes", report.resumed_bytes},
                  {"saved_bytes", report.saved_bytes()},
                  {"skipped_files", report.skipped_files},
                  {"skipped_bytes", report.skipped_bytes},
                  {"deleted_files", report.deleted_files},
                  {"deleted_bytes", report.deleted_bytes},
                  {"extra_files", report.extra_files},
                  {"removed_files", report.removed_files},
                  {"made_folders", report.made_folders},
                  {"set_folders", report.set_folders},
                  {"passed", report.passed},
                  {"refused", report.refused},
                  {"failed", report.failed},
                  {"retries", report.retries},
                  {"seconds", report.seconds},
                  {"bytes_per_second", rate_of(report)}},
                 report_text(report, args.options.dry_run), args.options.dry_run);
  if (stopped) out.note("finished files stay; run the same command again to continue");
}

}  // namespace

void add_source_and_target(CLI::App& app, std::string& source, std::string& target) {
  app.add_option("SRC", source, "Source: a path or URL")->required()->option_text(" ");
  app.add_option("DST", target, "Target: a path or URL")->required()->option_text(" ");
}

void add_filter_flags(CLI::App& app, sync::Filter& filter) {
  add_rule_flag(
      app, "--include", filter, [](sync::Filter& to, const std::string& text) { return to.include(text); }, "PATTERN",
      "Take matching files (rsync's rules; the first match decides)");
  add_rule_flag(
      app, "--exclude", filter, [](sync::Filter& to, const std::string& text) { return to.exclude(text); }, "PATTERN",
      "Leave matching files out: they are neither copied nor deleted");
  add_rule_flag(app, "--filter-from", filter, add_filter_file, "FILE",
                "Read rules from a file with lines \"+ PATTERN\" and \"- PATTERN\"");
}

void add_links_flag(CLI::App& app, bool& follow) {
  add_choice_flag(
      app, "--links", {"skip", "follow"}, [&follow](const std::string& policy) { follow = policy == "follow"; },
      "Symbolic links of SRC: skip them with a line each, or copy their targets (default: skip)");
}

void add_transfer_flags(Verbs& verbs, CLI::App& app, TransferArgs& args, bool links) {
  add_filter_flags(app, args.options.filter);
  if (links) add_links_flag(app, args.options.follow_links);
  add_object_flags(app, args.options.transfer.object);
  app.add_flag("--posix", args.options.transfer.posix,
               "Copy owner, mode and times too (in S3, as FSx for Lustre reads them)");
  add_choice_flag(
      app, "--lustre-layout", {"single", "spread", "progressive", "all"},
      [&layout = args.options.lustre_layout](const std::string& name) { layout = parse_lustre_layout(name); },
      "Stripe new files in DST over 1 Lustre server, 8, more as a file grows, or all");
  app.add_flag_callback(
      "--no-records",
      [&options = args.options] {
        options.record = false;
        options.transfer.sidecar = false;
      },
      "Store no hashes in .millrace/ at the target");
  app.add_option_function<std::string>(
         "--bwlimit",
         [&verbs](const std::string& rate) {
           verbs.url_options().bytes_per_second = usage_value("--bwlimit", parse_bytes(rate));
         },
         "Move at most this many bytes a second to and from s3:// (\"200MB\")")
      ->trigger_on_parse()
      ->option_text("SIZE");
  add_size_flag(
      app, "--memory", args.options.engine.memory_bytes,
      "Memory for parts in flight (default: 40MiB); larger values allow more connections to s3://, for fast networks",
      sync::kLeastTransferMemoryBytes);
  app.add_flag("--all", args.all, "Print skipped files and extra files too");
  app.add_flag("--dry-run", args.options.dry_run, "Say what would be done, and why; make no change");
}

void print_event(const sync::SyncEvent& event, const TransferArgs& args, Output& out) {
  if (!is_worth_a_line(event, args.all)) return;
  const std::string_view action = sync::event_name(event.kind);
  // Either form is built only if it is printed: a tree may have millions of files.
  if (out.json()) {
    return out.print_json({{"type", "transfer"},
                           {"action", action},
                           {"path", event.path},
                           {"bytes", event.size},
                           {"moved_bytes", event.moved_bytes},
                           {"reason", event.reason}});
  }
  const bool failed = event.kind == Event::Kind::kFailed || event.kind == Event::Kind::kRefused;
  if (out.quiet() && !args.options.dry_run && !failed) return;
  const bool has_size = event.kind != Event::Kind::kPassed && event.kind != Event::Kind::kRefused;
  out.print_text(fmt::format("{:<7} {}  {}{}\n", action, printable(event.path), has_size ? size_text(event) + ", " : "",
                             printable(event.reason)));
}

Status run_transfer(const std::string& verb, const TransferArgs& args, const RunTransfer& run, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, verb);
  sync::SyncOptions options = args.options;
  options.on_event = [&](const Event& event) { print_event(event, args, context.out); };
  ASSIGN_OR_RETURN(const sync::SyncReport report, run(options, context.stop, &progress));
  view.reset();
  print_report(args, report, context.out);
  return report.status();
}

}  // namespace millrace::cli
