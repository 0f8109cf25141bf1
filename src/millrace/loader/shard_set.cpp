// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/shard_set.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/storage/glob.h"

namespace millrace::loader {

namespace {

constexpr std::string_view kTarSuffix = ".tar";
constexpr std::string_view kIdsSuffix = ".bin";
// Archives that are packed: a shard is read at any place, and packed data only from its front.
constexpr std::array<std::string_view, 6> kPackedEndings = {".tar.gz",  ".tgz",    ".tar.zst",
                                                            ".tar.bz2", ".tar.xz", ".tar.lz4"};
constexpr int64_t kIndexLimitBytes = int64_t{16} << 30;  // an index is read whole

bool is_shard(std::string_view name) {
  return name.ends_with(kTarSuffix) || name.ends_with(kIdsSuffix);
}

bool is_packed(std::string_view name) {
  return std::ranges::any_of(kPackedEndings, [name](std::string_view ending) { return name.ends_with(ending); });
}

tl::unexpected<Error> packed(std::string_view url) {
  return fail(ErrorCode::kUnsupported,
              "{}: it is packed, and a shard is read at any place; unpack it (gzip -d, zstd -d) and give the .tar",
              url);
}

void add_entries(const Location& folder, const formats::Manifest& manifest, std::vector<Shard>& shards) {
  for (const auto& entry : manifest.shards) {
    shards.push_back({folder.child(entry.name), entry, manifest.config.tokenizer_hash, manifest.config.id_limit,
                      manifest.config.ids_field});
  }
}

struct FolderContent {
  std::vector<formats::PartRecord> parts;
  std::vector<std::string> tars, packed;
};

Result<FolderContent> read_folder(const Location& folder) {
  FolderContent content;
  const std::string prefix = folder.key.empty() ? std::string() : folder.key + "/";
  const auto visit = [&](const ObjectInfo& object) -> Status {
    const std::string name = object.key.substr(prefix.size());
    if (name.ends_with(kTarSuffix)) content.tars.push_back(name);
    if (is_packed(name)) content.packed.push_back(name);
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
  // Beside shards that can be read, too: what is left out would not be missed.
  if (!content.packed.empty()) return packed(folder.child(content.packed.front()).url);
  if (content.tars.empty()) {
    if (!folder.key.empty() && folder.storage->stat(folder.key)) {
      return fail(
          ErrorCode::kInvalidArgument,
          "{}: it is a file, and no shard by its name: *.tar and *.bin are, and folders of them; millrace prepare "
          "makes them of text",
          folder.url);
    }
    return fail(ErrorCode::kNotFound, "{}: no shards there (looked for {}, part-*.json and *.tar)", folder.url,
                formats::kManifestName);
  }
  for (const std::string& name : content.tars) shards.push_back({.location = folder.child(name)});
  return {};
}

Result<Location> open_through(const std::string& url, const ReadThrough& read_through) {
  ASSIGN_OR_RETURN(Location location, open_url(url));
  if (!read_through) return location;
  return read_through(std::move(location));
}

// What a glob matches and is no shard, such as the index beside one, is passed over, but for packed archives.
Status add_pattern(const std::string& pattern, const ReadThrough& read_through, std::vector<Shard>& shards) {
  ASSIGN_OR_RETURN(const std::vector<Match> matches, find_matches(pattern));
  const size_t before = shards.size();
  for (const Match& match : matches) {
    if (is_packed(match.url)) return packed(match.url);
    if (!match.folder && !is_shard(match.url)) continue;
    ASSIGN_OR_RETURN(Location location, open_through(match.url, read_through));
    if (match.folder) {
      RETURN_IF_ERROR(add_folder(location, shards));
    } else {
      shards.push_back({.location = std::move(location)});
    }
  }
  if (shards.size() > before) return {};
  if (matches.empty()) return fail(ErrorCode::kNotFound, "{}: no file matches", pattern);
  return fail(ErrorCode::kNotFound, "{}: no shard matches (*.tar, *.bin), though {} does", pattern,
              matches.front().url);
}

Status add_url(const std::string& url, const ReadThrough& read_through, std::vector<Shard>& shards) {
  ASSIGN_OR_RETURN(Location location, open_through(url, read_through));
  // A URL's '?' begins its query.
  const bool wildcard = has_wildcards(url) && !url.starts_with("http:") && !url.starts_with("https:");
  // A file is taken by its name first, so "a[1].tar" needs no escape.
  if (wildcard && !location.storage->stat(location.key)) return add_pattern(url, read_through, shards);
  if (is_packed(url)) return packed(url);
  if (!is_shard(url)) return add_folder(location, shards);
  shards.push_back({.location = std::move(location)});
  return {};
}

}  // namespace

Result<std::vector<Shard>> find_shards(const std::vector<std::string>& urls, const ReadThrough& read_through) {
  std::vector<Shard> shards;
  for (const std::string& pattern : urls) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_names(pattern));
    for (const std::string& name : names) RETURN_IF_ERROR(add_url(name, read_through, shards));
  }
  return shards;
}

Result<std::vector<Shard>> find_shards_in(const Location& folder) {
  std::vector<Shard> shards;
  RETURN_IF_ERROR(add_folder(folder, shards));
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
