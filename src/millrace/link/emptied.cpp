// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/emptied.h"

#include <nlohmann/json.hpp>

#include "millrace/storage/url.h"
#include "millrace/sync/entries.h"
#include "millrace/sync/share.h"

namespace millrace::link {

namespace {

using EmptiedJson = nlohmann::json;

constexpr const char* kEmptiedFormat = "millrace-link-emptied";
constexpr int kEmptiedVersion = 1;

Result<Location> emptied_place(const LinkConfig& config) {
  return open_url(fmt::format("{}/{}/link-emptied.json", config.directory, sync::kHiddenFolder));
}

EmptiedJson json_of_missing(const MissingFiles& files) {
  EmptiedJson object = EmptiedJson::object();
  for (const auto& [path, version] : files) object[sync::text_of_path(path)] = version;
  return object;
}

MissingFiles missing_of(const EmptiedJson& object) {
  MissingFiles files;
  for (const auto& [path, version] : object.items()) {
    if (version.is_string()) files.emplace(sync::path_of_text(path), version.get<std::string>());
  }
  return files;
}

}  // namespace

std::string row_version(const LinkFile& file) {
  const std::string text = fmt::format("{} {} {}", file.here.version, file.here.changed_ns, file.there);
  return to_hex(xxh3_128(text));
}

Result<EmptiedSides> read_emptied(const LinkConfig& config) {
  ASSIGN_OR_RETURN(const Location at, emptied_place(config));
  const auto text = read_object(*at.storage, at.key);
  if (!text && text.error().code() == ErrorCode::kNotFound) return EmptiedSides();
  if (!text) return tl::unexpected<Error>(text.error());
  const EmptiedJson object = EmptiedJson::parse(*text, nullptr, false);
  const auto format = object.find("format");
  if (format == object.end() || *format != kEmptiedFormat) return EmptiedSides{MissingFiles(), MissingFiles()};
  // One that another link of this directory left means nothing.
  const auto id = object.find("id");
  if (id == object.end() || *id != config.id) return EmptiedSides();
  EmptiedSides sides;
  if (const auto found = object.find("directory"); found != object.end()) sides.directory = missing_of(*found);
  if (const auto found = object.find("bucket"); found != object.end()) sides.bucket = missing_of(*found);
  return sides;
}

Status write_emptied(const LinkConfig& config, const EmptiedSides& sides) {
  ASSIGN_OR_RETURN(const Location at, emptied_place(config));
  if (!sides.directory && !sides.bucket) return at.storage->remove({&at.key, 1});
  EmptiedJson object = {{"format", kEmptiedFormat}, {"version", kEmptiedVersion}, {"id", config.id}};
  if (sides.directory) object["directory"] = json_of_missing(*sides.directory);
  if (sides.bucket) object["bucket"] = json_of_missing(*sides.bucket);
  return write_object(*at.storage, at.key, object.dump() + "\n").map([](const auto&) {});
}

}  // namespace millrace::link
