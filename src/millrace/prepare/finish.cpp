// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "millrace/prepare/detail/folder.h"
#include "millrace/prepare/detail/shard.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

namespace {

bool is_part_name(std::string_view name) {
  return name.starts_with("part-") && name.find("-of-") != std::string_view::npos && name.ends_with(".json");
}

}  // namespace

Result<formats::Manifest> finish(const std::string& output) {
  ASSIGN_OR_RETURN(const Location folder, open_url(output));
  ASSIGN_OR_RETURN(const auto files, folder_files(folder));
  std::vector<formats::PartRecord> parts;
  for (const auto& [name, size] : files) {
    if (!is_part_name(name)) continue;
    const Location at = folder.child(name);
    ASSIGN_OR_RETURN(const std::string json, read_object(*at.storage, at.key));
    ASSIGN_OR_RETURN(formats::PartRecord part, formats::parse_part(json, at.url));
    if (name != formats::part_name(part.task, part.config.tasks)) {
      return fail(ErrorCode::kCorruption, "{}: it is the record of task {} of {}", at.url, part.task,
                  part.config.tasks);
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) {
    return fail(ErrorCode::kNotFound, "{}: no part record (part-I-of-N.json) in it; no task has finished here", output);
  }
  ASSIGN_OR_RETURN(formats::Manifest manifest, with_context(formats::join_parts(parts), output));
  if (manifest.documents == 0) {
    return fail(
        ErrorCode::kInvalidArgument,
        "{}: no task wrote a document ({} rejected, {} duplicates, {} of another length in {} bytes of input), so "
        "there is nothing to train on; look at the inputs and the filters",
        output, manifest.counts.rejected, manifest.counts.duplicates, manifest.counts.filtered, manifest.input_bytes);
  }
  for (const formats::ShardEntry& shard : manifest.shards) {
    std::vector<std::string> names = {shard.name, shard.name + std::string(kIndexSuffix)};
    if (manifest.config.options.format == OutputFormat::kMegatron) {
      names.push_back(side_file_name(shard.name));
    }
    for (const std::string& name : names) {
      if (files.contains(name)) continue;
      return fail(ErrorCode::kNotFound,
                  "{}: it belongs to what a part record names, and is missing; run its task again",
                  folder.child(name).url);
    }
    if (const int64_t size = files.at(shard.name); size != shard.size) {
      return fail(ErrorCode::kCorruption, "{}: it has {} bytes instead of {}; run its task again",
                  folder.child(shard.name).url, size, shard.size);
    }
  }
  RETURN_IF_ERROR(write_if_different(folder, formats::kManifestName, formats::serialize_manifest(manifest)));
  return manifest;
}

}  // namespace millrace::prepare
