// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/modality_file.h"

#include <nlohmann/json.hpp>

#include "millrace/lerobot/source.h"
#include "millrace/lerobot/validate.h"
#include "millrace/lerobot/write_stats.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kMostModalityText = 16 << 20;

Result<Json> read_modality_file(const Tree& tree, std::string& version) {
  ASSIGN_OR_RETURN(const auto reader, tree.open(kModalityFile));
  ASSIGN_OR_RETURN(const std::string text, read_all(*reader, kMostModalityText));
  version = reader->version();
  return parse_python_json(text);
}

}  // namespace

Result<ModalityPlan> plan_modality(const Location& root, const std::optional<std::string>& spec) {
  Report report(0);
  ASSIGN_OR_RETURN(const Dataset dataset, read_dataset(root, report));
  if (dataset.info.features.empty()) {
    return fail(ErrorCode::kCorruption, "{}: meta/info.json names no features; `millrace lerobot validate` says more",
                root.url);
  }
  ModalityPlan plan{.version = dataset.info.version, .version_text = dataset.info.version_text};
  Json stored;
  if (dataset.tree.find(kModalityFile) != nullptr) {
    ASSIGN_OR_RETURN(stored, with_context(read_modality_file(dataset.tree, plan.stored_version), kModalityFile));
  }
  if (!spec && !plan.stored_version.empty()) {
    plan.origin = ModalityPlan::Origin::kFile;
    ASSIGN_OR_RETURN(plan.entries, with_context(modality_entries(stored), kModalityFile));
    return plan;
  }
  if (spec) {
    plan.origin = ModalityPlan::Origin::kSpec;
    ASSIGN_OR_RETURN(plan.entries, with_context(parse_modality_spec(*spec, dataset.info), "the spec"));
  }
  const auto proposed = proposed_modality(dataset.info, plan.entries);
  plan.proposed = proposed.size();
  plan.entries.insert(plan.entries.end(), proposed.begin(), proposed.end());
  return plan;
}

Status write_modality(const Location& root, const ModalityPlan& plan, bool replace) {
  if (!is_v2(plan.version)) {
    return fail(ErrorCode::kUnsupported,
                "{} is {}, and GR00T reads v2.x; `millrace lerobot convert {} DST --to groot` makes that", root.url,
                plan.version_text, root.url);
  }
  if (!plan.stored_version.empty() && !replace) {
    return fail(ErrorCode::kAlreadyExists, "{}/{} is there already; --spec FILE --force replaces it", root.url,
                kModalityFile);
  }
  return write_files(root, {{kModalityFile, modality_json(plan.entries).dump(4) + "\n", plan.stored_version}});
}

}  // namespace millrace::lerobot
