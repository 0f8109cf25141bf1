// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/object_metadata.h"

#include <algorithm>
#include <charconv>

#include "millrace/http/uri_encode.h"

namespace millrace::s3 {
namespace {

constexpr size_t kMostTags = 10;     // S3's limit
constexpr size_t kMostBytes = 2048;  // S3's limit, names and values together
constexpr std::string_view kMode = "file-permissions", kOwner = "file-owner", kGroup = "file-group",
                           kAccessed = "file-atime", kModified = "file-mtime";

bool is_visible_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  });
}

std::string time_text(const FileTime& time) {
  return time.ns_text() + "ns";
}

template <class Int>
Int number_of(std::string_view text, int base = 10) {
  Int value{};
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

FileTime time_of(std::string_view text) {
  constexpr std::string_view kUnit = "ns";
  if (text.ends_with(kUnit)) return FileTime::of_ns_text(text.substr(0, text.size() - kUnit.size()));
  return std::chrono::sys_time<std::chrono::milliseconds>(std::chrono::milliseconds(number_of<int64_t>(text)));
}

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> metadata_headers(const WriteOptions& options) {
  std::vector<std::pair<std::string, std::string>> headers;
  size_t bytes = 0;
  const auto add = [&](std::string_view name, std::string value) {
    bytes += name.size() + value.size();
    headers.emplace_back(std::string(kMetadataPrefix).append(name), std::move(value));
  };
  for (const auto& [name, value] : options.metadata) {
    if (!is_name(name) || !is_visible_ascii(value)) {
      return fail(ErrorCode::kInvalidArgument, "metadata \"{}\" is not ASCII that a header can hold", name);
    }
    add(name, value);
  }
  if (options.posix) {
    const PosixAttributes& posix = *options.posix;
    add(kMode, fmt::format("{:07o}", posix.mode));
    add(kOwner, std::to_string(posix.owner));
    add(kGroup, std::to_string(posix.group));
    add(kAccessed, time_text(posix.accessed));
    add(kModified, time_text(posix.modified));
  }
  if (bytes > kMostBytes) {
    return fail(ErrorCode::kInvalidArgument, "{} bytes of metadata, more than the {} that S3 takes", bytes, kMostBytes);
  }
  for (const ObjectHeaderField& field : kObjectHeaderFields) {
    const std::string& value = options.headers.*field.value;
    if (!is_visible_ascii(value)) {
      return fail(ErrorCode::kInvalidArgument, "{} is not ASCII that a header can hold", field.name);
    }
    if (!value.empty()) headers.emplace_back(field.name, value);
  }
  if (options.tags.size() > kMostTags) {
    return fail(ErrorCode::kInvalidArgument, "{} tags, more than the {} that S3 takes", options.tags.size(), kMostTags);
  }
  std::string tags;
  for (const auto& [name, value] : options.tags) {
    tags +=
        fmt::format("{}{}={}", tags.empty() ? "" : "&", http::uri_encode(name, false), http::uri_encode(value, false));
  }
  if (!tags.empty()) headers.emplace_back("x-amz-tagging", std::move(tags));
  return headers;
}

std::optional<PosixAttributes> take_posix(std::map<std::string, std::string>& metadata) {
  const auto take = [&](std::string_view name) {
    auto node = metadata.extract(std::string(name));
    return node.empty() ? std::string() : std::move(node.mapped());
  };
  if (!metadata.contains(std::string(kMode))) return std::nullopt;
  PosixAttributes posix;
  posix.mode = number_of<uint32_t>(take(kMode), 8);
  posix.owner = number_of<uint32_t>(take(kOwner));
  posix.group = number_of<uint32_t>(take(kGroup));
  posix.accessed = time_of(take(kAccessed));
  posix.modified = time_of(take(kModified));
  return posix;
}

}  // namespace millrace::s3
