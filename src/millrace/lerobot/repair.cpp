// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/repair.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millrace/lerobot/info.h"
#include "millrace/lerobot/repair_parts.h"
#include "millrace/lerobot/validate.h"
#include "millrace/lerobot/write_stats.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kMostInfoText = 64 << 20;

// Errors: corruption, where a list could not be read whole.
Status check_lists(const Location& root, const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    const auto is = [&](int rule) { return finding.rule == &dataset_rules()[static_cast<size_t>(rule) - 1]; };
    if (!is(7) && !is(19) && !is(36)) continue;
    return fail(ErrorCode::kCorruption, "{}: {}: {}; while its lists cannot be read whole, totals are not known",
                root.url, finding.file, finding.message);
  }
  return {};
}

Result<Json> read_info_json(const Dataset& dataset, std::string& version) {
  ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(kInfoFile));
  ASSIGN_OR_RETURN(const std::string text, read_all(*reader, kMostInfoText));
  version = reader->version();
  auto json = with_context(parse_python_json(text), kInfoFile);
  if (!json) return json;
  if (!Json::accept(text)) return fail(ErrorCode::kUnsupported, "{}: it holds NaN, which would be lost", kInfoFile);
  if (!json->is_object()) return fail(ErrorCode::kCorruption, "{}: it is no object", kInfoFile);
  return json;
}

}  // namespace

Result<Repair> plan_repair(const Location& root, const RepairOptions& options) {
  Report report(0);
  Repair repair;
  ASSIGN_OR_RETURN(repair.dataset, read_dataset(root, report));
  const Dataset& dataset = repair.dataset;
  if (dataset.tree.find(kInfoFile) == nullptr) {
    return fail(ErrorCode::kCorruption, "{}: {} is missing", root.url, kInfoFile);
  }
  RETURN_IF_ERROR(check_lists(root, report.take()));
  ASSIGN_OR_RETURN(Json info, read_info_json(dataset, repair.info_version));
  if (dataset.episodes.empty()) {
    return fail(ErrorCode::kCorruption, "{}: it lists no episodes, so totals are not known", root.url);
  }
  plan_info(info, repair);
  if (!repair.fixes.empty()) {
    repair.info = info.dump(4) + "\n";
    Report known(0);
    repair.dataset.info = parse_info(repair.info, known);  // where files are may be known only now
  }
  if (options.rows) {
    RETURN_IF_ERROR(plan_clocks(options, repair));
    RETURN_IF_ERROR(plan_stats(options, repair));
  }
  return repair;
}

Status write_repair(const Location& root, const Repair& repair) {
  for (const std::string& path : repair.clocks) {
    ASSIGN_OR_RETURN(NewFile file, mended_clock(repair.dataset, path));
    RETURN_IF_ERROR(write_files(root, {std::move(file)}));
  }
  ASSIGN_OR_RETURN(const std::vector<NewFile> files, stats_files(repair.dataset, repair.stats, repair.episode_stats));
  RETURN_IF_ERROR(write_files(root, files));
  if (repair.info.empty()) return {};
  return write_files(root, {{std::string(kInfoFile), repair.info, repair.info_version}});
}

}  // namespace millrace::lerobot
