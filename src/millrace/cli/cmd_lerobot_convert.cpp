// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/made_dataset.h"

namespace millrace::cli {

namespace {

struct ConvertArgs {
  std::string source, target, spec_file;
  lerobot::ConvertTarget to;
  bool dry_run = false;
};

Status run_lerobot_convert(const ConvertArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location source, open_url(args.source));
  lerobot::ConvertTarget to = args.to;
  if (!args.spec_file.empty()) {
    ASSIGN_OR_RETURN(const Location spec, open_url(args.spec_file));
    ASSIGN_OR_RETURN(to.modality_spec, read_object(*spec.storage, spec.key));
  }
  const auto convert = [&](const lerobot::MakeOptions& options) -> Result<std::vector<lerobot::MadeDataset>> {
    ASSIGN_OR_RETURN(lerobot::MadeDataset made, lerobot::convert_dataset(source, args.target, to, options));
    return std::vector{std::move(made)};
  };
  return print_made("lerobot convert", {{"type", "lerobot_convert"}, {"url", source.url}}, args.target, args.dry_run,
                    convert, context);
}

}  // namespace

void add_lerobot_convert(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<ConvertArgs>();
  CLI::App& app = verbs.add(
      lerobot, "convert", "Convert a dataset between LeRobot v2.0, v2.1, v3.0 and GR00T, frame by frame",
      {"millrace lerobot convert so101 so101-v3 --to 3.0",
       "millrace lerobot convert s3://bucket/so101-v3 so101-v2 --to 2.1",
       "millrace lerobot convert so101 so101-groot --to groot --modality so101.txt"},
      [args](Context& context) { return run_lerobot_convert(*args, context); },
      [args] {
        if (args->spec_file.empty() || args->to.groot) return;
        throw CLI::ValidationError("--modality", "it is for --to groot");
      });
  app.add_option("SRC", args->source, "The dataset's folder: a path or s3://bucket/prefix")
      ->required()
      ->option_text(" ");
  app.add_option("DST", args->target, "A new folder on this machine")->required()->option_text(" ");
  add_choice_flag(
      app, "--to", {"2.0", "2.1", "3.0", "groot"},
      [args](const std::string& version) {
        args->to.groot = version == "groot";
        args->to.version = args->to.groot ? lerobot::Version::kV21 : lerobot::parse_version(version);
      },
      "The version to write; groot is 2.1 with modality.json and GR00T's stats.json")
      ->required();
  app.add_option("--modality", args->spec_file,
                 "Lines such as state.arm = observation.state[0:5] for modality.json (default: proposed from names)")
      ->option_text("FILE");
  add_dry_run_flag(app, args->dry_run);
}

}  // namespace millrace::cli
