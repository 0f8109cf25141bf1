// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/writer.h"

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
#include "millrace/storage/s3/auth/sigv4.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/object/object_metadata.h"

namespace millrace::s3 {
namespace {

constexpr int64_t kDefaultPartBytes = 8 << 20;
constexpr int64_t kSmallestPartBytes = 5 << 20;  // but for the last one; S3's rule
constexpr int64_t kMostObjectBytes = int64_t{5} << 40;
constexpr int kPartsUnderWay = 3;  // gathered ones
constexpr std::chrono::milliseconds kAbortPatience(10'000), kStoppedAbortPatience(500);

PartWrite part_write_of(const Operation& operation) {
  PartWrite part{.stop = operation.stop, .deadline = operation.deadline};
  if (const auto* write = std::get_if<Operation::Write>(&operation.what)) {
    part.writer = write->writer;
    part.offset = write->offset;
    part.data = write->data;
  } else {
    part.sent = std::get<Operation::Send>(operation.what);
    part.writer = part.sent.writer;
    part.offset = part.sent.offset;
  }
  return part;
}

}  // namespace

int64_t part_size_for(int64_t wish, int64_t object_bytes) {
  constexpr int64_t kMiB = 1 << 20;
  const int64_t needed = (object_bytes / kMostParts / kMiB + 1) * kMiB;
  return std::max({wish > 0 ? wish : kDefaultPartBytes, kSmallestPartBytes, object_bytes > 0 ? needed : 0});
}

Status S3Writer::check_open(std::string_view what) const {
  if (ended_) return fail(ErrorCode::kInvalidArgument, "{} {}: it was committed before", what, url_);
  if (generation_ == fork_generation()) return {};
  return fail(ErrorCode::kInvalidArgument, "{} {}: the writer belongs to the parent process", what, url_);
}

bool S3Writer::is_whole_part(int64_t offset, int64_t bytes) const {
  const int64_t object = options_.size_hint_bytes;
  const int64_t part = parts_.size_at(offset);
  if (!parts_.is_start(offset) || (object > 0 && object <= part)) return false;
  return bytes == part || (bytes > 0 && bytes < part && offset + bytes == object);
}

void S3Writer::submit_part(const PartWrite& write, OnDone done) {
  if (auto open = check_open("write"); !open) return done(std::move(open));
  bool begun = false;
  {
    MutexLock lock(upload_mutex_);
    begun = !upload_id_.empty();
  }
  const bool is_hashed_here = write.sent.file != nullptr && !bucket_->state->checks_crc;  // not on this thread
  if (begun && !is_hashed_here) return start_part(write, nullptr, std::move(done));
  bucket_->state->process.get().executor.submit([this, write, done = std::move(done)] {
    if (auto status = begin_upload(); !status) return done(std::move(status));
    start_part(write, nullptr, done);
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
void S3Writer::start_part(const PartWrite& write, std::shared_ptr<const void> keep, OnDone done) {
  const int64_t offset = write.offset;
  Request request = bucket_->request(http::Method::kPut, key_);
  {
    MutexLock lock(upload_mutex_);
    request.query = {{"partNumber", std::to_string(parts_.number_at(offset))}, {"uploadId", upload_id_}};
  }
  request.body = write.data;
  request.file = write.sent.file;
  request.file_progress = write.sent.progress;
  request.keep = std::move(keep);
  if (write.stop.stop_possible()) request.stop = write.stop;
  request.deadline = write.deadline;
  auto proof = write.sent.file != nullptr
                   ? PutProof::of(*bucket_, *write.sent.file, write.sent.crc32c)
                   : PutProof::of(*bucket_, write.data, bucket_->checksums ? crc32c(write.data) : 0);
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
  std::vector<ListedPart> found;
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
  for (const ListedPart& part : found) {
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

namespace {

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
  const PartWrite write = part_write_of(operation);
  auto* ours = dynamic_cast<S3Writer*>(write.writer);
  if (ours == nullptr || !ours->is_whole_part(write.offset, write.size())) return false;
  ours->submit_part(write, done);
  return true;
}

}  // namespace millrace::s3
