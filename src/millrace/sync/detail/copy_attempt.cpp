// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/copy_attempt.h"

#include <algorithm>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/storage/md5.h"
#include "millrace/sync/detail/attributes.h"
#include "millrace/sync/detail/object_properties.h"
#include "millrace/sync/detail/sidecar.h"

// The way of a part:
//
//   begin    gets memory and is read; one that is known to be the same as in the old target needs neither, nor does one
//            that is sent from the source's file
//   decide   in the order of the parts: hashed, checked, and its action chosen
//   start    written from memory or the file, or copied by the storage from the source or from the old target, or kept
//   finish   counted; the memory goes back; the note speaks of it once all parts before it are finished too
//
// A step of the copy does all but reading, writing and copying. It never waits for memory: a copy that holds some goes
// on with what it has, and one that holds none ends its step with Next::kMemory.

namespace millrace::sync {
namespace {

// Parts that hold no memory (kept, copied by a server, sent from files) may be under way too, but not without end:
// more than the 16 that are sent or copied at once, so that there is always one to start.
constexpr size_t kMostOpenParts = 64;
// Parts that are sent from files at once, where no more memory is allowed than usual: at least four of each copy, and
// up to sixteen of all copies together where the source is a file. On a server that gives each connection 80 MiB/s,
// 1 GiB takes 1.75 s with sixteen at once, 2.5 s with eight; a kill loses them all.
constexpr int64_t kFewestSends = 4;
constexpr int kMostSends = 16;
constexpr int kMostCopies = 16;  // that a server is asked for at once by one copy: as many as are sent

constexpr uint64_t kCommitTag = UINT64_MAX;
uint64_t read_tag(int64_t part) {
  return static_cast<uint64_t>(part) * 2;
}
uint64_t write_tag(int64_t part) {
  return read_tag(part) + 1;
}

template <class T>
bool is_gone(const Result<T>& result) {
  return !result && result.error().code() == ErrorCode::kNotFound;
}

}  // namespace

CopyAttempt::CopyAttempt(const CopyTools& tools, const CopyJob& job, CopyPlan plan, CompletionQueue& ended)
    : tools_(tools),
      job_(job),
      plan_(std::move(plan)),
      ended_(ended),
      to_caps_(job.to.storage->capabilities()),
      size_(job.source.size),
      check_(job, plan_) {}

CopyScheduler::Next CopyAttempt::go_on(std::span<Completion> completions) {
  if (phase_ == Phase::kPrepare) {
    if (job_.options.dry_run && plan_.compare == Compare::kNothing) {
      report_ = estimated_report(*job_.from.storage, *job_.to.storage, size_);
      return Next::kEnd;
    }
    const auto is_ready = prepare();
    if (!is_ready) return end(tl::unexpected<Error>(is_ready.error()));
    if (!*is_ready) return Next::kMemory;
    phase_ = Phase::kMoveParts;
  }
  if (phase_ == Phase::kMoveParts) {
    if (const Next next = move_parts(completions); next != Next::kEnd) return next;
    if (!status_ || writer_ == nullptr) return end(std::move(status_));
    phase_ = Phase::kCommit;
    if (parts_ > 1) return Next::kTurn;
  }
  if (phase_ == Phase::kCommit) {
    phase_ = Phase::kCommitting;
    if (writer_->start_commit(job_.options.durability, kCommitTag, ended_)) return Next::kCall;
  }
  Status started;
  for (Completion& completion : completions) {
    if (completion.tag == kCommitTag) started = std::move(completion.status);
  }
  return end(started ? commit() : std::move(started));
}

CopyScheduler::Next CopyAttempt::end(Status status) {
  if (!status) {
    give_up(status.error());
    report_ = tl::unexpected<Error>(std::move(status).error());
    return Next::kEnd;
  }
  if (plan_.known || !plan_.in_server) report_->hash = check_.object_hash();
  if (writer_ == nullptr) report_->object = plan_.old;
  if (!is_open_) {
    job_.progress->add(size_, 0);
    report_->unchanged = true;
  }
  return Next::kEnd;
}

// ---- before the first part

// False where it needs memory first.
Result<bool> CopyAttempt::prepare() {
  if (!leftover_) {
    is_resumable_ = job_.options.resume && to_caps_.resume && size_ > kBlockBytes && !plan_.in_server &&
                    !job_.options.dry_run;  // what is left of another copy is not touched
    set_part_bytes(to_caps_.is_local() ? kBlockBytes : plan_.write.part_bytes);
    RETURN_IF_ERROR(use_file_for(plan_.write.part_bytes));
    check_.restart(is_whole_blocks_);
  }
  if (is_resumable_ && to_caps_.list_uploads) {
    ASSIGN_OR_RETURN(const bool is_ready, look_for_leftover());
    if (!is_ready) return false;
  }
  // One part for a file is written once it is here: until then no file needs to be open.
  const bool opens_later = parts_ == 1 && to_caps_.is_local();
  if (!is_open_ && plan_.compare == Compare::kNothing && !opens_later) RETURN_IF_ERROR(open_writer());
  return true;
}

Result<bool> CopyAttempt::look_for_leftover() {
  if (!leftover_) {
    ASSIGN_OR_RETURN(leftover_, find_resumable(job_, plan_, to_caps_.sends_files ? INT64_MAX : most_in_memory()));
  }
  if (leftover_->writer == nullptr) {
    if (!leftover_->has_vanished || to_caps_.notes || job_.again) return true;
    is_upload_gone_ = true;
    return fail(ErrorCode::kNotFound, "{}: what was left of an earlier copy is gone", job_.to.url);
  }
  ASSIGN_OR_RETURN(const Buffer memory, acquire(kBlockBytes));
  if (!memory) return false;
  RETURN_IF_ERROR(use_file_for(leftover_->writer->part_bytes()));
  RETURN_IF_ERROR(take_over(std::move(*leftover_), memory.span()));
  return true;
}

// Empty where there is none now.
Result<Buffer> CopyAttempt::acquire(int64_t bytes) {
  ASSIGN_OR_RETURN(Buffer buffer, tools_.buffers.try_acquire(static_cast<size_t>(bytes)));
  needs_memory_ = !buffer && open_parts_.empty();
  return buffer;
}

void CopyAttempt::set_part_bytes(int64_t bytes) {
  part_bytes_ = bytes;
  parts_ = std::max<int64_t>(1, (size_ + bytes - 1) / bytes);
  is_whole_blocks_ = parts_ == 1 || bytes % kBlockBytes == 0;
  if (parts_ > 1 && !stop_) stop_.emplace(job_.stop);
}

// Parts that are too large for memory go from the source's file, be it in the page cache or not.
Status CopyAttempt::use_file_for(int64_t part_bytes) {
  if (!to_caps_.sends_files || plan_.in_server || part_bytes <= most_in_memory()) return {};
  if (!plan_.has_file) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: a part of {} does not fit into half of the memory for copies ({}): give --memory {}MiB "
                "(memory_bytes in Python)",
                job_.to.url, format_bytes(part_bytes), format_bytes(tools_.buffers.limit_bytes()),
                (2 * part_bytes + (1 << 20) - 1) >> 20);
  }
  plan_.by_file = true;
  return {};
}

Status CopyAttempt::open_writer() {
  const bool planned = decided_ > 0;  // parts were decided upon, but none was written
  is_open_ = true;
  if (job_.options.dry_run) return {};
  ASSIGN_OR_RETURN(writer_, job_.to.storage->open_write(job_.to.key, plan_.write));
  takes_notes_ = is_resumable_ && to_caps_.notes;
  if (to_caps_.is_local()) return {};
  int64_t bytes = writer_->part_bytes();
  if (!planned) RETURN_IF_ERROR(use_file_for(bytes));
  if (bytes == 0 || (bytes > most_in_memory() && !plan_.in_server && !plan_.by_file)) {
    in_sequence_ = true;  // the writer gathers such parts
    is_resumable_ = false;
    bytes = kBlockBytes;
  }
  if (bytes == part_bytes_ && !(planned && in_sequence_)) return {};
  if (planned) {
    failed_on_old_ = true;
    return fail(ErrorCode::kUnsupported, "parts of {} bytes, not {} as asked for", bytes, part_bytes_);
  }
  set_part_bytes(bytes);
  if (!is_whole_blocks_ || in_sequence_) plan_.compare = Compare::kNothing;
  check_.restart(is_whole_blocks_);
  return {};
}

// ---- what an earlier process left

Status CopyAttempt::take_over(ResumedWrite leftover, std::span<std::byte> memory) {
  writer_ = std::move(leftover.writer);
  is_open_ = took_over_ = true;
  takes_notes_ = to_caps_.notes;
  if (to_caps_.notes) return trust_noted(leftover.note, memory);
  sent_md5s_ = std::move(leftover.part_md5s);
  set_part_bytes(writer_->part_bytes());
  if (!is_whole_blocks_) plan_.compare = Compare::kNothing;
  check_.restart(is_whole_blocks_);
  if (sent_md5s_.empty()) return {};
  // The first part tells whether the upload is one of this content at all, or another program's.
  const auto& [offset, md5] = *sent_md5s_.begin();
  ASSIGN_OR_RETURN(const bool own, is_own_part(offset, md5, memory));
  if (own) return {};
  sent_md5s_.clear();
  RETURN_IF_ERROR(writer_->suspend());
  writer_.reset();
  is_open_ = took_over_ = false;
  return {};
}

Result<bool> CopyAttempt::is_own_part(int64_t offset, const std::string& md5, std::span<std::byte> memory) {
  const int64_t end = std::min(offset + part_bytes_, size_);
  Md5 found;
  for (int64_t at = offset; at < end; at += std::ssize(memory)) {
    if (job_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const auto piece = memory.first(static_cast<size_t>(std::min(std::ssize(memory), end - at)));
    RETURN_IF_ERROR(plan_.source->read_at(at, piece));
    found.update(piece);
  }
  return found.finish_hex() == md5;
}

// Reads back what the note speaks of. What is not as it should be is written again.
Status CopyAttempt::trust_noted(const ResumeNote& note, std::span<std::byte> memory) {
  const int64_t noted = std::min(note.parts, parts_);
  noted_ = noted;
  int64_t good = 0;
  for (; good < noted && !job_.stop.stop_requested(); ++good) {
    const Part part = part_at(good);
    const auto content = memory.first(static_cast<size_t>(part.size));
    if (!writer_->read_back(part.offset, content)) break;
    if (plan_.known && xxh3_128(content) != plan_.known->blocks[static_cast<size_t>(good)]) break;
    check_.take_resumed(content);
  }
  if (job_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  if (!plan_.known && (good < noted || check_.digest() != note.digest)) {
    log(LogLevel::kWarning, "{}: what an earlier copy left is not what its note says, and is written again",
        job_.to.url);
    good = 0;
    check_.restart(is_whole_blocks_);
  }
  next_ = decided_ = noted_ = good;
  finished_.start_at(good, good > 0 && !plan_.known ? note.digest : Hash128());
  report_->resumed_bytes = std::min(good * part_bytes_, size_);
  job_.progress->add(report_->resumed_bytes, 0);
  return {};
}

// ---- moving parts

Part CopyAttempt::part_at(int64_t index) const {
  const int64_t offset = index * part_bytes_;
  return {.offset = offset, .size = std::min(part_bytes_, size_ - offset)};
}

CopyScheduler::Next CopyAttempt::move_parts(std::span<Completion> completions) {
  for (Completion& completion : completions) {
    Status ended = take_completion(std::move(completion));
    // After an error or the caller's stop, the errors of stopped operations do not matter.
    if (status_ && !ended) status_ = std::move(ended);
  }
  if (!completions.empty()) write_note();
  for (;;) {
    needs_memory_ = false;
    if (status_ && job_.stop.stop_requested()) status_ = fail(ErrorCode::kCancelled, "stopped");
    if (status_) status_ = advance();
    if (!status_ && stop_) stop_->source.request_stop();
    if (in_flight_ > 0) return Next::kCall;
    if (!status_) return Next::kEnd;
    if (needs_memory_) return Next::kMemory;
    if (!is_decided()) continue;
    if (is_open_ && deferred_ == deferred_end_) return Next::kEnd;
    if (is_open_) continue;
    if (is_same()) return Next::kEnd;
    status_ = open_writer();  // all parts are the same, and still it is another object
  }
}

Status CopyAttempt::advance() {
  start_deferred();
  for (;;) {
    RETURN_IF_ERROR(decide_ready());
    const bool is_full = open_parts_.size() >= kMostOpenParts || is_far_ahead();
    if (next_ == parts_ || is_full || job_.stop.stop_requested()) return {};
    ASSIGN_OR_RETURN(const bool has_begun, begin_part());
    if (!has_begun) return {};
  }
}

// A note covers what comes before the slowest part: what runs ahead of it would be sent again after a kill.
bool CopyAttempt::is_far_ahead() const {
  return takes_notes_ && (next_ - finished_.before()) * part_bytes_ >= tools_.buffers.limit_bytes();
}

bool CopyAttempt::may_send_file() const {
  return writes_ < std::max(kFewestSends, most_in_memory() / part_bytes_) || tools_.sending < kMostSends;
}

// False where there is no memory now, or enough is sent from files.
Result<bool> CopyAttempt::begin_part() {
  Part part = part_at(next_);
  // In a dry run a block that has another hash is another one.
  const bool needs_no_look = job_.options.dry_run && plan_.known && plan_.compare == Compare::kRecorded;
  const bool is_recorded = plan_.compare == Compare::kRecorded &&
                           same_blocks(plan_.known->blocks, *plan_.old_hashes, part.offset, part.size);
  if (is_recorded || plan_.in_server || part.size == 0 || needs_no_look) {
    part.is_ready = true;
    if (plan_.in_server) part.action = PartAction::kFromSource;
    if (is_recorded) part.action = PartAction::kFromOld;
  } else if (plan_.by_file) {
    if (!may_send_file()) return false;
    ASSIGN_OR_RETURN(part.file, file_of(part));
    part.is_ready = true;
  } else {
    ASSIGN_OR_RETURN(part.buffer, acquire(part.size));
    if (!part.buffer) return false;
    if (plan_.compare == Compare::kOldContent && check_.old_is_known_content(part)) {
      part.action = PartAction::kFromOld;
      part.is_ready = true;
    } else if (job_.options.dry_run && plan_.known) {
      part.buffer = {};
      part.is_ready = true;  // it is another one, too
    }
  }
  const int64_t index = next_++;
  const Part& placed = open_parts_[index] = std::move(part);
  if (placed.is_ready) return true;
  submit({.tag = read_tag(index),
          .what = Operation::Read{plan_.source.get(), placed.offset, placed.buffer.span()},
          .stop = stop_token()},
         *job_.from.storage, parts_ == 1 && job_.from.storage->capabilities().is_local());
  return true;
}

Result<std::unique_ptr<FileRange>> CopyAttempt::file_of(const Part& part) const {
  return plan_.source->local_file()->file_range(part.offset, part.size);
}

// `here`: this thread does it. To hand a single part to other threads costs more than it gains.
void CopyAttempt::submit(const Operation& operation, Storage& storage, bool here) {
  ++in_flight_;
  if (!here) return storage.submit(std::span(&operation, 1), ended_);
  ended_.push({.tag = operation.tag, .status = perform_operation(operation)});
}

Status CopyAttempt::decide_ready() {
  for (;;) {
    const auto found = open_parts_.find(decided_);
    if (found == open_parts_.end() || !found->second.is_ready || (in_sequence_ && writes_ > 0)) return {};
    RETURN_IF_ERROR(decide(found->second));
  }
}

Status CopyAttempt::decide(Part& part) {
  if (part.buffer || part.file) {
    RETURN_IF_ERROR(check_.take(part, [&]() -> Status {
      if (!part.file) return plan_.source->read_at(part.offset, part.buffer.span());
      ASSIGN_OR_RETURN(part.file, file_of(part));
      return {};
    }));
  }
  if (part.action == PartAction::kWrite) {
    ASSIGN_OR_RETURN(part.action, check_.choose(part, sent_md5s_));
  }
  part.is_ready = false;
  if (const auto digest = plan_.in_server ? std::nullopt : check_.digest()) finished_.add_digest(*digest);
  if (part.action == PartAction::kFromOld && !is_open_) {
    open_parts_.erase(decided_);
    deferred_end_ = ++decided_;
    return {};
  }
  if (!is_open_) {
    RETURN_IF_ERROR(open_writer());
    start_deferred();
  }
  ++decided_;
  start(part);
  return {};
}

void CopyAttempt::start(Part& part) {
  const int64_t index = part.offset / part_bytes_;
  if (part.size == 0 || part.action == PartAction::kKeep || job_.options.dry_run) return finish(index);
  if (part.action == PartAction::kFromSource) return start_copy(part, *plan_.source);
  if (part.action == PartAction::kFromOld) return start_copy(part, *plan_.old_reader);
  ++writes_;
  Operation write{.tag = write_tag(index), .stop = stop_token()};
  if (part.file) {
    ++tools_.sending;
    write.what = Operation::Send{writer_.get(), part.offset, part.file.get(), part.file_crc32c, job_.progress};
  } else {
    write.what = Operation::Write{writer_.get(), part.offset, part.buffer.span()};
  }
  submit(write, *job_.to.storage, parts_ == 1 && !part.file);
}

// A step of the scheduler waits for the storage.
void CopyAttempt::start_copy(Part& part, const RandomReader& from) {
  part.buffer = {};
  part.file.reset();
  const auto copy = [this, tag = write_tag(part.offset / part_bytes_), &from, offset = part.offset, size = part.size] {
    Status status = stop_token().stop_requested() ? Status(fail(ErrorCode::kCancelled, "stopped before it was copied"))
                                                  : writer_->copy_range(from, offset, size, offset);
    ended_.push({.tag = tag, .status = std::move(status)});
    return CopyScheduler::Next::kCall;
  };
  ++in_flight_;
  ++copies_;
  if (parts_ > 1) return tools_.scheduler.resume(CopyScheduler::Weight::kHeavy, copy);
  copy();
}

void CopyAttempt::start_deferred() {
  if (!is_open_) return;
  while (deferred_ < deferred_end_ && copies_ < kMostCopies) {
    const int64_t index = deferred_++;
    Part& part = open_parts_[index] = part_at(index);
    part.action = PartAction::kFromOld;
    start(part);
  }
}

Status CopyAttempt::take_completion(Completion completion) {
  --in_flight_;
  const auto index = static_cast<int64_t>(completion.tag / 2);
  Part& part = open_parts_.at(index);
  if (completion.tag == read_tag(index)) {
    part.is_ready = true;
    return std::move(completion.status);
  }
  if (part.action == PartAction::kWrite) {
    --writes_;
    if (part.file) {
      --tools_.sending;
      RETURN_IF_ERROR(part.file->check_unchanged());  // before what the server makes of such bytes
    }
    is_upload_gone_ = is_upload_gone_ || is_gone(completion.status);
  } else {
    --copies_;
    const bool failed = !completion.status && completion.status.error().code() != ErrorCode::kCancelled;
    failed_on_old_ = failed_on_old_ || (failed && part.action == PartAction::kFromOld);
  }
  RETURN_IF_ERROR(std::move(completion.status));
  finish(index);
  return {};
}

void CopyAttempt::finish(int64_t index) {
  const auto found = open_parts_.find(index);
  const Part& part = found->second;
  switch (part.action) {
    case PartAction::kWrite:
      report_->moved_bytes += part.size;
      break;
    case PartAction::kFromSource:
    case PartAction::kFromOld:
      report_->copied_bytes += part.size;
      break;
    case PartAction::kKeep:
      report_->resumed_bytes += part.size;
      break;
  }
  const bool was_counted = part.action == PartAction::kWrite && part.file != nullptr && !job_.options.dry_run;
  if (!was_counted) job_.progress->add(part.size, 0);
  open_parts_.erase(found);
  finished_.add(index);
}

void CopyAttempt::write_note() {
  if (!takes_notes_ || writer_ == nullptr || finished_.before() == noted_) return;
  noted_ = finished_.before();
  const ResumeNote note{
      .identity = identity_of(job_, plan_, kBlockBytes), .parts = noted_, .digest = finished_.digest()};
  if (const Status noted = writer_->set_note(serialize_note(note)); !noted) {
    takes_notes_ = false;  // an old note is still true
    log(LogLevel::kInfo, "{}: a stop now would lose what was copied: {}", job_.to.url, noted.error().to_string());
  }
}

// ---- the end

Status CopyAttempt::commit() {
  auto committed = writer_->commit(job_.options.durability);
  is_upload_gone_ = is_gone(committed);
  if (!committed && to_caps_.notes) writer_.reset();  // a file that may not be on the disk must not be resumed
  if (!committed && committed.error().code() == ErrorCode::kPermissionDenied && plan_.write.keeps_source) {
    RETURN_IF_ERROR(read_source_tags(job_).map([](const ObjectTags&) {}));  // what the server may have refused
  }
  ASSIGN_OR_RETURN(report_->object, std::move(committed));
  if (const auto hashes = hashes_of(report_->object.version)) keep_sidecar(job_.to, *hashes);
  return {};
}

// What the sidecar of the new object says, where it is to have one.
std::optional<formats::BlockHashes> CopyAttempt::hashes_of(const std::string& version) const {
  const bool wanted = job_.options.sidecar && !to_caps_.is_local() && size_ > kBlockBytes && !version.empty();
  if (!wanted || (plan_.in_server && !plan_.known)) return std::nullopt;
  formats::BlockHashes hashes{.object_size = size_, .object_version = version, .block_bytes = kBlockBytes};
  hashes.object_hash = check_.object_hash();
  hashes.blocks = check_.blocks();
  return hashes;
}

// Leaves what was moved for the next copy, unless that would not resume it, or must not.
void CopyAttempt::give_up(const Error& error) {
  if (writer_ == nullptr) return;
  const bool is_passing = error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kUnavailable ||
                          error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPermissionDenied ||
                          error.code() == ErrorCode::kInternal;
  const bool has_something = to_caps_.notes ? noted_ > 0 : !finished_.is_empty() || !sent_md5s_.empty();
  if (is_resumable_ && is_passing && has_something && !failed_on_old_) {
    if (const Status left = writer_->suspend(); !left) log(LogLevel::kInfo, "{}", left.error().to_string());
  }
  writer_.reset();
}

std::optional<TransferOptions> CopyAttempt::options_of_another(const Result<TransferReport>& report) const {
  TransferOptions options = job_.options;
  if (!report && failed_on_old_) {
    log(LogLevel::kInfo, "{}: copied whole: {}", job_.to.url, report.error().to_string());
    options.delta = false;
    return options;
  }
  options.resume = options.resume && !is_open_;
  // Another process ended the upload first: one that resumed it too, or one that was killed while the
  // server completed it. What is there now may be what is to be copied.
  if (!report && is_upload_gone_ && is_resumable_ && !to_caps_.notes) {
    log(LogLevel::kInfo, "{}: copied again: {}", job_.to.url, report.error().to_string());
    options.target.reset();
    return options;
  }
  if (!report || !took_over_ || to_caps_.notes || !(job_.options.posix || to_caps_.headers)) return std::nullopt;
  // An upload has the attributes that it was begun with, and does not tell them.
  const auto now = job_.to.storage->stat(job_.to.key);
  if (!now) return std::nullopt;
  const bool same = same_attributes(*job_.to.storage, plan_.write.posix, now->posix) &&
                    has_properties(*job_.to.storage, *now, plan_.write, false);
  if (same) return std::nullopt;
  options.target = *now;
  return options;
}

}  // namespace millrace::sync
