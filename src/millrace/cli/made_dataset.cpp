// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/made_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace millrace::cli {

namespace {

// After an error of the source the folder is of no use, since the mended source is another one.
void note_what_is_kept(std::string target, const Error& error, Output& out) {
  if (error.code() != ErrorCode::kCancelled) return;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  const std::string partial = target + ".partial";
  std::error_code unknown;
  if (!std::filesystem::exists(partial, unknown)) return;
  out.note(fmt::format("{} keeps the finished files; run the same command again to continue", partial));
}

std::string folder_of(const std::string& target, const lerobot::MadeDataset& made) {
  if (made.name.empty()) return target;
  return target + (target.ends_with('/') ? "" : "/") + made.name;
}

std::string text_of(const std::string& target, const lerobot::MadeDataset& made, bool dry_run) {
  std::string text =
      fmt::format("{}: {}, {}, {}, {}{}", folder_of(target, made), made.version, counted(made.episodes, "episode"),
                  counted(made.frames, "frame"), dry_run ? "at least " : "", counted(made.files, "file"));
  if (made.reused > 0) text += fmt::format(" ({} kept from an earlier run)", made.reused);
  if (dry_run && made.cut_episodes > 0) {
    text += fmt::format("; {} would be cut out of a video, and encoded where copied packets would not be exact",
                        counted(made.cut_episodes, "episode"));
  }
  if (made.encoded_videos > 0) {
    text += fmt::format("; {} with encoded frames, PSNR at least {:.1f} dB", counted(made.encoded_videos, "video"),
                        made.min_psnr_db);
  }
  return text + "\n";
}

void print_one(const std::string& verb, Json object, const std::string& target, const lerobot::MadeDataset& made,
               bool dry_run, Context& context) {
  if (!made.inherited.empty()) {
    context.out.note(fmt::format("{}: as the source, {} breaks {}; `lerobot validate` says where", verb,
                                 folder_of(target, made), fmt::join(made.inherited, ", ")));
  }
  if (!made.proposed.empty()) {
    context.out.note(
        fmt::format("{}: meta/modality.json was proposed from names; to change it, give these lines to "
                    "--modality:\n  {}",
                    verb, fmt::join(made.proposed, "\n  ")));
  }
  object["output"] = folder_of(target, made);
  object["dry_run"] = dry_run;
  object["version"] = made.version;
  object["episodes"] = made.episodes;
  object["frames"] = made.frames;
  object["files"] = made.files;
  object["reused"] = made.reused;
  object["cut_episodes"] = made.cut_episodes;
  object["copied_videos"] = made.copied_videos;
  object["encoded_videos"] = made.encoded_videos;
  object["min_psnr_db"] = made.min_psnr_db;
  object["inherited"] = made.inherited;
  if (verb == "lerobot convert") object["proposed"] = made.proposed;
  context.out.print_done(object, text_of(target, made, dry_run), dry_run);
}

}  // namespace

Status print_made(const std::string& verb, const Json& head, const std::string& target, bool dry_run,
                  const MakeDatasets& make, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, verb);
  const auto made = make({.dry_run = dry_run, .progress = &progress, .stop = context.stop});
  view.reset();
  if (!made) {
    note_what_is_kept(target, made.error(), context.out);
    return tl::unexpected(made.error());
  }
  for (const lerobot::MadeDataset& each : *made) print_one(verb, head, target, each, dry_run, context);
  return {};
}

void add_dry_run_flag(CLI::App& app, bool& dry_run) {
  app.add_flag("--dry-run", dry_run, "Say what would be made, and write nothing");
}

}  // namespace millrace::cli
