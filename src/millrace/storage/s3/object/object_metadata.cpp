// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/object_metadata.h"

#include <algorithm>
#include <charconv>

namespace millrace::s3 {
namespace {

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

using Time = std::chrono::sys_time<std::chrono::nanoseconds>;

std::string time_text(Time time) {
  return std::to_string(time.time_since_epoch().count()) + "ns";
}

template <class Int>
Int number_of(std::string_view text, int base = 10) {
  Int value{};
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

Time time_of(std::string_view text) {
  const auto count = number_of<int64_t>(text);
  return text.ends_with("ns") ? Time(std::chrono::nanoseconds(count)) : Time(std::chrono::milliseconds(count));
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
