// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/checkpoint/foreign/last_good.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

Json found_json(const Location& root, const checkpoint::FoundCheckpoint& found) {
  Json object{{"path", root.child(found.name).url}, {"kind", checkpoint::kind_name(found.kind)}};
  if (found.step) object["step"] = *found.step;
  if (!found.reason.empty()) object["reason"] = found.reason;
  return object;
}

Status run_ckpt_last_good(const std::string& url, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(url));
  ASSIGN_OR_RETURN(const auto last, checkpoint::find_last_good(root));
  for (const checkpoint::FoundCheckpoint& each : last.passed_over)
    context.out.note(printable(fmt::format("{}: {}", root.child(each.name).url, each.reason)));
  if (!last.good && last.passed_over.empty())
    return fail(
        ErrorCode::kNotFound,
        "{}: no checkpoint there: no checkpoint-N, *.ckpt, iter_N, global_stepN, step-N or folder with .metadata; "
        "name the folder that holds them",
        url);
  if (!last.good)
    return fail(ErrorCode::kNotFound, "{}: no usable checkpoint among {}; the newest, {}: {}", url,
                last.passed_over.size(), last.passed_over.front().name, last.passed_over.front().reason);
  Json object{{"type", "ckpt_last_good"}};
  object.update(found_json(root, *last.good));
  object["passed_over"] = Json::array();
  for (const auto& each : last.passed_over) object["passed_over"].push_back(found_json(root, each));
  context.out.print(object, root.child(last.good->name).url + "\n");
  return {};
}

}  // namespace

void add_ckpt_last_good(Verbs& verbs, CLI::App& ckpt) {
  auto url = std::make_shared<std::string>();
  CLI::App& app = verbs.add(ckpt, "last-good", "Print the newest checkpoint of any program that is complete",
                            {"millrace ckpt last-good out", "millrace ckpt last-good s3://b/run1 --json",
                             "millrace ckpt last-good out --quiet"},
                            [url](Context& context) { return run_ckpt_last_good(*url, context); });
  app.add_option("DIR", *url, "Folder or URL that holds the checkpoints")->required()->option_text(" ");
}

}  // namespace millrace::cli
