// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/stage.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/storage/s3/s3.h"
#include "millrace/sync/cp.h"
#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/detail/unpack.h"
#include "millrace/sync/ls.h"
#include "millrace/sync/verify.h"

namespace millrace::sync {
namespace {

constexpr std::string_view kS3 = "s3://";

// A folder for temporary files that goes with everything in it.
class TemporaryFolder {
 public:
  static Result<std::unique_ptr<TemporaryFolder>> make() {
    std::error_code error;
    const auto base = std::filesystem::temp_directory_path(error);
    if (error) return tl::unexpected<Error>(errno_error(error.value(), "find the folder for temporary files"));
    std::string path = (base / "millrace-stage-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return tl::unexpected<Error>(errno_error(errno, "make " + path));
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(path)));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

std::string bucket_of(const std::string& url) {
  return url.substr(kS3.size(), url.find('/', kS3.size()) - kS3.size());
}

class Stage {
 public:
  Stage(const std::string& source, const std::string& target, const StageOptions& options, std::stop_token stop,
        Progress* progress)
      : source_(source), target_(target), options_(options), stop_(std::move(stop)), progress_(progress) {}

  Result<StageReport> run() {
    const auto start = Clock::now();
    ASSIGN_OR_RETURN(const Found found, find(source_, FindAs::kFolder));
    if (!found.is_folder) {
      return fail(ErrorCode::kInvalidArgument, "{} is one object, not a folder: cp copies it", url_to_show(source_));
    }
    report_.end = steps();
    report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(report_);
  }

 private:
  Status steps() {
    RETURN_IF_ERROR(with_context(make_bucket(), "bucket"));
    RETURN_IF_ERROR(with_context(choose_sample(), "sample"));
    RETURN_IF_ERROR(with_context(upload(), "upload"));
    if (options_.sync.dry_run) return {};
    RETURN_IF_ERROR(with_context(list(), "list"));
    if (report_.sample.empty()) return {};
    return take_sample();
  }

  void did(StageStep::Kind kind, std::string detail) const {
    if (options_.on_step) options_.on_step({kind, std::move(detail)});
  }

  Status make_bucket() {
    if (!target_.starts_with(kS3)) return {};
    const std::string bucket = bucket_of(target_);
    ASSIGN_OR_RETURN(const Location root, open_url(std::string(kS3) + bucket));
    const auto there = root.storage->list("", {.max_keys = 1});
    if (there) return {};
    if (there.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(there.error());
    if (!options_.create_bucket) {
      return fail(ErrorCode::kNotFound, "there is no bucket {}: --create-bucket (create_bucket) makes it", bucket);
    }
    if (!options_.sync.dry_run) {
      ASSIGN_OR_RETURN(const S3Options s3, S3Options::from(process_url_options()));
      RETURN_IF_ERROR(make_s3_bucket(bucket, s3));
    }
    report_.bucket_made = true;
    did(StageStep::Kind::kBucket, bucket + (options_.sync.dry_run ? " would be made" : " is made"));
    return {};
  }

  Status choose_sample() {
    LsEntry best;
    const auto is_better = [&](const LsEntry& entry) {
      if (best.path.empty()) return true;
      const bool archive = is_archive(entry.path);
      if (archive != is_archive(best.path)) return archive;
      return entry.info.size < best.info.size;
    };
    ASSIGN_OR_RETURN(const auto listing,
                     Listing::open(source_, {.recursive = true, .filter = options_.sync.filter}, stop_));
    for (;;) {
      ASSIGN_OR_RETURN(const auto entry, listing->next());
      if (!entry) break;
      if (entry->kind != Entry::Kind::kFile) continue;
      const bool fits = options_.sample.empty() ? entry->info.size > 0 : entry->path == options_.sample;
      if (fits && is_better(*entry)) best = *entry;
    }
    source_files_ = listing->report().objects;
    source_bytes_ = listing->report().bytes;
    if (best.path.empty() && !options_.sample.empty()) {
      return fail(ErrorCode::kNotFound, "{} has no file {}, or a filter leaves it out", url_to_show(source_),
                  options_.sample);
    }
    report_.sample = best.path;
    return {};
  }

  Status upload() {
    if (options_.sync.dry_run && report_.bucket_made) {  // there is nothing to compare with
      report_.upload.copied_files = source_files_;
      report_.upload.copied_bytes = report_.upload.moved_bytes = source_bytes_;
    } else {
      ASSIGN_OR_RETURN(report_.upload, sync(source_, target_, options_.sync, stop_, progress_));
      RETURN_IF_ERROR(report_.upload.status());
    }
    const SyncReport& done = report_.upload;
    did(StageStep::Kind::kUpload,
        fmt::format("{} {} files, {}; {} were there", options_.sync.dry_run ? "to copy:" : "copied",
                    format_count(done.copied_files), format_bytes(done.copied_bytes),
                    format_count(done.skipped_files)));
    return {};
  }

  Status list() {
    ASSIGN_OR_RETURN(const auto listing, Listing::open(target_, {.recursive = true}, stop_));
    for (;;) {
      ASSIGN_OR_RETURN(const auto entry, listing->next());
      if (!entry) break;
    }
    report_.objects = listing->report().objects;
    report_.bytes = listing->report().bytes;
    std::string first;
    VerifyOptions how{.effort = VerifyOptions::Effort::kRecorded, .follow_links = options_.sync.follow_links};
    how.filter = options_.sync.filter;
    how.on_file = [&](const VerifyOptions::Finding& finding) {
      using Kind = VerifyOptions::Finding::Kind;
      const bool wrong =
          finding.kind == Kind::kDifferent || finding.kind == Kind::kMissing || finding.kind == Kind::kUnreadable;
      if (wrong && first.empty()) first = finding.path + ": " + std::string(finding_name(finding.kind));
    };
    ASSIGN_OR_RETURN(const VerifyReport verified, verify(source_, target_, how, stop_));
    if (!verified.is_clean(false)) {
      return fail(ErrorCode::kCorruption, "{} of {} files are not at {} as they should be, the first {}",
                  verified.files - verified.same, verified.files, target_, first);
    }
    did(StageStep::Kind::kList,
        fmt::format("{} objects, {}; all {} files of the source are there", format_count(report_.objects),
                    format_bytes(report_.bytes), format_count(verified.files)));
    return {};
  }

  Status take_sample() {
    std::unique_ptr<TemporaryFolder> temporary;
    std::string folder = options_.sample_dir;
    if (folder.empty()) {
      ASSIGN_OR_RETURN(temporary, TemporaryFolder::make());
      folder = temporary->path();
    }
    const std::string name = report_.sample.substr(report_.sample.rfind('/') + 1);
    const std::string copy = folder + "/" + name;
    RETURN_IF_ERROR(with_context(download(copy), "sample"));
    ASSIGN_OR_RETURN(const Location packed, open_url(copy));
    ASSIGN_OR_RETURN(const Location into, open_url(copy + ".unpacked"));
    ASSIGN_OR_RETURN(const Unpacked unpacked,
                     with_context(unpack_and_check(packed, into, stop_), "unpack " + report_.sample));
    report_.members = unpacked.members;
    report_.unpacked_bytes = unpacked.bytes;
    did(StageStep::Kind::kUnpack,
        unpacked.is_archive
            ? fmt::format("{} files, {}; {} checked inside", format_count(unpacked.members),
                          format_bytes(unpacked.bytes), format_count(unpacked.checked))
            : fmt::format("no archive; {}", unpacked.checked > 0 ? "checked inside" : "its bytes are the source's"));
    return {};
  }

  // The bytes that came back are those that were sent.
  Status download(const std::string& copy) {
    ASSIGN_OR_RETURN(const Location far, open_url(target_));
    ASSIGN_OR_RETURN(const SyncReport copied, cp(far.child(report_.sample).url, copy, false, {}, stop_));
    RETURN_IF_ERROR(copied.status());
    report_.sample_bytes = copied.copied_bytes;
    const auto hash = [&](const Location& at) -> Result<Hash128> {
      ASSIGN_OR_RETURN(const ObjectInfo info, at.storage->stat(at.key));
      return hash_object(*at.storage, info, stop_);
    };
    ASSIGN_OR_RETURN(const Location here, open_url(source_));
    ASSIGN_OR_RETURN(const Location back, open_url(copy));
    ASSIGN_OR_RETURN(const Hash128 sent, hash(here.child(report_.sample)));
    ASSIGN_OR_RETURN(const Hash128 came, hash(back));
    if (sent != came) {
      return fail(ErrorCode::kCorruption, "{} came back as {}, and was sent as {}", report_.sample, to_hex(came),
                  to_hex(sent));
    }
    did(StageStep::Kind::kSample, fmt::format("{}, {}, XXH3 {}: as it was sent", report_.sample,
                                              format_bytes(report_.sample_bytes), to_hex(came)));
    return {};
  }

  const std::string& source_;
  const std::string& target_;
  const StageOptions& options_;
  const std::stop_token stop_;
  Progress* const progress_;
  int64_t source_files_ = 0, source_bytes_ = 0;
  StageReport report_;
};

}  // namespace

std::string_view step_name(StageStep::Kind kind) {
  constexpr std::string_view kNames[] = {"bucket", "upload", "list", "sample", "unpack"};
  return kNames[static_cast<size_t>(kind)];
}

Result<StageReport> stage(const std::string& source, const std::string& target, const StageOptions& options,
                          std::stop_token stop, Progress* progress) {
  return Stage(source, target, options, std::move(stop), progress).run();
}

}  // namespace millrace::sync
