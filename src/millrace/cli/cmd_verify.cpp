// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/transfer_flags.h"
#include "millrace/sync/verify.h"

namespace millrace::cli {

namespace {

using sync::VerifyOptions;

struct VerifyArgs {
  std::string source, target;
  VerifyOptions options;
  bool all = false;
};

bool is_difference(VerifyOptions::Finding::Kind kind, bool extra_counts) {
  using Kind = VerifyOptions::Finding::Kind;
  return kind == Kind::kDifferent || kind == Kind::kMissing || kind == Kind::kUnreadable ||
         (kind == Kind::kExtra && extra_counts);
}

void print_compared(const VerifyOptions::Finding& finding, const VerifyArgs& args, Output& out) {
  const bool same = finding.kind == VerifyOptions::Finding::Kind::kSame;
  const std::string_view result = sync::finding_name(finding.kind);
  const std::string why = same ? std::string(sync::proof_name(finding.proof)) : finding.reason;
  Json object{{"type", "compared"}, {"path", finding.path}, {"result", result}, {"bytes", finding.size}};
  object["proof"] = same ? Json(sync::proof_name(finding.proof)) : Json(nullptr);
  object["reason"] = same ? Json(nullptr) : Json(finding.reason);
  out.print_json(object);
  const bool difference = is_difference(finding.kind, args.options.extra);
  if (difference) {
    out.finding(finding.path, Error(ErrorCode::kCorruption, fmt::format("{}: {}, {}", finding.path, result, why)));
  } else if (args.all || !same) {
    out.print_text(fmt::format("{:<10} {}  {}\n", result, printable(finding.path), printable(why)));
  }
}

std::string verify_text(const sync::VerifyReport& report) {
  std::string text =
      fmt::format("{} of {} the same, {} in {}\n", format_count(report.same), counted(report.files, "file"),
                  format_bytes(report.bytes), format_duration(report.seconds));
  text += fmt::format("proofs     {} read on both sides, {} by recorded hashes, {} by ETag, {} by size only\n",
                      format_count(report.by_content), format_count(report.by_record + report.by_sidecar),
                      format_count(report.by_etag), format_count(report.by_size));
  const int64_t bad = report.different + report.missing + report.unreadable;
  if (bad > 0) {
    text += fmt::format("not so     {} different, {} missing, {} unreadable\n", format_count(report.different),
                        format_count(report.missing), format_count(report.unreadable));
  }
  if (report.extra > 0) text += fmt::format("extra      {} only at DST\n", counted(report.extra, "file"));
  return text;
}

Status run_verify(const VerifyArgs& args, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, "verify");
  VerifyOptions options = args.options;
  options.on_file = [&](const VerifyOptions::Finding& finding) { print_compared(finding, args, context.out); };
  ASSIGN_OR_RETURN(const sync::VerifyReport report,
                   sync::verify(args.source, args.target, options, context.stop, &progress));
  view.reset();
  context.out.print({{"type", "verify_summary"},
                     {"source", url_to_show(args.source)},
                     {"target", url_to_show(args.target)},
                     {"ok", report.is_clean(options.extra)},
                     {"files", report.files},
                     {"bytes", report.bytes},
                     {"same", report.same},
                     {"by_content", report.by_content},
                     {"by_record", report.by_record},
                     {"by_sidecar", report.by_sidecar},
                     {"by_etag", report.by_etag},
                     {"by_size", report.by_size},
                     {"different", report.different},
                     {"missing", report.missing},
                     {"extra", report.extra},
                     {"unreadable", report.unreadable},
                     {"passed", report.passed},
                     {"seconds", report.seconds}},
                    verify_text(report));
  return {};
}

}  // namespace

void add_verify(Verbs& verbs) {
  auto args = std::make_shared<VerifyArgs>();
  CLI::App& app =
      verbs.add(verbs.root(), "verify", "Compare two trees, or two objects, by content",
                {"millrace verify shards s3://bucket/shards", "millrace verify raw /fsx/raw --recorded --all",
                 "millrace verify model.safetensors /nvme/model.safetensors"},
                [args](Context& context) { return run_verify(*args, context); });
  add_source_and_target(app, args->source, args->target);
  CLI::Option* const recorded = app.add_flag_callback(
      "--recorded", [&options = args->options] { options.effort = VerifyOptions::Effort::kRecorded; },
      "Believe hashes that Millrace recorded and S3's own MD5s; read only other files");
  app.add_flag_callback(
         "--size-only", [&options = args->options] { options.effort = VerifyOptions::Effort::kSize; },
         "Compare sizes only; read no content")
      ->excludes(recorded);
  app.add_flag("--extra", args->options.extra, "A file that only DST has is a difference too");
  app.add_flag("--all", args->all, "Print equal files too, with their proof");
  add_links_flag(app, args->options.follow_links);
  add_filter_flags(app, args->options.filter);
}

}  // namespace millrace::cli
