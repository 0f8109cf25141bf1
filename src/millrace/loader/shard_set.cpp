// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/shard_set.h"

#include <algorithm>
#include <utility>

namespace millrace::loader {

namespace {

constexpr std::string_view kTarSuffix = ".tar";
constexpr std::string_view kIdsSuffix = ".bin";
constexpr int64_t kIndexLimitBytes = int64_t{16} << 30;  // an index is read whole

void add_entries(const Location& folder, const formats::Manifest& manifest, std::vector<Shard>& shards) {
  for (const auto& entry : manifest.shards) {
    shards.push_back({folder.child(entry.name), entry, manifest.config.tokenizer_hash, manifest.config.id_limit});
  }
}

struct FolderContent {
  std::vector<formats::PartRecord> parts;
  std::vector<std::string> tars;
};

Result<FolderContent> read_folder(const Location& folder) {
  FolderContent content;
  const std::string prefix = folder.key.empty() ? std::string() : folder.key + "/";
  const auto visit = [&](const ObjectInfo& object) -> Status {
    const std::string name = object.key.substr(prefix.size());
    if (name.ends_with(kTarSuffix)) content.tars.push_back(name);
    if (name.starts_with("part-") && name.ends_with(".json")) {
      ASSIGN_OR_RETURN(const std::string json, read_object(*folder.storage, object.key));
      ASSIGN_OR_RETURN(formats::PartRecord part, formats::parse_part(json, folder.child(name).url));
      content.parts.push_back(std::move(part));
    }
    return {};
  };
  RETURN_IF_ERROR(for_each_object(*folder.storage, prefix, visit, /*recursive=*/false));
  return content;
}

Status add_folder(const Location& folder, std::vector<Shard>& shards) {
  const Location manifest_at = folder.child(formats::kManifestName);
  const auto json = read_object(*folder.storage, manifest_at.key);
  if (json) {
    ASSIGN_OR_RETURN(const formats::Manifest manifest, formats::parse_manifest(*json, manifest_at.url));
    add_entries(folder, manifest, shards);
    return {};
  }
  if (json.error().code() != ErrorCode::kNotFound) return tl::unexpected(json.error());
  ASSIGN_OR_RETURN(const FolderContent content, read_folder(folder));
  if (!content.parts.empty()) {
    ASSIGN_OR_RETURN(const formats::Manifest manifest, with_context(formats::join_parts(content.parts), folder.url));
    add_entries(folder, manifest, shards);
    return {};
  }
  if (content.tars.empty()) {
    return fail(ErrorCode::kNotFound, "{}: no shards there (looked for {}, part-*.json and *.tar)", folder.url,
                formats::kManifestName);
  }
  for (const std::string& name : content.tars) shards.push_back({.location = folder.child(name)});
  return {};
}

}  // namespace

Result<std::vector<Shard>> find_shards(const std::vector<std::string>& urls) {
  std::vector<Shard> shards;
  for (const std::string& pattern : urls) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_braces(pattern));
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(Location location, open_url(name));
      if (name.ends_with(kTarSuffix) || name.ends_with(kIdsSuffix)) {
        shards.push_back({.location = std::move(location)});
      } else {
        RETURN_IF_ERROR(add_folder(location, shards));
      }
    }
  }
  return shards;
}

Location index_location(const Shard& shard) {
  return {shard.location.storage, shard.location.key + ".index", shard.location.url + ".index"};
}

Result<std::optional<StoredIndex>> read_index(const Shard& shard) {
  const Location at = index_location(shard);
  const auto file = read_object(*at.storage, at.key, kIndexLimitBytes);
  if (!file && file.error().code() == ErrorCode::kNotFound) return std::nullopt;
  if (!file) return tl::unexpected(file.error());
  ASSIGN_OR_RETURN(formats::ShardIndex index, formats::parse_shard_index(as_bytes(*file), at.url));
  return StoredIndex{std::move(index), xxh3_128(*file), static_cast<int64_t>(file->size())};
}

}  // namespace millrace::loader
