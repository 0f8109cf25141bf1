// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/convert.h"

#include <nlohmann/json.hpp>

#include "millrace/lerobot/assemble.h"
#include "millrace/lerobot/modality.h"
#include "millrace/lerobot/source.h"

namespace millrace::lerobot {
namespace {

Status check_version(const Source& source, const ConvertTarget& to) {
  if (to.version == Version::kUnknown) {
    return fail(ErrorCode::kInvalidArgument, "datasets are converted to 2.0, 2.1, 3.0 or groot");
  }
  if (source.dataset.info.version != to.version || to.groot) return {};
  return fail(ErrorCode::kInvalidArgument, "the source has that version already ({})",
              source.dataset.info.version_text);
}

// Adds modality.json. Returns the entries that were proposed.
Result<std::vector<ModalityEntry>> add_modality(const Source& source, const std::string& spec, Assembly& assembly) {
  assembly.groot = true;
  if (spec.empty() && !source.modality.is_null()) return std::vector<ModalityEntry>();
  ASSIGN_OR_RETURN(std::vector<ModalityEntry> entries, parse_modality_spec(spec, source.dataset.info));
  std::vector<ModalityEntry> proposed = proposed_modality(source.dataset.info, entries);
  entries.insert(entries.end(), proposed.begin(), proposed.end());
  assembly.modality = modality_json(entries);
  return proposed;
}

}  // namespace

Result<MadeDataset> convert_dataset(const Location& source, const std::string& target, const ConvertTarget& to,
                                    const MakeOptions& options) {
  ASSIGN_OR_RETURN(const auto from, Source::open(source));
  RETURN_IF_ERROR(check_version(*from, to));
  Assembly assembly{
      .to = to.version, .renumber = false, .tasks = from->tasks, .info = from->info, .modality = from->modality};
  std::vector<ModalityEntry> proposed;
  if (to.groot) {
    ASSIGN_OR_RETURN(proposed, add_modality(*from, to.modality_spec, assembly));
  }
  for (size_t i = 0; i < from->dataset.episodes.size(); ++i) assembly.picks.push_back({from.get(), i});
  ASSIGN_OR_RETURN(std::vector<MadeDataset> made, assemble({assembly}, target, options));
  for (const ModalityEntry& entry : proposed) made.front().proposed.push_back(spec_line(entry));
  return std::move(made.front());
}

}  // namespace millrace::lerobot
