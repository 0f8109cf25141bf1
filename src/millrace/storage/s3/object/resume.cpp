// SPDX-License-Identifier: Apache-2.0
// Uploads that end without an object: dropped, left for another process, resumed.
#include <utility>

#include "millrace/base/log.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/object/writer.h"

namespace millrace::s3 {
namespace {

// How long a writer that is dropped waits for the server to abort its upload: long enough for a server that is busy,
// short enough for one that is gone. After a stop a person waits, and one that gave no answer so far gives none now.
constexpr std::chrono::milliseconds kAbortPatience(10'000), kStoppedAbortPatience(500);

}  // namespace

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
  const bool is_hopeless = bucket_->stop.stop_requested() || bucket_->service->is_away();
  request.deadline = Clock::now() + (is_hopeless ? kStoppedAbortPatience : kAbortPatience);
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
  Status written = wait_for_parts();
  ended_ = true;
  forget_upload();
  return written;
}

Status S3Writer::resume(const ObjectInfo& upload) {
  const std::string what = "resume the upload of " + url_;
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

}  // namespace millrace::s3
