// SPDX-License-Identifier: Apache-2.0
// The end of a write: one PUT, one copy by the server (copy.cpp), or the completion of a multipart upload.
#include <memory>
#include <optional>
#include <utility>

#include "millrace/storage/md5.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/object/writer.h"

namespace millrace::s3 {

void S3Writer::add_condition(Request& request) const {
  using Condition = WriteOptions::Condition;
  if (options_.condition == Condition::kIfAbsent) request.headers.emplace_back("if-none-match", "*");
  if (options_.condition == Condition::kIfVersion) {
    request.headers.emplace_back(
        "if-match", bucket_->state->bare_conditions ? options_.version : fmt::format("\"{}\"", options_.version));
  }
}

// Checks the condition early: it saves work, and some servers know conditions of a PUT only.
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
  // A part that was under way while a copy of the whole was possible.
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
    if (options_.keeps_source) return fail(ErrorCode::kInvalidArgument, "commit {}: it is no copy of an object", url_);
    // An upload that never began has none of its parts; the object would be empty.
    if (whole && lost_parts_) return fail(ErrorCode::kInvalidArgument, "commit {}: its parts were not written", url_);
    return whole ? put_whole() : complete();
  });
  if (!done) return done;  // the writer aborts or suspends the upload
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
  return PutProof::of(*bucket_, *content);
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
    const bool is_one_put = upload_id_.empty() && !(first_ && gathering_) && !whole_copy_ && !lost_parts_;
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
  for (;;) {
    ASSIGN_OR_RETURN(const Answer answer, put());
    if (is_success(answer.response)) {
      RETURN_IF_ERROR(proof.check(*bucket_, answer.response, what));
      RETURN_IF_ERROR(ensure_tags());
      return written(answer, std::string(bare_etag(answer.response.header("etag"))), std::ssize(*content));
    }
    const bool lost =
        answer.response.status == 412 || answer.response.status == 404;  // 404: if-match without an object
    if (!lost || options_.condition == WriteOptions::Condition::kReplace) {
      return tl::unexpected(error_of(answer.response, what));
    }
    auto there = bucket_->head(key_);
    // The condition holds, so the server reads it in another form, and is asked in that one from now on.
    if (there && there->version == options_.version && !bucket_->state->bare_conditions.exchange(true)) continue;
    // An earlier try may have won, its answer lost.
    if (answer.tries > 1 && there && there->version == md5_hex(*content)) return there;
    return lost_condition(there);
  }
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
        return fail(ErrorCode::kInvalidArgument, "commit {}: no bytes were written at [{}, {})", url_, size, offset);
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
    RETURN_IF_ERROR(ensure_tags());
  } else if (answer.response.status == 404 && answer.tries > 1) {
    // An earlier try may have completed the upload, its answer lost. Then the object consists of our parts.
    etag = multipart_etag(etags);
    const auto there = bucket_->head(key_);
    if (etag.empty() || !there || there->version != etag) return tl::unexpected(error_of(answer.response, what));
  } else {
    return tl::unexpected(error_of(answer.response, what));
  }
  return written(answer, std::move(etag), size);
}

// Checks that the server assembled what was sent: by its ETag, or at least by its size.
Status S3Writer::check_whole(const http::Response& response, std::string_view etag, const std::string& expected,
                             int64_t size) const {
  ASSIGN_OR_RETURN(const bool is_proven, prove_whole(*bucket_, response, etag, expected, "commit " + url_));
  if (is_proven) return {};
  ASSIGN_OR_RETURN(const ObjectInfo there, bucket_->head(key_));
  const bool is_ours = etag.empty() || there.version == etag;  // else another write replaced it
  if (there.size == size || !is_ours) return {};
  return fail(ErrorCode::kCorruption, "commit {}: the server put {} bytes together, and {} were sent", url_, there.size,
              size);
}

// Asks a server that does not tell the new version.
Result<ObjectInfo> S3Writer::written(const Answer& answer, std::string etag, int64_t size) const {
  if (etag.empty()) return bucket_->head(key_);
  ObjectInfo object;
  object.key = key_;
  object.size = size;
  object.version = std::move(etag);
  object.modified = http::parse_time(answer.response.header("date"));
  object.metadata = options_.metadata;
  object.headers = std::make_shared<const ObjectHeaders>(options_.headers);
  object.posix = options_.posix;
  return object;
}

}  // namespace millrace::s3
