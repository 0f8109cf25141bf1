// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/prove.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "millrace/link/hsm.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/url.h"
#include "millrace/sync/record.h"
#include "millrace/sync/verify.h"

namespace millrace::link {

namespace {

constexpr int64_t kReadBytes = 1 << 20;  // a choice: long enough for the disk, short enough for a stop

// The checksum that the server tells of this version. None where it keeps none, or where this user may not ask for it
// (with a key of KMS that needs a right of its own); a version that is another one by now is found below.
Result<std::optional<ContentChecksum>> told_checksum(Storage& there, const ObjectInfo& object) {
  auto told = there.checksum(object);
  if (told) return *std::move(told);
  switch (told.error().code()) {
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorruption:
    case ErrorCode::kNotFound:
      return std::nullopt;
    default:
      return tl::unexpected<Error>(told.error());
  }
}

// By an ETag, by hashes beside the object, or by reading both; "" where they differ.
Result<std::string> prove_otherwise(const std::string& path, const std::string& url, const std::stop_token& stop) {
  std::string proof;
  sync::VerifyOptions options;
  options.effort = sync::VerifyOptions::Effort::kRecorded;
  options.on_file = [&](const sync::VerifyOptions::Finding& finding) {
    if (finding.kind == sync::VerifyOptions::Finding::Kind::kSame) proof = sync::proof_name(finding.proof);
  };
  ASSIGN_OR_RETURN(const auto report, sync::verify(path, url, options, stop));
  return report.same == 1 ? proof : "";
}

}  // namespace

Result<bool> has_checksum(Storage& here, const ObjectInfo& file, const ContentChecksum& told,
                          const std::stop_token& stop) {
  const OwnContentScope own;
  ASSIGN_OR_RETURN(const auto content,
                   here.open_read(file.key, {.expected_version = file.version, .known_size = file.size, .once = true}));
  ChecksumStream stream(told.kind, content->size());
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kReadBytes, content->size())));
  for (int64_t at = 0; at < content->size(); at += std::ssize(buffer)) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(std::ssize(buffer), content->size() - at)));
    RETURN_IF_ERROR(content->read_at(at, piece));
    stream.update(piece);
  }
  return stream.finish() == told;
}

Result<std::string> prove(const LinkConfig& config, LinkState& state, const LinkFile& file,
                          const std::stop_token& stop) {
  if (!file.proof.empty() || file.state != LinkFile::State::kEqual) return file.proof;
  const std::string path = fmt::format("{}/{}", config.directory, file.path);
  const std::string url = fmt::format("{}/{}", config.url, file.path);
  if (config.hsm) {
    ASSIGN_OR_RETURN(const bool is_away, is_hsm_released(path, stop));
    if (is_away) {
      return fail(
          ErrorCode::kUnavailable,
          "{} is not proven to be in the bucket, and its content is in the HSM only: `millrace link restore` it", path);
    }
  }
  ASSIGN_OR_RETURN(const Location here, open_url(path));
  ASSIGN_OR_RETURN(const Location there, open_url(url));
  ASSIGN_OR_RETURN(const ObjectInfo file_here, here.storage->stat(here.key));
  const ObjectInfo object{.key = there.key, .size = file.size, .version = file.there};
  ASSIGN_OR_RETURN(const std::optional<ContentChecksum> told, told_checksum(*there.storage, object));
  std::string proof;
  if (told && sync::is_version(file.here, file_here)) {
    ASSIGN_OR_RETURN(const bool same, has_checksum(*here.storage, file_here, *told, stop));
    if (same) proof = "checksum";
  }
  if (proof.empty()) {
    ASSIGN_OR_RETURN(proof, prove_otherwise(path, url, stop));
    if (proof.empty()) return "";
  }
  ASSIGN_OR_RETURN(const ObjectInfo now_here, here.storage->stat(here.key));
  ASSIGN_OR_RETURN(const ObjectInfo now_there, there.storage->stat(there.key));
  if (!sync::is_version(file.here, now_here) || file.there != now_there.version) return "";
  LinkFile proven = file;
  proven.proof = proof;
  RETURN_IF_ERROR(state.put(proven));
  RETURN_IF_ERROR(state.commit());
  return proof;
}

}  // namespace millrace::link
