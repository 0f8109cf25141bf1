// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/answer.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/object/object_metadata.h"
#include "millrace/storage/submit.h"

// Bytes come to a writer in three ways:
//
//   whole parts, in any order (write_at, start_writes): they go up from the caller's memory or file
//   anything else, in order (write_at): gathered to parts, which go up behind the caller's back
//   a head that is written again (write_at below what came): changed here, since the first gathered part stays here
//
// The upload is begun with the first part that goes up; what never fills a part becomes one PUT (commit.cpp). Requests
// may outlive the writer, so what they touch is in `Shared`.

namespace millrace::s3 {
namespace {

// What the AWS command line sends; a block of hashes (sync), so that one part is one block.
constexpr int64_t kDefaultPartBytes = 8 << 20;
// Limits of S3: "Amazon S3 multipart upload limits" in its user guide.
constexpr int64_t kSmallestPartBytes = 5 << 20;  // but for the last part
constexpr int64_t kMostObjectBytes = int64_t{5} << 40;
// Gathered parts on their way: a choice. Each is a part in memory, and two keep a connection busy while one is
// answered.
constexpr int kGatheredUnderWay = 3;

PartWrite part_write_of(const Operation& operation) {
  PartWrite part{.stop = operation.stop, .deadline = operation.deadline};
  if (const auto* write = std::get_if<Operation::Write>(&operation.what)) {
    part.offset = write->offset;
    part.data = write->data;
  } else {
    part.sent = std::get<Operation::Send>(operation.what);
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

bool S3Writer::is_begun() {
  MutexLock lock(upload_mutex_);
  return !upload_id_.empty();
}

void S3Writer::start_writes(std::vector<std::unique_ptr<PendingOperation>>& writes) {
  std::vector<SubmittedPart> parts;
  for (auto& one : writes) {
    PartWrite write = part_write_of(one->operation());
    if (!is_whole_part(write.offset, write.size())) continue;
    Status may_begin = check_open("write");
    if (may_begin) may_begin = one->check_may_begin();
    if (may_begin) {
      parts.push_back({std::move(write), std::move(one)});
    } else {
      std::exchange(one, nullptr)->end(std::move(may_begin));
    }
  }
  std::erase(writes, nullptr);
  if (parts.empty()) return;
  const bool may_wait = !is_begun() || (!bucket_->state->checks_crc &&
                                        std::any_of(parts.begin(), parts.end(), [](const SubmittedPart& part) {
                                          return part.write.sent.file != nullptr;
                                        }));
  if (!may_wait) return begin_and_send(parts);
  bucket_->state->process.get().executor.submit([this, parts = std::move(parts)] { begin_and_send(parts); });
}

void S3Writer::begin_and_send(const std::vector<SubmittedPart>& parts) {
  const std::shared_ptr<Bucket> bucket = bucket_;  // this writer may go when its parts are done
  const Status begun = begin_upload();
  if (!begun) lost_parts_ = true;
  const auto send = [&](const SubmittedPart& part, PutProof proof) {
    send_part(part.write, std::move(proof), nullptr,
              [pending = part.pending](Status status) { pending->end(std::move(status)); });
  };
  std::vector<const SubmittedPart*> in_memory;
  std::vector<std::span<const std::byte>> contents;
  for (const SubmittedPart& part : parts) {
    const PartWrite& write = part.write;
    if (!begun) {
      part.pending->end(Status(begun));
    } else if (write.sent.file == nullptr) {
      in_memory.push_back(&part);
      contents.push_back(write.data);
    } else if (auto proof = PutProof::of(*bucket, *write.sent.file, write.sent.crc32c); proof) {
      send(part, *std::move(proof));
    } else {
      part.pending->end(with_context(Status(tl::unexpected(std::move(proof).error())), "write " + url_));
    }
  }
  std::vector<PutProof> proofs = PutProof::of_each(*bucket, contents);
  for (size_t i = 0; i < in_memory.size(); ++i) send(*in_memory[i], std::move(proofs[i]));
}

Status S3Writer::begin_upload() {
  MutexLock lock(upload_mutex_);
  if (!upload_id_.empty()) return {};
  if (options_.keeps_source) {
    return fail(ErrorCode::kInvalidArgument, "write {}: it was to be a copy of one whole object", url_);
  }
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

// `done` comes on a thread of the transport. REQUIRES: begin_upload() succeeded.
void S3Writer::send_part(const PartWrite& write, PutProof proof, std::shared_ptr<const void> keep, OnDone done) {
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
  proof.add_to(request);
  Part part{.size = request.body_bytes(), .etag = {}, .proof = std::move(proof)};
  {
    MutexLock lock(shared_->mutex);
    ++shared_->under_way;
  }
  bucket_->service->start(std::move(request),
                          [bucket = bucket_, shared = shared_, part = std::move(part), offset, done = std::move(done),
                           what = fmt::format("write {} at {}", url_, offset)](Result<Answer> answer) mutable {
                            Status status;
                            if (!answer)
                              status = with_context(Status(tl::unexpected(answer.error())), what);
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
    // A caller that told the size and writes whole parts is going to send many at once.
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
  return wait_for_answer<Status>(
      [&](auto done) { send_part({.offset = offset, .data = data}, PutProof::of(*bucket_, data), nullptr, done); });
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
    while (shared_->gathered >= kGatheredUnderWay && shared_->first_error) shared_->changed.wait(shared_->mutex);
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
  send_part({.offset = offset, .data = *part}, PutProof::of(*bucket_, *part), part, [shared = shared_](Status status) {
    MutexLock lock(shared->mutex);
    --shared->gathered;
    if (!status && shared->first_error) shared->first_error = std::move(status);
  });
}

Status S3Writer::wait_for_parts() {
  MutexLock lock(shared_->mutex);
  while (shared_->under_way > 0) shared_->changed.wait(shared_->mutex);
  return shared_->first_error;
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

}  // namespace millrace::s3
