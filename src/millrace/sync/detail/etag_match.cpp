// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/etag_match.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "millrace/storage/checksum.h"
#include "millrace/storage/md5.h"
#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

constexpr size_t kEtagDigits = 32;  // of an MD5 in hex
constexpr size_t kSha256Digits = 64, kSha1Digits = 40;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr size_t kReadBytes = 1 << 20;  // a choice: long enough for the disk, short enough for a stop

// The defaults of AWS's own tools, s5cmd, rclone, MinIO's client and the libraries of this field, and multiples of
// them.
constexpr std::array<int64_t, 18> kPartMib{5,  8,  10,  15,  16,  20,  25,  32,  40,
                                           50, 64, 100, 128, 200, 256, 500, 512, 1024};

int64_t parts_of(std::string_view etag) {
  int64_t parts = 0;
  const size_t dash = etag.find('-');
  if (dash != etag.npos) std::from_chars(etag.data() + dash + 1, etag.data() + etag.size(), parts);
  return parts;
}

// A hash by which a service may identify content, computed as the content arrives.
class Candidate {
 public:
  virtual ~Candidate() = default;
  virtual void update(std::span<const std::byte> bytes) = 0;
  virtual std::string finish() = 0;
};

// The ETag of content that is uploaded in parts of one size.
class EtagHash final : public Candidate {
 public:
  explicit EtagHash(int64_t part_bytes) : part_bytes_(part_bytes) {}

  void update(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const int64_t room = part_bytes_ == 0 ? std::ssize(bytes) : part_bytes_ - in_part_;
      const auto piece = bytes.first(static_cast<size_t>(std::min(room, std::ssize(bytes))));
      part_.update(piece);
      in_part_ += std::ssize(piece);
      bytes = bytes.subspan(piece.size());
      if (in_part_ == part_bytes_) end_part();
    }
  }
  std::string finish() override {
    if (part_bytes_ == 0) return part_.finish_hex();
    if (in_part_ > 0) end_part();
    return fmt::format("{}-{}", whole_.finish_hex(), parts_);
  }

 private:
  void end_part() {
    const std::string digest = part_.finish();
    whole_.update(std::as_bytes(std::span<const char>(digest)));
    in_part_ = 0;
    ++parts_;
  }

  const int64_t part_bytes_;
  int64_t in_part_ = 0;
  int64_t parts_ = 0;
  Md5 part_, whole_;
};

class HubHash final : public Candidate {
 public:
  HubHash(ContentChecksum::Kind kind, int64_t size) : stream_(kind, size) {}
  void update(std::span<const std::byte> bytes) override { stream_.update(bytes); }
  std::string finish() override { return stream_.finish().digest; }

 private:
  ChecksumStream stream_;
};

}  // namespace

namespace {

// The Hub's versions are hashes of the content.
std::optional<ContentChecksum::Kind> hub_hash_of(std::string_view version) {
  if (version.find_first_not_of("0123456789abcdef") != version.npos) return std::nullopt;
  if (version.size() == kSha256Digits) return ContentChecksum::Kind::kSha256;
  if (version.size() == kSha1Digits) return ContentChecksum::Kind::kGitBlob;
  return std::nullopt;
}

// The hashes that an ETag, or a version of the Hub, may be of content of this size.
std::vector<std::unique_ptr<Candidate>> candidates_of(std::string_view etag, int64_t size) {
  std::vector<std::unique_ptr<Candidate>> candidates;
  if (const auto kind = hub_hash_of(etag)) {
    candidates.push_back(std::make_unique<HubHash>(*kind, size));
    return candidates;
  }
  for (const int64_t part_bytes : possible_part_bytes(etag, size)) {
    candidates.push_back(std::make_unique<EtagHash>(part_bytes));
  }
  return candidates;
}

}  // namespace

std::string_view etag_of(const Storage& storage, const ObjectInfo& object) {
  if (storage.name().starts_with("hf:")) return hub_hash_of(object.version) ? object.version : std::string_view();
  if (!storage.name().starts_with("s3:")) return {};
  std::string_view etag = object.version;
  if (etag.size() > 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  const std::string_view md5 = etag.substr(0, etag.find('-'));
  const bool is_md5 = md5.size() == kEtagDigits && md5.find_first_not_of("0123456789abcdef") == md5.npos;
  return is_md5 && (md5.size() == etag.size() || parts_of(etag) > 0) ? etag : std::string_view();
}

std::vector<int64_t> possible_part_bytes(std::string_view etag, int64_t size) {
  const int64_t parts = parts_of(etag);
  if (parts == 0) return {0};
  std::vector<int64_t> possible;
  const auto fits = [&](int64_t bytes) { return std::max<int64_t>(1, (size + bytes - 1) / bytes) == parts; };
  for (const int64_t mib : kPartMib) {
    if (fits(mib * kMiB)) possible.push_back(mib * kMiB);
  }
  // Tools that grow their parts to stay below S3's limit take whole MiB.
  const int64_t fewest = ((size + parts - 1) / parts + kMiB - 1) / kMiB * kMiB;
  if (fewest > 0 && fits(fewest) && std::find(possible.begin(), possible.end(), fewest) == possible.end()) {
    possible.push_back(fewest);
  }
  return possible;
}

Result<std::optional<ProvenContent>> prove_by_etag(const RandomReader& content, std::string_view etag,
                                                   const std::stop_token& stop) {
  const auto candidates = candidates_of(etag, content.size());
  if (candidates.empty()) return std::nullopt;
  ContentHash hash(true, content.size() > kBlockBytes);
  std::vector<std::byte> buffer(std::min(kReadBytes, static_cast<size_t>(content.size())));
  for (int64_t offset = 0; offset < content.size(); offset += std::ssize(buffer)) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const int64_t bytes = std::min(content.size() - offset, std::ssize(buffer));
    const auto piece = std::span(buffer).first(static_cast<size_t>(bytes));
    RETURN_IF_ERROR(content.read_at(offset, piece));
    for (const auto& candidate : candidates) candidate->update(piece);
    hash.update(piece);
  }
  hash.finish();
  const bool proven =
      std::any_of(candidates.begin(), candidates.end(), [&](const auto& each) { return each->finish() == etag; });
  if (!proven) return std::nullopt;
  return ProvenContent{.hash = hash.digest(), .blocks = hash.blocks()};
}

}  // namespace millrace::sync
