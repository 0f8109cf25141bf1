// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/resumed_write.h"

#include <fmt/core.h>

#include <algorithm>

#include "millrace/base/log.h"

namespace millrace::sync {
namespace {

constexpr size_t kMd5Digits = 32;

// The parts that lie as this copy would write them, with what proves their content.
std::map<int64_t, std::string> fitting_parts(const Writer& writer, int64_t size) {
  std::map<int64_t, std::string> fitting;
  const int64_t part_bytes = writer.part_bytes();
  for (const WrittenPart& part : writer.parts()) {
    const bool fits = part_bytes > 0 && part.offset >= 0 && part.offset < size && part.offset % part_bytes == 0 &&
                      part.size == std::min(part_bytes, size - part.offset) && part.etag.size() == kMd5Digits;
    if (fits) fitting[part.offset] = part.etag;
  }
  return fitting;
}

// A dropped writer removes what was written. Without locks another process may be writing it now.
void leave_alone(std::unique_ptr<Writer> writer) {
  if (writer == nullptr) return;
  if (const Status left = writer->suspend(); !left) log(LogLevel::kInfo, "{}", left.error().to_string());
}

}  // namespace

Result<ResumedWrite> find_resumable(const CopyJob& job, const CopyPlan& plan, int64_t part_limit_bytes) {
  ResumedWrite best;
  Storage& storage = *job.to.storage;
  auto uploads = storage.list_uploads(job.to.key);
  if (!uploads && gave_no_answer(uploads.error())) return tl::unexpected<Error>(std::move(uploads).error());
  if (!uploads) {
    log(LogLevel::kInfo, "no earlier copy is resumed: {}", uploads.error().to_string());
    return best;
  }
  const bool notes = storage.capabilities().notes;
  const Hash128 identity = identity_of(job, plan, kBlockBytes);
  for (const ObjectInfo& upload : *uploads) {
    if (upload.key != job.to.key) continue;
    auto writer = storage.resume_write(upload, plan.write);
    if (!writer) {  // another process writes it, or has ended it
      best.has_vanished = best.has_vanished || writer.error().code() == ErrorCode::kNotFound;
      continue;
    }
    if (notes) {
      const auto note = parse_note((*writer)->note());
      if (!note || note->identity != identity || note->parts <= best.note.parts) continue;
      best.writer = std::move(*writer);
      best.note = *note;
      continue;
    }
    // One without a part, of a process that was killed before it had sent one, is better than to begin another.
    auto parts = fitting_parts(**writer, job.source.size);
    const bool is_better =
        parts.size() > best.part_md5s.size() || (best.writer == nullptr && (*writer)->parts().empty());
    if ((*writer)->part_bytes() > part_limit_bytes || !is_better) {
      leave_alone(std::move(*writer));
      continue;
    }
    leave_alone(std::move(best.writer));
    best.writer = std::move(*writer);
    best.part_md5s = std::move(parts);
  }
  return best;
}

Hash128 identity_of(const CopyJob& job, const CopyPlan& plan, int64_t part_bytes) {
  const auto whole_name = [](const Location& at) { return fmt::format("{} {}", at.storage->name(), at.key); };
  return copy_identity(whole_name(job.from), plan.source->version(), whole_name(job.to), job.source.size, part_bytes);
}

}  // namespace millrace::sync
