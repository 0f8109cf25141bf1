// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "millrace/http/uri_encode.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/object/writer.h"

// What the server copies by itself. An object that is copied from its first to its last byte is one CopyObject, which
// is sent at the commit, because only then it is known that no further bytes follow; settle_copy() undoes that choice.
// All other ranges are parts of an upload (UploadPartCopy). What cannot be such a part goes through memory.

namespace millrace::s3 {

// Something follows what might have been a copy as a whole.
Status S3Writer::settle_copy() {
  std::optional<CopySource> source;
  {
    MutexLock lock(gather_mutex_);
    source = std::exchange(whole_copy_, std::nullopt);
  }
  return source ? copy_through_memory(*source->reader, source->offset, source->size, *this, 0) : Status();
}

Status S3Writer::copy_range(const RandomReader& source, int64_t source_offset, int64_t size, int64_t offset) {
  RETURN_IF_ERROR(check_open("copy to"));
  RETURN_IF_ERROR(check_read_range(source, source_offset, size));
  RETURN_IF_ERROR(check_write_range(url_, offset, static_cast<size_t>(size)));
  RETURN_IF_ERROR(settle_copy());
  // A cast, since only a reader of this room knows its service and its object.
  const auto* object = dynamic_cast<const S3Reader*>(&source.copy_source());
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
  return {{"x-amz-copy-source", "/" + source.object().bucket + "/" + http::uri_encode(source.object().key, true)},
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

// Some servers (radosgw 16) drop the tags that a copy or an upload is begun with.
Status S3Writer::ensure_tags() const {
  if (options_.tags.empty() || options_.keeps_source) return {};
  if (const auto there = bucket_->tags(key_); there && *there == options_.tags) return {};
  std::string body = "<Tagging><TagSet>";
  for (const auto& [name, value] : options_.tags) {
    body += "<Tag><Key>" + xml_escaped(name) + "</Key><Value>" + xml_escaped(value) + "</Value></Tag>";
  }
  body += "</TagSet></Tagging>";
  Request request = bucket_->request(http::Method::kPut, key_, {{"tagging", ""}});
  request.body = as_bytes(body);
  request.headers.emplace_back("content-md5", base64_md5(request.body));
  request.headers.emplace_back("content-type", "application/xml");
  return bucket_->fetch(std::move(request), "write the tags of " + url_).map([](const Answer&) {});
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
  const bool keeps = options_.keeps_source;
  request.headers.emplace_back("x-amz-metadata-directive", keeps ? "COPY" : "REPLACE");
  request.headers.emplace_back("x-amz-tagging-directive", keeps ? "COPY" : "REPLACE");
  if (!keeps) request.headers.insert(request.headers.end(), metadata_.begin(), metadata_.end());
  request.may_fail_late = true;
  const std::string what = fmt::format("copy {} to {}", source->reader->name(), url_);
  ASSIGN_OR_RETURN(const Answer answer, with_context(bucket_->service->fetch(std::move(request)), what));
  if (!is_success(answer.response)) return tl::unexpected(copy_error(answer.response, *source->reader, what));
  ASSIGN_OR_RETURN(std::string etag, with_context(parse_etag(answer.response.body), what));
  RETURN_IF_ERROR(ensure_tags());
  return written(answer, std::move(etag), source->size);
}

}  // namespace millrace::s3
