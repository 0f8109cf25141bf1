// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/command.h"
#include "millrace/lerobot/repair.h"

namespace millrace::cli {

namespace {

struct RepairArgs {
  std::string url;
  bool dry_run = false, metadata_only = false;
};

std::string line_of(const lerobot::Fix& fix) {
  return fmt::format("{}: {}: {} -> {} [LR{:03}]\n", printable(fix.file), printable(fix.key),
                     fix.before.empty() ? "missing" : printable(fix.before, 200), printable(fix.after, 200), fix.rule);
}

Status run_repair(const RepairArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.url));
  Progress progress;
  auto view = context.out.watch(progress, "repair");
  const auto repair =
      lerobot::plan_repair(root, {.rows = !args.metadata_only, .progress = &progress, .stop = context.stop});
  view.reset();
  if (!repair) return tl::unexpected(repair.error());
  std::string text;
  Json fixes = Json::array();
  for (const lerobot::Fix& fix : repair->fixes) {
    fixes.push_back({{"rule", fmt::format("LR{:03}", fix.rule)},
                     {"file", fix.file},
                     {"key", fix.key},
                     {"before", fix.before},
                     {"after", fix.after}});
    text += line_of(fix);
  }
  for (const std::string& sentence : repair->left) text += fmt::format("not repaired: {}\n", printable(sentence, 400));
  if (!args.dry_run) RETURN_IF_ERROR(with_context(lerobot::write_repair(root, *repair), "repair"));
  const auto count = static_cast<int64_t>(repair->fixes.size());
  text += count == 0 ? "nothing to repair\n"
                     : fmt::format("{} {}\n", counted(count, "change"), args.dry_run ? "would be written" : "written");
  context.out.print_done({{"type", "lerobot_repair"},
                          {"url", root.url},
                          {"dry_run", args.dry_run},
                          {"fixes", std::move(fixes)},
                          {"left", repair->left}},
                         text, args.dry_run);
  return {};
}

}  // namespace

void add_lerobot_repair(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<RepairArgs>();
  CLI::App& app =
      verbs.add(lerobot, "repair", "Repair info.json, timestamps and statistics where the files leave no doubt",
                {"millrace lerobot repair so101 --dry-run", "millrace lerobot repair so101",
                 "millrace lerobot repair s3://bucket/datasets/so101 --metadata-only --json"},
                [args](Context& context) { return run_repair(*args, context); });
  app.add_option("URL", args->url, "The dataset's folder: a path or s3://bucket/prefix")->required()->option_text(" ");
  app.add_flag("--dry-run", args->dry_run, "List each fix, and write nothing");
  app.add_flag("--metadata-only", args->metadata_only, "Repair meta/info.json only; read no rows and decode no frames");
}

}  // namespace millrace::cli
