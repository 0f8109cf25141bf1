// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "millrace/base/crc32c.h"
#include "millrace/base/log.h"
#include "millrace/base/units.h"
#include "millrace/base/utf8.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/md5.h"
#include "millrace/storage/s3/detail/answers.h"
#include "millrace/storage/s3/detail/bucket.h"
#include "millrace/storage/s3/detail/digest.h"
#include "millrace/storage/s3/detail/object_metadata.h"
#include "millrace/storage/s3/detail/part_sizes.h"
#include "millrace/storage/s3/detail/put_proof.h"
#include "millrace/storage/s3/detail/sigv4.h"

// An object of up to a part is one PUT at the commit. A longer one is a multipart upload, begun with its second part.
// Bytes come in two ways: whole parts go up from the caller's memory or file, in any order; all else must come in
// order, is gathered to parts, and goes up behind the caller's back, a few parts at a time. Of gathered parts the first
// stays here until the commit, so that a head may be written again when the rest is known.

namespace millrace::s3 {
namespace {

constexpr int64_t kDefaultPartBytes = 8 << 20;
constexpr int64_t kSmallestPartBytes = 5 << 20;  // but for the last one; S3's rule
constexpr int64_t kMostObjectBytes = int64_t{5} << 40;
constexpr int64_t kMostCopyBytes = int64_t{5} << 30;  // of CopyObject and UploadPartCopy
constexpr int kPartsUnderWay = 3;                     // gathered ones
constexpr std::chrono::milliseconds kAbortPatience(10'000), kStoppedAbortPatience(500);

int64_t part_size_for(int64_t wish, int64_t object_bytes) {
  constexpr int64_t kMiB = 1 << 20;
  const int64_t needed = (object_bytes / kMostParts / kMiB + 1) * kMiB;
  return std::max({wish > 0 ? wish : kDefaultPartBytes, kSmallestPartBytes, object_bytes > 0 ? needed : 0});
}

using Gathered = std::shared_ptr<std::vector<std::byte>>;

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

  Status resume(const ObjectInfo& upload);

  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override;
  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override;
  [[nodiscard]] Result<ObjectInfo> commit(Durability durability) override;
  [[nodiscard]] bool start_commit(Durability durability, uint64_t tag, CompletionQueue& queue) override;
  int64_t part_bytes() const override { return parts_.first_bytes(); }
  [[nodiscard]] Status suspend() override;
  std::span<const WrittenPart> parts() const override { return resumed_; }

  bool is_whole_part(int64_t offset, int64_t bytes) const;
  // Uploads a whole part from the caller's memory or file, without waiting.
  void submit_part(const Operation& operation, OnDone done);

 private:
  struct Part {
    int64_t size = 0;
    std::string etag;
    PutProof proof;
  };
  void start_part(const Operation& operation, std::shared_ptr<const void> keep, OnDone done);

  // What requests under way touch; they may outlive the writer.
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::map<int64_t, Part> parts GUARDED_BY(mutex);      // by offset
    Status first_error GUARDED_BY(mutex);                 // of gathered parts
    std::optional<Result<Answer>> put GUARDED_BY(mutex);  // to what start_commit() sent
    PutProof put_proof GUARDED_BY(mutex);                 // of that
    int under_way GUARDED_BY(mutex) = 0;                  // all parts
    int gathered GUARDED_BY(mutex) = 0;                   // gathered ones
  };
  // A part of an existing object that the server copies.
  struct CopySource {
    const S3Reader* reader;
    int64_t offset, size;
  };

  Status check_open(std::string_view what) const;
  Status begin_upload();
  Status gather(std::span<const std::byte> data) REQUIRES_LOCK(gather_mutex_);
  Status hand_over_gathered() REQUIRES_LOCK(gather_mutex_);
  void start_gathered(const Gathered& part, int64_t offset);
  Status settle_copy();
  Status copy_part(const CopySource& source, int64_t offset);
  Status wait_for_parts();
  void add_condition(Request& request) const;
  Status check_condition() const;
  tl::unexpected<Error> lost_condition(const Result<ObjectInfo>& there) const;
  Gathered whole_content();
  PutProof proof_of(const Gathered& content) const;
  Request whole_request(const Gathered& content, const PutProof& proof) const;
  Result<ObjectInfo> put_whole();
  Result<ObjectInfo> copy_whole();
  Result<ObjectInfo> complete();
  Status check_whole(const http::Response& response, std::string_view etag, const std::string& expected,
                     int64_t size) const;
  Result<ObjectInfo> written(const Answer& answer, std::string etag, int64_t size) const;
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
  std::vector<WrittenPart> resumed_;

  Mutex gather_mutex_;
  Gathered first_ GUARDED_BY(gather_mutex_);                        // the first part, once it is full
  Gathered gathering_ GUARDED_BY(gather_mutex_);                    // the part that grows
  int64_t end_ GUARDED_BY(gather_mutex_) = 0;                       // of what came in order
  std::optional<CopySource> whole_copy_ GUARDED_BY(gather_mutex_);  // the object is this one, if nothing else comes
};

Status S3Writer::check_open(std::string_view what) const {
  if (ended_) return fail(ErrorCode::kInvalidArgument, "{} {}: it was committed before", what, url_);
  if (generation_ == fork_generation()) return {};
  return fail(ErrorCode::kInvalidArgument, "{} {}: the writer belongs to the parent process", what, url_);
}

int64_t written_bytes(const Operation& operation) {
  return operation.file != nullptr ? operation.file->size() : std::ssize(operation.data);
}

bool S3Writer::is_whole_part(int64_t offset, int64_t bytes) const {
  const int64_t object = options_.size_hint_bytes;
  const int64_t part = parts_.size_at(offset);
  if (!parts_.is_start(offset) || (object > 0 && object <= part)) return false;
  return bytes == part || (bytes > 0 && bytes < part && offset + bytes == object);
}

void S3Writer::submit_part(const Operation& operation, OnDone done) {
  if (auto open = check_open("write"); !open) return done(std::move(open));
  bool begun = false;
  {
    MutexLock lock(upload_mutex_);
    begun = !upload_id_.empty();
  }
  const bool is_hashed_here = operation.file != nullptr && !bucket_->state->checks_crc;  // not on this thread
  if (begun && !is_hashed_here) return start_part(operation, nullptr, std::move(done));
  bucket_->state->process.get().executor.submit([this, operation, done = std::move(done)] {
    if (auto status = begin_upload(); !status) return done(std::move(status));
    start_part(operation, nullptr, done);
  });
}

Status S3Writer::begin_upload() {
  MutexLock lock(upload_mutex_);
  if (!upload_id_.empty()) return {};
  Request request = bucket_->request(http::Method::kPost, key_, {{"uploads", ""}});
  request.headers = metadata_;
  if (bucket_->checksums) request.headers.emplace_back("x-amz-checksum-algorithm", "CRC32C");
  const std::string what = "begin the upload of " + url_;
  ASSIGN_OR_RETURN(const Answer answer, bucket_->fetch(std::move(request), what));
  ASSIGN_OR_RETURN(upload_id_, with_context(parse_upload_id(answer.response.body), what));
  auto& process = bucket_->state->process.get();
  MutexLock process_lock(process.mutex);
  process.uploads.insert(upload_id_);
  return {};
}

// Something follows what might have been a copy as a whole.
Status S3Writer::settle_copy() {
  std::optional<CopySource> source;
  {
    MutexLock lock(gather_mutex_);
    source = std::exchange(whole_copy_, std::nullopt);
  }
  return source ? copy_through_memory(*source->reader, source->offset, source->size, *this, 0) : Status();
}

// `done` comes on a thread of the transport. REQUIRES: begin_upload() succeeded.
void S3Writer::start_part(const Operation& operation, std::shared_ptr<const void> keep, OnDone done) {
  const int64_t offset = operation.offset;
  Request request = bucket_->request(http::Method::kPut, key_);
  {
    MutexLock lock(upload_mutex_);
    request.query = {{"partNumber", std::to_string(parts_.number_at(offset))}, {"uploadId", upload_id_}};
  }
  request.body = operation.data;
  request.file = operation.file;
  request.file_progress = operation.file_progress;
  request.keep = std::move(keep);
  if (operation.stop.stop_possible()) request.stop = operation.stop;
  request.deadline = operation.deadline;
  auto proof = operation.file != nullptr
                   ? PutProof::of(*bucket_, *operation.file, operation.file_crc32c)
                   : PutProof::of(*bucket_, operation.data, bucket_->checksums ? crc32c(operation.data) : 0);
  if (!proof) return done(with_context(Status(tl::unexpected(std::move(proof).error())), "write " + url_));
  proof->add_to(request);
  Part part{.size = request.body_bytes(), .etag = {}, .proof = *std::move(proof)};
  {
    MutexLock lock(shared_->mutex);
    ++shared_->under_way;
  }
  bucket_->service->start(std::move(request),
                          [bucket = bucket_, shared = shared_, part = std::move(part), offset, done = std::move(done),
                           what = fmt::format("write {} at {}", url_, offset)](Result<Answer> answer) mutable {
                            Status status;
                            if (!answer)
                              status = with_context(Status(tl::unexpected(std::move(answer).error())), what);
                            else if (!is_success(answer->response))
                              status = tl::unexpected(error_of(answer->response, what));
                            else
                              status = part.proof.check(*bucket, answer->response, what);
                            if (status) part.etag = bare_etag(answer->response.header("etag"));
                            {
                              MutexLock lock(shared->mutex);
                              if (status) shared->parts[offset] = std::move(part);
                            }
                            done(std::move(status));
                            MutexLock lock(shared->mutex);
                            --shared->under_way;
                            shared->changed.notify_all();
                          });
}

Status S3Writer::write_at(int64_t offset, std::span<const std::byte> data) {
  RETURN_IF_ERROR(check_open("write"));
  RETURN_IF_ERROR(check_write_range(url_, offset, data.size()));
  const int64_t end = offset + std::ssize(data);
  if (end > kMostObjectBytes) {
    return fail(ErrorCode::kResourceExhausted, "write {}: {} is more than S3 keeps in an object", url_,
                format_bytes(end));
  }
  RETURN_IF_ERROR(settle_copy());
  {
    MutexLock lock(gather_mutex_);
    // Who said the size and comes with whole parts means to send many at once.
    const bool direct =
        options_.size_hint_bytes > part_bytes() && !gathering_ && is_whole_part(offset, std::ssize(data));
    if (offset == end_ && !direct) return gather(data);
    if (offset == end_) end_ = end;
    const Gathered& head = first_ ? first_ : gathering_;
    if (head && end <= std::min(end_, std::ssize(*head))) {  // a head, written again
      std::copy(data.begin(), data.end(), head->begin() + offset);
      return {};
    }
  }
  if (!is_whole_part(offset, std::ssize(data))) {
    return fail(ErrorCode::kInvalidArgument,
                "write {}: {} bytes at {} are neither a whole part of {} nor the next bytes", url_, data.size(), offset,
                parts_.size_at(offset));
  }
  RETURN_IF_ERROR(begin_upload());
  std::optional<Status> result;
  Mutex mutex;
  CondVar changed;
  start_part({.offset = offset, .data = data}, nullptr, [&](Status status) {
    MutexLock lock(mutex);
    result.emplace(std::move(status));
    changed.notify_one();  // under the lock: whoever waits drops it
  });
  MutexLock lock(mutex);
  while (!result) changed.wait(mutex);
  return std::move(*result);
}

Status S3Writer::gather(std::span<const std::byte> data) {
  while (!data.empty()) {
    if (!gathering_) {
      gathering_ = std::make_shared<std::vector<std::byte>>();
      gathering_->reserve(static_cast<size_t>(
          first_ || options_.size_hint_bytes > part_bytes() ? parts_.size_at(end_) : options_.size_hint_bytes));
    }
    const auto part = static_cast<size_t>(parts_.size_at(end_ - std::ssize(*gathering_)));
    const size_t room = part - gathering_->size();
    const auto taken = data.first(std::min(room, data.size()));
    gathering_->insert(gathering_->end(), taken.begin(), taken.end());
    end_ += std::ssize(taken);
    data = data.subspan(taken.size());
    if (gathering_->size() == part) RETURN_IF_ERROR(hand_over_gathered());
  }
  return {};
}

Status S3Writer::hand_over_gathered() {
  const Gathered part = std::move(gathering_);
  gathering_.reset();
  const int64_t offset = end_ - std::ssize(*part);
  if (offset == 0) {
    first_ = part;
    return {};
  }
  RETURN_IF_ERROR(begin_upload());
  {
    MutexLock lock(shared_->mutex);
    while (shared_->gathered >= kPartsUnderWay && shared_->first_error) shared_->changed.wait(shared_->mutex);
    RETURN_IF_ERROR(Status(shared_->first_error));
  }
  start_gathered(part, offset);
  return {};
}

void S3Writer::start_gathered(const Gathered& part, int64_t offset) {
  {
    MutexLock lock(shared_->mutex);
    ++shared_->gathered;
  }
  start_part({.offset = offset, .data = *part}, part, [shared = shared_](Status status) {
    MutexLock lock(shared->mutex);
    --shared->gathered;
    if (!status && shared->first_error) shared->first_error = std::move(status);
  });
}

Status S3Writer::copy_range(const RandomReader& source, int64_t source_offset, int64_t size, int64_t offset) {
  RETURN_IF_ERROR(check_open("copy to"));
  RETURN_IF_ERROR(check_read_range(source, source_offset, size));
  RETURN_IF_ERROR(check_write_range(url_, offset, static_cast<size_t>(size)));
  RETURN_IF_ERROR(settle_copy());
  const auto* object = dynamic_cast<const S3Reader*>(&source);
  if (object == nullptr || object->service() != bucket_->service.get()) {
    return copy_through_memory(source, source_offset, size, *this, offset);
  }
  const CopySource from{object, source_offset, size};
  {
    MutexLock lock(gather_mutex_);
    const bool untouched = end_ == 0 && !first_ && !gathering_ && resumed_.empty();
    if (untouched && offset == 0 && source_offset == 0 && size == source.size() && size <= kMostCopyBytes) {
      MutexLock upload_lock(upload_mutex_);
      if (upload_id_.empty()) {
        whole_copy_ = from;
        return {};
      }
    }
  }
  // Parts of the server's own must be long, but for the last; what is short and follows may have more behind it.
  bool last = options_.size_hint_bytes > 0 && offset + size == options_.size_hint_bytes;
  {
    MutexLock lock(gather_mutex_);
    last = last || offset != end_;
  }
  if (size == 0 || !parts_.is_start(offset) || (!parts_.is_start(offset + size) && !last)) {
    return copy_through_memory(source, source_offset, size, *this, offset);
  }
  RETURN_IF_ERROR(begin_upload());
  {
    MutexLock lock(gather_mutex_);
    if (offset == end_ && !gathering_) end_ += size;
  }
  for (int64_t done = 0; done < size;) {
    const int64_t most = parts_.start_of(parts_.number_at(offset + done + kMostCopyBytes)) - offset - done;
    const int64_t some = std::min(most, size - done);
    RETURN_IF_ERROR(copy_part({object, source_offset + done, some}, offset + done));
    done += some;
  }
  return {};
}

Pairs copy_headers(const S3Reader& source) {
  return {{"x-amz-copy-source", "/" + source.object().bucket + "/" + uri_encode(source.object().key, true)},
          {"x-amz-copy-source-if-match", fmt::format("\"{}\"", source.version())}};
}

// 412 and 404 are the source's: what was opened is no longer there.
Error copy_error(const http::Response& response, const S3Reader& source, const std::string& what) {
  if (response.status != 412 && response.status != 404) return error_of(response, what);
  return Error(ErrorCode::kCorruption, fmt::format("{}: {} changed while reading", what, source.name()));
}

Status S3Writer::copy_part(const CopySource& source, int64_t offset) {
  Request request = bucket_->request(http::Method::kPut, key_);
  {
    MutexLock lock(upload_mutex_);
    request.query = {{"partNumber", std::to_string(parts_.number_at(offset))}, {"uploadId", upload_id_}};
  }
  request.headers = copy_headers(*source.reader);
  request.headers.emplace_back("x-amz-copy-source-range",
                               fmt::format("bytes={}-{}", source.offset, source.offset + source.size - 1));
  request.may_fail_late = true;
  const std::string what = fmt::format("copy {} to {}", source.reader->name(), url_);
  ASSIGN_OR_RETURN(const Answer answer, with_context(bucket_->service->fetch(std::move(request)), what));
  if (!is_success(answer.response)) return tl::unexpected(copy_error(answer.response, *source.reader, what));
  ASSIGN_OR_RETURN(std::string etag, with_context(parse_etag(answer.response.body), what));
  MutexLock lock(shared_->mutex);
  shared_->parts[offset] = {.size = source.size, .etag = std::move(etag)};
  return {};
}

Status S3Writer::wait_for_parts() {
  MutexLock lock(shared_->mutex);
  while (shared_->under_way > 0) shared_->changed.wait(shared_->mutex);
  return shared_->first_error;
}

// ---- the end

void S3Writer::add_condition(Request& request) const {
  using Condition = WriteOptions::Condition;
  if (options_.condition == Condition::kIfAbsent) request.headers.emplace_back("if-none-match", "*");
  if (options_.condition == Condition::kIfVersion) {
    request.headers.emplace_back(
        "if-match", bucket_->state->bare_conditions ? options_.version : fmt::format("\"{}\"", options_.version));
  }
}

// Before work that would be in vain, and for servers that know conditions of a PUT only.
Status S3Writer::check_condition() const {
  using Condition = WriteOptions::Condition;
  if (options_.condition == Condition::kReplace) return {};
  const auto there = bucket_->head(key_);
  if (!there && there.error().code() != ErrorCode::kNotFound) return tl::unexpected(there.error());
  const bool holds = options_.condition == Condition::kIfAbsent ? !there : there && there->version == options_.version;
  return holds ? Status() : lost_condition(there);
}

tl::unexpected<Error> S3Writer::lost_condition(const Result<ObjectInfo>& there) const {
  if (options_.condition == WriteOptions::Condition::kIfAbsent)
    return fail(ErrorCode::kAlreadyExists, "commit {}: it exists", url_);
  return fail(ErrorCode::kAlreadyExists, "commit {}: its version is {}, not {}", url_,
              there ? there->version : "that of no object", options_.version);
}

Result<ObjectInfo> S3Writer::commit(Durability /*durability*/) {
  RETURN_IF_ERROR(check_open("commit"));
  // A part that was on its way when what might have been a copy as a whole came.
  const bool begun = [&] {
    MutexLock lock(upload_mutex_);
    return !upload_id_.empty();
  }();
  Status settled = begun ? settle_copy() : Status();
  if (settled) settled = wait_for_parts();
  auto done = std::move(settled).and_then([&]() -> Result<ObjectInfo> {
    bool whole = false, copy = false;
    {
      MutexLock lock(gather_mutex_);
      MutexLock upload_lock(upload_mutex_);
      whole = upload_id_.empty() && !(first_ && gathering_);
      copy = whole_copy_.has_value();
    }
    if (copy) return copy_whole();
    return whole ? put_whole() : complete();
  });
  if (!done) return done;  // the upload goes with the writer, or is suspended
  forget_upload();
  ended_ = true;
  return done;
}

Gathered S3Writer::whole_content() {
  MutexLock lock(gather_mutex_);
  const Gathered& content = first_ ? first_ : gathering_;
  return content ? content : std::make_shared<std::vector<std::byte>>();
}

PutProof S3Writer::proof_of(const Gathered& content) const {
  return PutProof::of(*bucket_, *content, bucket_->checksums ? crc32c(*content) : 0).value();  // reads no file
}

Request S3Writer::whole_request(const Gathered& content, const PutProof& proof) const {
  Request request = bucket_->request(http::Method::kPut, key_);
  request.headers = metadata_;
  request.body = *content;
  request.keep = content;
  proof.add_to(request);
  add_condition(request);
  return request;
}

bool S3Writer::start_commit(Durability /*durability*/, uint64_t tag, CompletionQueue& queue) {
  if (!check_open("commit")) return false;
  {
    MutexLock lock(gather_mutex_);
    MutexLock upload_lock(upload_mutex_);
    const bool is_one_put = upload_id_.empty() && !(first_ && gathering_) && !whole_copy_;
    if (!is_one_put) return false;
  }
  const Gathered content = whole_content();
  const PutProof proof = proof_of(content);
  Request request = whole_request(content, proof);
  bucket_->service->start(std::move(request), [shared = shared_, proof, tag, &queue](Result<Answer> answer) {
    {
      MutexLock lock(shared->mutex);
      shared->put.emplace(std::move(answer));
      shared->put_proof = proof;
    }
    queue.push({.tag = tag, .status = {}});
  });
  return true;
}

Result<ObjectInfo> S3Writer::put_whole() {
  const Gathered content = whole_content();
  const std::string what = "write " + url_;
  PutProof proof;
  const auto put = [&]() -> Result<Answer> {
    std::optional<Result<Answer>> answer;
    {
      MutexLock lock(shared_->mutex);
      answer = std::exchange(shared_->put, std::nullopt);
      proof = shared_->put_proof;
    }
    if (answer) return with_context(*std::move(answer), what);
    proof = proof_of(content);
    return with_context(bucket_->service->fetch(whole_request(content, proof)), what);
  };
  ASSIGN_OR_RETURN(Answer answer, put());
  if (is_success(answer.response)) {
    RETURN_IF_ERROR(proof.check(*bucket_, answer.response, what));
    return written(answer, std::string(bare_etag(answer.response.header("etag"))), std::ssize(*content));
  }
  const bool lost = answer.response.status == 412 || answer.response.status == 404;  // 404: if-match of no object
  if (!lost || options_.condition == WriteOptions::Condition::kReplace)
    return tl::unexpected(error_of(answer.response, what));
  const auto there = bucket_->head(key_);
  if (there && there->version == options_.version && !bucket_->state->bare_conditions.exchange(true))
    return put_whole();
  // An earlier try may have been the one that won, its answer lost.
  if (answer.tries > 1 && there && there->version == md5_hex(*content)) return there;
  return lost_condition(there);
}

Result<ObjectInfo> S3Writer::copy_whole() {
  std::optional<CopySource> source;
  {
    MutexLock lock(gather_mutex_);
    source = whole_copy_;
  }
  RETURN_IF_ERROR(check_condition());
  Request request = bucket_->request(http::Method::kPut, key_);
  request.headers = copy_headers(*source->reader);
  request.headers.emplace_back("x-amz-metadata-directive", "REPLACE");
  request.headers.insert(request.headers.end(), metadata_.begin(), metadata_.end());
  request.may_fail_late = true;
  const std::string what = fmt::format("copy {} to {}", source->reader->name(), url_);
  ASSIGN_OR_RETURN(const Answer answer, with_context(bucket_->service->fetch(std::move(request)), what));
  if (!is_success(answer.response)) return tl::unexpected(copy_error(answer.response, *source->reader, what));
  ASSIGN_OR_RETURN(std::string etag, with_context(parse_etag(answer.response.body), what));
  return written(answer, std::move(etag), source->size);
}

Result<ObjectInfo> S3Writer::complete() {
  RETURN_IF_ERROR(begin_upload());
  Gathered first, last;
  int64_t last_offset = 0;
  {
    MutexLock lock(gather_mutex_);
    first = first_;
    last = gathering_;
    last_offset = last ? end_ - std::ssize(*last) : 0;
  }
  for (const auto& [part, offset] : {std::pair(first, int64_t{0}), std::pair(last, last_offset)}) {
    if (part) start_gathered(part, offset);
  }
  RETURN_IF_ERROR(wait_for_parts());
  RETURN_IF_ERROR(check_condition());

  int64_t size = 0;
  std::vector<std::string> etags;
  std::string body = "<CompleteMultipartUpload>";
  {
    MutexLock lock(shared_->mutex);
    for (const auto& [offset, part] : shared_->parts) {
      if (offset != size) {
        return fail(ErrorCode::kInvalidArgument, "commit {}: nothing was written at [{}, {})", url_, size, offset);
      }
      body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>\"{}\"</ETag>", parts_.number_at(offset), part.etag);
      if (!part.proof.crc.empty()) body += "<ChecksumCRC32C>" + part.proof.crc + "</ChecksumCRC32C>";
      body += "</Part>";
      etags.push_back(part.etag);
      size += part.size;
    }
  }
  body += "</CompleteMultipartUpload>";
  Request request;
  {
    MutexLock lock(upload_mutex_);
    request = bucket_->request(http::Method::kPost, key_, {{"uploadId", upload_id_}});
  }
  request.body = as_bytes(body);
  request.headers.emplace_back("content-type", "application/xml");
  request.headers.emplace_back("x-amz-mp-object-size", std::to_string(size));  // checked by S3
  request.may_fail_late = true;
  add_condition(request);
  const std::string what = "commit " + url_;
  ASSIGN_OR_RETURN(const Answer answer, with_context(bucket_->service->fetch(std::move(request)), what));
  std::string etag;
  if (is_success(answer.response)) {
    ASSIGN_OR_RETURN(etag, with_context(parse_etag(answer.response.body), what));
    RETURN_IF_ERROR(check_whole(answer.response, etag, multipart_etag(etags), size));
  } else if (answer.response.status == 404 && answer.tries > 1) {
    // An earlier try may have done it, its answer lost: then the object is made of our parts.
    etag = multipart_etag(etags);
    const auto there = bucket_->head(key_);
    if (etag.empty() || !there || there->version != etag) return tl::unexpected(error_of(answer.response, what));
  } else {
    return tl::unexpected(error_of(answer.response, what));
  }
  return written(answer, std::move(etag), size);
}

// What the server put together is what was sent: its ETag says so, or its size at least.
Status S3Writer::check_whole(const http::Response& response, std::string_view etag, const std::string& expected,
                             int64_t size) const {
  ASSIGN_OR_RETURN(const bool is_proven, prove_whole(*bucket_, response, etag, expected, "commit " + url_));
  if (is_proven) return {};
  ASSIGN_OR_RETURN(const ObjectInfo there, bucket_->head(key_));
  const bool is_ours = etag.empty() || there.version == etag;  // else it was replaced since
  if (there.size == size || !is_ours) return {};
  return fail(ErrorCode::kCorruption, "commit {}: the server put {} bytes together, and {} were sent", url_, there.size,
              size);
}

// A server that does not say the new version is asked for it.
Result<ObjectInfo> S3Writer::written(const Answer& answer, std::string etag, int64_t size) const {
  if (etag.empty()) return bucket_->head(key_);
  ObjectInfo object;
  object.key = key_;
  object.size = size;
  object.version = std::move(etag);
  object.modified = http::parse_time(answer.response.header("date"));
  object.metadata = options_.metadata;
  object.posix = options_.posix;
  return object;
}

void S3Writer::forget_upload() {
  MutexLock lock(upload_mutex_);
  if (upload_id_.empty()) return;
  auto& process = bucket_->state->process.get();
  MutexLock process_lock(process.mutex);
  process.uploads.erase(upload_id_);
  upload_id_.clear();
}

void S3Writer::drop() {
  if (ended_ || generation_ != fork_generation()) return;  // the parent's upload is the parent's
  ended_ = true;
  static_cast<void>(wait_for_parts());
  std::string id;
  {
    MutexLock lock(upload_mutex_);
    id = upload_id_;
  }
  if (id.empty()) return;
  Request request = bucket_->request(http::Method::kDelete, key_, {{"uploadId", id}});
  request.deadline = Clock::now() + (bucket_->stop.stop_requested() ? kStoppedAbortPatience : kAbortPatience);
  request.stop = {};
  const auto answer = bucket_->fetch(std::move(request), "abort");
  if (!answer && answer.error().code() != ErrorCode::kNotFound) {
    log(LogLevel::kWarning, "the upload of {} could not be aborted and takes up space: {}", url_,
        answer.error().to_string());
  }
  forget_upload();
}

// What was gathered and is no whole part yet is lost.
Status S3Writer::suspend() {
  RETURN_IF_ERROR(check_open("suspend"));
  Gathered first;
  {
    MutexLock lock(gather_mutex_);
    first = first_;
  }
  if (first) {
    RETURN_IF_ERROR(begin_upload());
    start_gathered(first, 0);
  }
  const Status written = wait_for_parts();
  ended_ = true;
  forget_upload();
  return written;
}

Status S3Writer::resume(const ObjectInfo& upload) {
  const std::string what = "go on with the upload of " + url_;
  std::vector<PartAnswer> found;
  std::string next;
  do {
    Pairs query{{"uploadId", upload.version}};
    if (!next.empty()) query.emplace_back("part-number-marker", next);
    ASSIGN_OR_RETURN(const Answer answer,
                     bucket_->fetch(bucket_->request(http::Method::kGet, key_, std::move(query)), what));
    ASSIGN_OR_RETURN(PartPage page, with_context(parse_parts(answer.response.body), what));
    found.insert(found.end(), page.parts.begin(), page.parts.end());
    if (!next.empty() && page.next_number == next)
      return fail(ErrorCode::kUnavailable, "{}: the listing does not advance", what);
    next = page.next_number;
  } while (!next.empty());
  int64_t end = 0;  // of the parts without a gap
  MutexLock gather_lock(gather_mutex_);
  MutexLock lock(shared_->mutex);
  for (const PartAnswer& part : found) {
    const int64_t offset = parts_.start_of(part.number);
    resumed_.push_back({offset, part.size, part.etag});
    // Parts of another size are not where they belong now; they will be sent again.
    if (part.size != parts_.size_at(offset) && offset + part.size != options_.size_hint_bytes) continue;
    if (offset == end) end += part.size;
    shared_->parts[offset] = {.size = part.size, .etag = part.etag};
  }
  end_ = end;
  MutexLock upload_lock(upload_mutex_);
  upload_id_ = upload.version;
  auto& process = bucket_->state->process.get();
  MutexLock process_lock(process.mutex);
  process.uploads.insert(upload_id_);
  return {};
}

// S3's own rules: said here, they name the reason, which some servers do not.
Status check_new_key(std::string_view url, std::string_view key) {
  constexpr size_t kMostKeyBytes = 1024;
  if (key.size() > kMostKeyBytes) {
    return fail(ErrorCode::kInvalidArgument, "write {}: a key of {} bytes, and S3 takes {}", url, key.size(),
                kMostKeyBytes);
  }
  if (!is_utf8(key)) return fail(ErrorCode::kInvalidArgument, "write {}: a key that is not UTF-8", url);
  return {};
}

Result<std::unique_ptr<S3Writer>> make_writer(std::shared_ptr<Bucket> bucket, std::string_view key,
                                              const WriteOptions& options) {
  RETURN_IF_ERROR(check_object_key(key));
  RETURN_IF_ERROR(check_new_key(bucket->url(key), key));
  if (options.size_hint_bytes < 0) {
    return fail(ErrorCode::kInvalidArgument, "write {}: a size hint of {}", bucket->url(key), options.size_hint_bytes);
  }
  if (options.size_hint_bytes > kMostObjectBytes) {
    return fail(ErrorCode::kResourceExhausted, "write {}: {} is more than S3 keeps in an object ({})", bucket->url(key),
                format_bytes(options.size_hint_bytes), format_bytes(kMostObjectBytes));
  }
  ASSIGN_OR_RETURN(Pairs headers, with_context(metadata_headers(options), "write " + bucket->url(key)));
  return std::make_unique<S3Writer>(std::move(bucket), std::string(key), options, std::move(headers));
}

}  // namespace

Result<std::unique_ptr<Writer>> open_s3_writer(std::shared_ptr<Bucket> bucket, std::string_view key,
                                               const WriteOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Writer> writer, make_writer(bucket, key, options));
  if (options.condition == WriteOptions::Condition::kIfAbsent) {
    const auto there = bucket->head(std::string(key));
    if (there) return fail(ErrorCode::kAlreadyExists, "write {}: it exists", bucket->url(key));
    if (there.error().code() != ErrorCode::kNotFound) return tl::unexpected(there.error());
  }
  return writer;
}

Result<std::unique_ptr<Writer>> resume_s3_writer(std::shared_ptr<Bucket> bucket, const ObjectInfo& upload,
                                                 const WriteOptions& options) {
  ASSIGN_OR_RETURN(auto writer, make_writer(std::move(bucket), upload.key, options));
  RETURN_IF_ERROR(writer->resume(upload));
  return writer;
}

bool start_part_write(const Operation& operation, const OnDone& done) {
  auto* ours = dynamic_cast<S3Writer*>(operation.writer);
  if (ours == nullptr || !ours->is_whole_part(operation.offset, written_bytes(operation))) return false;
  ours->submit_part(operation, done);
  return true;
}

}  // namespace millrace::s3
