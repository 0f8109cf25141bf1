// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/lerobot/demo.h"

namespace millrace::cli {

namespace {

Status run_lerobot_demo(const lerobot::DemoOptions& options, Context& context) {
  Progress progress;
  auto view = context.out.watch(progress, "lerobot demo");
  ASSIGN_OR_RETURN(const lerobot::DemoReport report, lerobot::write_demo(options, context.stop, &progress));
  view.reset();
  context.out.print_done({{"type", "lerobot_demo"},
                          {"output", options.url},
                          {"episodes", report.episodes},
                          {"frames", report.frames},
                          {"videos", report.videos},
                          {"bytes", report.bytes}},
                         fmt::format("{}, {} of each camera, {}, {} below {}\n", counted(report.episodes, "episode"),
                                     counted(report.frames, "frame"), counted(report.videos, "video"),
                                     format_bytes(report.bytes), options.url),
                         false);
  return {};
}

// "30" or "30000/1001".
video::Rational parse_fps(const std::string& text) {
  const size_t slash = text.find('/');
  const auto number = [&](const std::string& digits) {
    if (digits.empty() || digits.size() > 7 || digits.find_first_not_of("0123456789") != std::string::npos) {
      throw CLI::ValidationError("--fps", fmt::format("'{}' is neither a whole number nor a fraction of two", text));
    }
    return std::stoll(digits);
  };
  if (slash == std::string::npos) return {number(text), 1};
  return {number(text.substr(0, slash)), number(text.substr(slash + 1))};
}

}  // namespace

void add_lerobot_demo(Verbs& verbs, CLI::App& lerobot) {
  auto options = std::make_shared<lerobot::DemoOptions>();
  CLI::App& app = verbs.add(lerobot, "demo", "Make a small dataset of a drawn robot arm, to try things with",
                            {"millrace lerobot demo arm", "millrace lerobot demo arm-v2 --version 2.1 --episodes 10",
                             "millrace lerobot demo arm-groot --version groot --codec h264 --fps 20"},
                            [options](Context& context) { return run_lerobot_demo(*options, context); });
  app.add_option("DIR", options->url, "A new or empty folder")->required()->option_text(" ");
  using lerobot::DemoVersion;
  add_choice_flag(
      app, "--version", {"2.1", "3.0", "groot"},
      [options](const std::string& version) {
        options->version = version == "2.1"   ? DemoVersion::kV21
                           : version == "3.0" ? DemoVersion::kV30
                                              : DemoVersion::kGroot;
      },
      "Layout of the files; groot is 2.1 with modality.json and stats.json (default: 3.0)");
  app.add_option("--episodes", options->episodes, "Number of episodes, about two seconds each (default: 5)")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  app.add_option("--cameras", options->cameras, "Number of cameras, 128 x 96 pixels each (default: 2)")
      ->check(CLI::Range(1, 4))
      ->option_text("N");
  app.add_option_function<std::string>(
         "--fps", [options](const std::string& text) { options->fps = parse_fps(text); },
         "Frames a second: 30, or 30000/1001 (default: 30)")
      ->option_text("N");
  add_choice_flag(
      app, "--codec", {"h264", "hevc", "av1"}, [options](const std::string& codec) { options->codec = codec; },
      "Video codec (default: av1, as LeRobot)");
  app.add_option("--seed", options->seed, "Seed of the movements (default: 0)")->option_text("N");
}

}  // namespace millrace::cli
