// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/checkpoint/foreign/follow.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

using Followed = checkpoint::FollowEvent::Kind;

struct FollowArgs {
  std::string source, target;
  int64_t keep_last = 0;
  double every_s = 10, settle_s = 10;
  bool once = false, restore = false;
};

struct FollowCounts {
  int64_t copied = 0, removed = 0, bytes = 0;
};

std::string_view action_of(Followed kind) {
  switch (kind) {
    case Followed::kCopied:
      return "copy";
    case Followed::kRemoved:
      return "remove";
    case Followed::kRestored:
      return "restore";
    case Followed::kGone:
      return "gone";
  }
  return "";
}

checkpoint::FollowOptions options_of(const FollowArgs& args, Context& context, FollowCounts& counts) {
  const auto milliseconds = [](double seconds) { return std::chrono::milliseconds(std::llround(seconds * 1000)); };
  checkpoint::FollowOptions options{.keep_last = args.keep_last,
                                    .every = milliseconds(args.every_s),
                                    .settle = milliseconds(args.settle_s),
                                    .once = args.once};
  options.on_event = [&context, &counts](const checkpoint::FollowEvent& event) {
    const bool is_copy = event.kind == Followed::kCopied || event.kind == Followed::kRestored;
    counts.copied += is_copy ? 1 : 0;
    counts.bytes += is_copy ? event.step.bytes : 0;
    counts.removed += event.kind == Followed::kRemoved ? 1 : 0;
    context.out.print({{"type", "followed"},
                       {"action", action_of(event.kind)},
                       {"step", event.step.step},
                       {"files", event.step.files},
                       {"bytes", event.step.bytes},
                       {"seconds", event.seconds}},
                      fmt::format("{} checkpoint-{}: {}, {}\n", action_of(event.kind), event.step.step,
                                  counted(event.step.files, "file"), format_bytes(event.step.bytes)));
  };
  return options;
}

Status run_ckpt_follow(const FollowArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location source, open_url(args.source));
  ASSIGN_OR_RETURN(const Location target, open_url(args.target));
  FollowCounts counts;
  const auto options = options_of(args, context, counts);
  Json end{{"type", "ckpt_follow"}};
  std::string found;
  if (args.restore) {
    ASSIGN_OR_RETURN(const auto step, checkpoint::restore_checkpoint(source, target, options, context.stop));
    end["found"] = step ? Json(*step) : Json(nullptr);
    found = step ? fmt::format("; training goes on from checkpoint-{}", *step) : "; training begins at its start";
  } else {
    RETURN_IF_ERROR(checkpoint::follow_checkpoints(source, target, options, context.stop));
  }
  end["copied"] = counts.copied;
  end["removed"] = counts.removed;
  end["bytes"] = counts.bytes;
  context.out.print(end, fmt::format("copied {}, {}; removed {}{}\n", counted(counts.copied, "checkpoint"),
                                     format_bytes(counts.bytes), counts.removed, found));
  return {};
}

}  // namespace

void add_ckpt_follow(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<FollowArgs>();
  CLI::App& app = verbs.add(ckpt, "follow", "Copy the checkpoints that another program writes, while it trains",
                            {"millrace ckpt follow /scratch/out s3://b/run1 --keep-last 3 --once",
                             "millrace ckpt follow /scratch/out s3://b/run1 --restore",
                             "millrace ckpt follow /scratch/out /home/me/run1 --keep-last 2 --every 30 --once"},
                            [args](Context& context) { return run_ckpt_follow(*args, context); });
  app.add_option("SOURCE", args->source, "Folder in which the program writes checkpoint-N")
      ->required()
      ->option_text(" ");
  app.add_option("TARGET", args->target, "Folder or URL that receives the copies")->required()->option_text(" ");
  app.add_option("--keep-last", args->keep_last, "Keep this many complete checkpoints at TARGET (default: all)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("K");
  app.add_option("--every", args->every_s, "Seconds between two checks (default: 10)")
      ->check(CLI::Range(0.01, 86400.0))
      ->option_text("SECONDS");
  app.add_option("--settle", args->settle_s, "Seconds without a change before a checkpoint is copied (default: 10)")
      ->check(CLI::Range(0.0, 86400.0))
      ->option_text("SECONDS");
  auto* const once = app.add_flag("--once", args->once,
                                  "Exit after copying all complete checkpoints, instead of running until SIGTERM");
  app.add_flag("--restore", args->restore,
               "Before training: remove incomplete checkpoints from SOURCE and copy the newest one of TARGET back")
      ->excludes(once);
}

}  // namespace millrace::cli
