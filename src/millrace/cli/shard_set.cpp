// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/shard_set.h"

#include <algorithm>
#include <utility>

namespace millrace::cli {

namespace {

constexpr std::string_view kTarSuffix = ".tar";
constexpr int64_t kIndexLimitBytes = int64_t{16} << 30;  // an index is read whole

class WatchedReader final : public RandomReader {
 public:
  WatchedReader(std::unique_ptr<RandomReader> reader, std::stop_token stop, Progress& progress)
      : reader_(std::move(reader)), stop_(std::move(stop)), progress_(progress) {}

  std::string_view name() const override { return reader_->name(); }
  int64_t size() const override { return reader_->size(); }
  std::string_view version() const override { return reader_->version(); }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name());
    progress_.add(static_cast<int64_t>(out.size()), 0);
    return reader_->read_at(offset, out);
  }

 private:
  const std::unique_ptr<RandomReader> reader_;
  const std::stop_token stop_;
  Progress& progress_;
};

void add_entries(const Location& folder, const std::vector<formats::ShardEntry>& entries, std::vector<Shard>& shards) {
  for (const auto& entry : entries) shards.push_back({folder.child(entry.name), entry});
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
    add_entries(folder, manifest.shards, shards);
    return {};
  }
  if (json.error().code() != ErrorCode::kNotFound) return tl::unexpected(json.error());
  ASSIGN_OR_RETURN(const FolderContent content, read_folder(folder));
  if (!content.parts.empty()) {
    ASSIGN_OR_RETURN(const formats::Manifest manifest, with_context(formats::join_parts(content.parts), folder.url));
    add_entries(folder, manifest.shards, shards);
    return {};
  }
  if (content.tars.empty()) {
    return fail(ErrorCode::kNotFound, "{}: no shards there (looked for {}, part-*.json and *.tar)", folder.url,
                formats::kManifestName);
  }
  for (const std::string& name : content.tars) shards.push_back({folder.child(name), std::nullopt});
  return {};
}

}  // namespace

Result<std::vector<Shard>> find_shards(const std::vector<std::string>& urls) {
  std::vector<Shard> shards;
  for (const std::string& pattern : urls) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_braces(pattern));
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(Location location, open_url(name));
      if (name.ends_with(kTarSuffix)) {
        shards.push_back({std::move(location), std::nullopt});
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
  return StoredIndex{std::move(index), xxh3_128(*file)};
}

Result<std::unique_ptr<RandomReader>> open_watched(const Shard& shard, std::stop_token stop, Progress& progress) {
  ASSIGN_OR_RETURN(auto reader, shard.location.storage->open_read(shard.location.key));
  return std::make_unique<WatchedReader>(std::move(reader), std::move(stop), progress);
}

}  // namespace millrace::cli
