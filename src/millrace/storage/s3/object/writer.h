// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes one object to a bucket. writer.cpp: bytes and parts; copy.cpp: copies by the server; commit.cpp: the end;
// resume.cpp: uploads that are left, dropped or resumed.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/storage/s3/client/bucket.h"
#include "millrace/storage/s3/object/part_sizes.h"
#include "millrace/storage/s3/object/put_proof.h"

// An object of at most one part is one PUT at the commit. A longer object is a multipart upload, which begins with its
// second part. The first gathered part stays in memory until the commit, so that a head can be rewritten when the rest
// is known.

namespace millrace::s3 {

using Gathered = std::shared_ptr<std::vector<std::byte>>;

// Returns the size of a part: the caller's wish or 8 MiB, at least 5 MiB (S3's rule), and large enough that 10,000
// parts suffice.
int64_t part_size_for(int64_t wish, int64_t object_bytes);

// A write or send to one part.
struct PartWrite {
  int64_t offset = 0;
  std::span<const std::byte> data;
  Operation::Send sent;  // if it has a file, used instead of `data`
  std::stop_token stop;
  Clock::time_point deadline = Clock::time_point::max();

  int64_t size() const { return sent.file != nullptr ? sent.file->size() : std::ssize(data); }
};
struct SubmittedPart {
  PartWrite write;
  std::shared_ptr<PendingOperation> pending;
};

class S3Writer final : public Writer {
 public:
  S3Writer(std::shared_ptr<Bucket> bucket, std::string key, const WriteOptions& options, Pairs headers)
      : bucket_(std::move(bucket)),
        key_(std::move(key)),
        url_(bucket_->url(key_)),
        options_(options),
        metadata_(std::move(headers)),
        parts_(part_size_for(options.part_bytes, options.size_hint_bytes), options.size_hint_bytes == 0),
        shared_(std::make_shared<Shared>()) {}
  ~S3Writer() override { drop(); }

  [[nodiscard]] Status resume(const ObjectInfo& upload);

  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override;
  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override;
  [[nodiscard]] Result<ObjectInfo> commit(Durability durability) override;
  [[nodiscard]] bool start_commit(Durability durability, uint64_t tag, CompletionQueue& queue) override;
  // Uploads whole parts from the callers' memory or files. Hashes parts that are given together in one pass.
  void start_writes(std::vector<std::unique_ptr<PendingOperation>>& writes) override;
  int64_t part_bytes() const override { return parts_.first_bytes(); }
  [[nodiscard]] Status suspend() override;
  std::span<const WrittenPart> parts() const override { return resumed_; }

 private:
  struct Part {
    int64_t size = 0;
    std::string etag;
    PutProof proof;
  };
  bool is_whole_part(int64_t offset, int64_t bytes) const;
  bool is_begun();
  // Begins the upload if needed, hashes `parts` and sends them.
  void begin_and_send(const std::vector<SubmittedPart>& parts);
  void send_part(const PartWrite& write, PutProof proof, std::shared_ptr<const void> keep, OnDone done);

  // Used by requests under way, which may outlive the writer.
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::map<int64_t, Part> parts GUARDED_BY(mutex);      // by offset
    Status first_error GUARDED_BY(mutex);                 // first error of gathered parts
    std::optional<Result<Answer>> put GUARDED_BY(mutex);  // the answer to start_commit()'s request
    PutProof put_proof GUARDED_BY(mutex);                 // proof of that request
    int under_way GUARDED_BY(mutex) = 0;                  // all parts
    int gathered GUARDED_BY(mutex) = 0;                   // gathered parts
  };
  // A part of an existing object that the server copies.
  struct CopySource {
    const S3Reader* reader;
    int64_t offset, size;
  };

  [[nodiscard]] Status check_open(std::string_view what) const;
  [[nodiscard]] Status begin_upload();
  [[nodiscard]] Status gather(std::span<const std::byte> data) REQUIRES_LOCK(gather_mutex_);
  [[nodiscard]] Status hand_over_gathered() REQUIRES_LOCK(gather_mutex_);
  void start_gathered(const Gathered& part, int64_t offset);
  [[nodiscard]] Status settle_copy();
  [[nodiscard]] Status copy_part(const CopySource& source, int64_t offset);
  [[nodiscard]] Status wait_for_parts();
  void add_condition(Request& request) const;
  [[nodiscard]] Status check_condition() const;
  tl::unexpected<Error> lost_condition(const Result<ObjectInfo>& there) const;
  Gathered whole_content();
  PutProof proof_of(const Gathered& content) const;
  Request whole_request(const Gathered& content, const PutProof& proof) const;
  [[nodiscard]] Result<ObjectInfo> put_whole();
  [[nodiscard]] Result<ObjectInfo> copy_whole();
  [[nodiscard]] Status ensure_tags() const;
  [[nodiscard]] Result<ObjectInfo> complete();
  [[nodiscard]] Status check_whole(const http::Response& response, std::string_view etag, const std::string& expected,
                                   int64_t size) const;
  [[nodiscard]] Result<ObjectInfo> written(const Answer& answer, std::string etag, int64_t size) const;
  void forget_upload();
  void drop();

  const std::shared_ptr<Bucket> bucket_;
  const std::string key_, url_;
  const WriteOptions options_;
  const Pairs metadata_;
  const uint64_t generation_ = fork_generation();
  const PartSizes parts_;
  const std::shared_ptr<Shared> shared_;

  Mutex upload_mutex_;
  std::string upload_id_ GUARDED_BY(upload_mutex_);
  bool ended_ = false;
  std::atomic<bool> lost_parts_ = false;  // parts were given, but no upload could begin
  std::vector<WrittenPart> resumed_;

  Mutex gather_mutex_;
  Gathered first_ GUARDED_BY(gather_mutex_);                        // the first part, once it is full
  Gathered gathering_ GUARDED_BY(gather_mutex_);                    // the part being filled
  int64_t end_ GUARDED_BY(gather_mutex_) = 0;                       // end of the bytes written in order
  std::optional<CopySource> whole_copy_ GUARDED_BY(gather_mutex_);  // the object to copy whole, if no other bytes come
};

// The most bytes that one CopyObject or UploadPartCopy copies.
inline constexpr int64_t kMostCopyBytes = int64_t{5} << 30;
// Returns the headers that name the version of `source` to be copied.
Pairs copy_headers(const S3Reader& source);
Error copy_error(const http::Response& response, const S3Reader& source, const std::string& what);

}  // namespace millrace::s3
