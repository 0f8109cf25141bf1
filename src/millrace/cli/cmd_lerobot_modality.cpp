// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/cli/command.h"
#include "millrace/lerobot/modality_file.h"

namespace millrace::cli {

namespace {

struct ModalityArgs {
  std::string url, spec_file;
  bool write = false, force = false;
};

std::string_view modality_origin(const lerobot::ModalityPlan& plan) {
  switch (plan.origin) {
    case lerobot::ModalityPlan::Origin::kFile:
      return "file";
    case lerobot::ModalityPlan::Origin::kSpec:
      return "spec";
    case lerobot::ModalityPlan::Origin::kProposed:
      return "proposed";
  }
  return "";
}

// A spec that can be edited and given back: '#' begins a comment.
std::string modality_text(const std::string& url, const lerobot::ModalityPlan& plan) {
  std::string text;
  if (plan.origin == lerobot::ModalityPlan::Origin::kFile) {
    text = fmt::format("# meta/modality.json of {}\n", printable(url));
  }
  const size_t given = plan.entries.size() - plan.proposed;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    if (i == given) text += "# proposed from the names in info.json\n";
    text += printable(lerobot::spec_line(plan.entries[i])) + "\n";
  }
  return text;
}

Status run_lerobot_modality(const ModalityArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.url));
  std::optional<std::string> spec;
  if (!args.spec_file.empty()) {
    ASSIGN_OR_RETURN(const Location file, open_url(args.spec_file));
    ASSIGN_OR_RETURN(spec, with_context(read_object(*file.storage, file.key), args.spec_file));
  }
  ASSIGN_OR_RETURN(const lerobot::ModalityPlan plan, lerobot::plan_modality(root, spec));
  if (args.write) RETURN_IF_ERROR(lerobot::write_modality(root, plan, args.force));
  Json object{{"type", "lerobot_modality"},    {"url", root.url},
              {"from", modality_origin(plan)}, {"proposed", plan.proposed},
              {"entries", Json::array()},      {"modality", lerobot::modality_json(plan.entries)},
              {"written", args.write}};
  for (const auto& entry : plan.entries) object["entries"].push_back(lerobot::spec_line(entry));
  context.out.print(object, modality_text(root.url, plan));
  if (args.write) {
    context.out.note(
        fmt::format("{}/meta/modality.json is written; `millrace lerobot stats {} --write` updates meta/stats.json, "
                    "and `millrace lerobot validate {} --groot` checks both",
                    root.url, root.url, root.url));
  }
  return {};
}

}  // namespace

void add_lerobot_modality(Verbs& verbs, CLI::App& lerobot) {
  auto args = std::make_shared<ModalityArgs>();
  CLI::App& app = verbs.add(
      lerobot, "modality", "Show, propose or write GR00T's meta/modality.json of a dataset",
      {"millrace lerobot modality so101 > so101.txt", "millrace lerobot modality so101 --spec so101.txt --write",
       "millrace lerobot modality s3://bucket/datasets/so101 --json"},
      [args](Context& context) { return run_lerobot_modality(*args, context); },
      [args] {
        if (args->force && !args->write) throw CLI::ValidationError("--force", "it is for --write");
        if (args->force && args->spec_file.empty()) throw CLI::ValidationError("--force", "it needs --spec");
      });
  app.add_option("URL", args->url, "The dataset's folder: a path or s3://bucket/prefix")->required()->option_text(" ");
  app.add_option("--spec", args->spec_file,
                 "File of lines such as state.arm = observation.state[0:5] (default: the existing modality.json, else "
                 "a proposal)")
      ->option_text("FILE");
  app.add_flag("--write", args->write, "Write meta/modality.json");
  app.add_flag("--force", args->force, "Replace an existing meta/modality.json");
}

}  // namespace millrace::cli
