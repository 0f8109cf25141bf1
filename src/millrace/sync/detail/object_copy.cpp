// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/object_copy.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/storage/md5.h"
#include "millrace/sync/detail/attributes.h"
#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/detail/etag_match.h"
#include "millrace/sync/detail/resumed_write.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/detail/spooled_part.h"

// The way of a part:
//
//   begin    gets memory and is read; one that is known to be the same as in the old target needs neither, nor does one
//            that is sent from the source's file
//   process  in the order of the parts: hashed, checked, and decided upon
//   start    written from memory or the file, or copied by the storage from the source or from the old target, or kept
//   finish   counted; the memory goes back; the note says so once all before it are finished too
//
// The thread that called does all but reading, writing and copying. Nobody waits for memory while he holds some that
// nothing is done with, so copies that share a pool cannot block each other.

namespace millrace::sync {
namespace {

constexpr size_t kMostSlots = 64;  // parts without memory may be under way too, but not without end
// Parts that are sent from files at once, where no more memory is allowed than usual: those of a copy, and of a source
// that needs no file of ours as many until all copies together have enough. A kill loses them all.
constexpr int64_t kFewestFiles = 4;
constexpr int kEnoughFiles = 16;
constexpr int kMostCopies = 16;             // that are asked of a server at once
constexpr size_t kCachedBytes = 256 << 10;  // what is read, or compared, while the processor's cache holds it

enum class Action { kWrite, kFromSource, kFromOld, kKeep };

template <class T>
bool is_gone(const Result<T>& result) {
  return !result && result.error().code() == ErrorCode::kNotFound;
}

// A part under way.
struct Slot {
  Buffer buffer;                    // empty where the content does not pass here
  std::unique_ptr<FileRange> file;  // that it is sent from, instead
  uint32_t file_crc32c = 0;
  Action action = Action::kWrite;
  bool ready = false;  // to be processed
};

class ObjectCopy {
 public:
  ObjectCopy(const CopyTools& tools, const CopyJob& job, CopyPlan plan)
      : tools_(tools),
        job_(job),
        plan_(std::move(plan)),
        to_caps_(job.to.storage->capabilities()),
        size_(job.source.size),
        stop_with_caller_(job.stop, [this] { stop_.request_stop(); }) {}

  Result<TransferReport> run();
  // Of another copy that is worth it, after run() answered `report`.
  std::optional<TransferOptions> options_of_another(const Result<TransferReport>& report) const;

 private:
  struct Range {
    int64_t offset = 0;
    int64_t size = 0;
  };
  struct WrongBlock {
    size_t block = 0;
    Hash128 hash;
  };
  Range range_of(int64_t part) const {
    const int64_t offset = part * part_bytes_;
    return {offset, std::min(part_bytes_, size_ - offset)};
  }
  bool is_checked() const { return plan_.known && is_whole_blocks_; }  // each part against what the source should be
  bool is_decided() const { return processed_ == parts_ && slots_.empty(); }
  // A note covers what comes before the slowest part: what runs ahead of it would be sent again after a kill.
  bool is_far_ahead() const {
    return takes_notes_ && (next_ - finished_before_) * part_bytes_ >= tools_.buffers.limit_bytes();
  }
  bool is_same() const { return plan_.old.size == size_ && plan_.same_attributes; }

  Status prepare();
  Status take_over(ResumedWrite resumed);
  Status trust_noted(const ResumeNote& note);
  Result<bool> is_own_part(int64_t offset, const std::string& md5);
  Status open_writer();
  int64_t most_in_memory() const { return tools_.buffers.limit_bytes() / 2; }  // of one part
  bool may_send_file() const {
    return writes_ < std::max(kFewestFiles, most_in_memory() / part_bytes_) ||
           (plan_.has_file && tools_.sending < kEnoughFiles);
  }
  void use_file_for(int64_t part_bytes);
  Result<std::unique_ptr<FileRange>> file_of(const Range& range);
  void set_part_bytes(int64_t bytes);
  void restart_hash();

  Status transfer();
  Status advance();
  Result<bool> begin_part(bool may_wait);
  Status process_ready();
  Status process(int64_t part, Slot& slot);
  Status check_content(int64_t part, Slot& slot);
  Result<std::optional<WrongBlock>> find_wrong_block(int64_t part, Slot& slot);
  Status wrong_block(const WrongBlock& wrong) const;
  Status check_ended_blocks();
  template <class Take>
  Status for_each_piece(const Slot& slot, Take&& take);
  Result<std::string> md5_of(const Slot& slot);
  Result<Action> choose(int64_t part, const Slot& slot);
  bool old_is_known_content(int64_t part, const Buffer& buffer);
  bool old_is_same(int64_t part, const Buffer& buffer);
  void start(int64_t part);
  void start_copy(int64_t part, const RandomReader& from);
  void run_operation(const Operation& operation, Storage& storage);
  void start_deferred();
  Status take_completion(Completion completion);
  void finish(int64_t part);
  void write_note();

  Status commit();
  void give_up(const Error& error);
  std::optional<formats::BlockHashes> hashes_of(const std::string& version) const;

  const CopyTools tools_;
  const CopyJob& job_;
  CopyPlan plan_;
  const Capabilities to_caps_;
  const int64_t size_;
  TransferReport report_;

  std::stop_source stop_;  // of operations: set by the caller's stop, and after the first error
  const std::stop_callback<std::function<void()>> stop_with_caller_;
  CompletionQueue queue_;
  int in_flight_ = 0, writes_ = 0, copies_ = 0;  // writes_, copies_: of those in flight

  std::unique_ptr<Writer> writer_;  // never in a dry run
  bool is_open_ = false;            // something is written, or in a dry run would be
  int64_t part_bytes_ = 0;
  int64_t parts_ = 0;
  bool is_whole_blocks_ = false;
  bool in_sequence_ = false;  // the writer takes one range after the other
  bool is_resumable_ = false;
  bool took_over_ = false;       // an upload that another process began
  bool failed_on_old_ = false;   // the old target could not be copied from
  bool is_upload_gone_ = false;  // somebody else completed or ended it
  std::map<int64_t, std::string> part_md5s_;

  std::optional<ContentHash> hash_;
  size_t checked_blocks_ = 0;
  int64_t next_ = 0;       // the part to begin
  int64_t processed_ = 0;  // parts that were
  std::map<int64_t, Slot> slots_;
  // Parts [deferred_next_, deferred_end_) are the same as in the old target and are copied from it once something else
  // has to be written.
  int64_t deferred_next_ = 0, deferred_end_ = 0;

  int64_t finished_before_ = 0;  // all parts before it are finished
  std::set<int64_t> finished_;   // and these
  std::deque<Hash128> digests_;  // of the content up to the end of parts finished_before_ and on
  Hash128 finished_digest_;      // up to finished_before_
  int64_t noted_ = 0;
  bool takes_notes_ = false;
  std::vector<std::byte> scratch_;
};

Result<TransferReport> ObjectCopy::run() {
  if (job_.options.dry_run && plan_.compare == Compare::kNothing) {
    return foretold(*job_.from.storage, *job_.to.storage, size_);
  }
  Status moved = prepare();
  if (moved) moved = transfer();
  if (moved && writer_ != nullptr) moved = commit();
  if (!moved) {
    give_up(moved.error());
    return tl::unexpected<Error>(std::move(moved).error());
  }
  if (plan_.known) {
    report_.hash = plan_.known->object_hash;
  } else if (!plan_.in_server) {
    report_.hash = hash_->digest();
  }
  if (writer_ == nullptr) report_.object = plan_.old;
  if (is_open_) return std::move(report_);
  job_.progress->add(size_, 0);
  report_.unchanged = true;
  return std::move(report_);
}

Status ObjectCopy::prepare() {
  is_resumable_ = job_.options.resume && to_caps_.resume && size_ > kBlockBytes && !plan_.in_server &&
                  !job_.options.dry_run;  // what is left of another copy is not touched
  set_part_bytes(to_caps_.is_local() ? kBlockBytes : plan_.write.part_bytes);
  use_file_for(plan_.write.part_bytes);
  restart_hash();
  if (is_resumable_ && to_caps_.list_uploads) {
    auto resumed = find_resumable(job_, plan_, to_caps_.sends_files ? INT64_MAX : most_in_memory());
    if (resumed.writer != nullptr) {
      use_file_for(resumed.writer->part_bytes());
      RETURN_IF_ERROR(take_over(std::move(resumed)));
    } else if (resumed.has_vanished && !to_caps_.notes && !job_.again) {
      is_upload_gone_ = true;
      return fail(ErrorCode::kNotFound, "{}: what was left of an earlier copy is gone", job_.to.url);
    }
  }
  if (!is_open_ && plan_.compare == Compare::kNothing) return open_writer();
  return {};
}

// Parts that are too large for memory go from a file: the source, be it in the page cache or not, or a temporary one.
void ObjectCopy::use_file_for(int64_t part_bytes) {
  const bool must = to_caps_.sends_files && !plan_.in_server && part_bytes > most_in_memory();
  plan_.by_file = plan_.by_file || must;
}

Result<std::unique_ptr<FileRange>> ObjectCopy::file_of(const Range& range) {
  if (plan_.has_file) return as_local_file(*plan_.source)->file_range(range.offset, range.size);
  return spool_part(*job_.from.storage, *plan_.source, range.offset, range.size, tools_.buffers, job_.stop);
}

void ObjectCopy::set_part_bytes(int64_t bytes) {
  part_bytes_ = bytes;
  parts_ = std::max<int64_t>(1, (size_ + bytes - 1) / bytes);
  is_whole_blocks_ = parts_ == 1 || bytes % kBlockBytes == 0;
}

void ObjectCopy::restart_hash() {
  const bool keeps_blocks = !to_caps_.is_local() && size_ > kBlockBytes && job_.options.sidecar;
  hash_.emplace(!plan_.known, plan_.known || keeps_blocks || plan_.compare == Compare::kNewContent,
                plan_.checksum ? std::optional(plan_.checksum->kind) : std::nullopt);
  checked_blocks_ = 0;
}

Status ObjectCopy::open_writer() {
  const bool planned = processed_ > 0;  // parts were decided upon, but nothing was written
  is_open_ = true;
  if (job_.options.dry_run) return {};
  ASSIGN_OR_RETURN(writer_, job_.to.storage->open_write(job_.to.key, plan_.write));
  takes_notes_ = is_resumable_ && to_caps_.notes;
  if (to_caps_.is_local()) return {};
  int64_t bytes = writer_->part_bytes();
  if (!planned) use_file_for(bytes);
  if (bytes == 0 || (bytes > most_in_memory() && !plan_.in_server && !plan_.by_file)) {
    in_sequence_ = true;  // such parts are the writer's to gather
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
  restart_hash();
  return {};
}

// ---- what an earlier process left

Status ObjectCopy::take_over(ResumedWrite resumed) {
  writer_ = std::move(resumed.writer);
  is_open_ = took_over_ = true;
  takes_notes_ = to_caps_.notes;
  if (to_caps_.notes) return trust_noted(resumed.note);
  part_md5s_ = std::move(resumed.part_md5s);
  set_part_bytes(writer_->part_bytes());
  if (!is_whole_blocks_) plan_.compare = Compare::kNothing;
  restart_hash();
  if (part_md5s_.empty()) return {};
  // The first part tells whether the upload is one of this content at all, or somebody else's.
  const auto& [offset, md5] = *part_md5s_.begin();
  ASSIGN_OR_RETURN(const bool own, is_own_part(offset, md5));
  if (own) return {};
  part_md5s_.clear();
  RETURN_IF_ERROR(writer_->suspend());
  writer_.reset();
  is_open_ = took_over_ = false;
  return {};
}

Result<bool> ObjectCopy::is_own_part(int64_t offset, const std::string& md5) {
  const Range range = range_of(offset / part_bytes_);
  Slot slot;
  if (plan_.by_file) {
    ASSIGN_OR_RETURN(slot.file, file_of(range));
  } else {
    ASSIGN_OR_RETURN(slot.buffer, tools_.buffers.acquire(static_cast<size_t>(range.size), job_.stop));
    RETURN_IF_ERROR(plan_.source->read_at(offset, slot.buffer.span()));
  }
  ASSIGN_OR_RETURN(const std::string found, md5_of(slot));
  return found == md5;
}

// Reads back what the note speaks of. What is not as it should be is written again.
Status ObjectCopy::trust_noted(const ResumeNote& note) {
  const int64_t noted = std::min(note.parts, parts_);
  noted_ = noted;
  ASSIGN_OR_RETURN(const Buffer buffer, tools_.buffers.acquire(static_cast<size_t>(part_bytes_), job_.stop));
  int64_t good = 0;
  for (; good < noted && !job_.stop.stop_requested(); ++good) {
    const auto [offset, size] = range_of(good);
    const auto content = buffer.span().first(static_cast<size_t>(size));
    if (!writer_->read_back(offset, content)) break;
    if (plan_.known && xxh3_128(content) != plan_.known->blocks[static_cast<size_t>(good)]) break;
    if (!plan_.known) hash_->update(content);
  }
  if (job_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  if (!plan_.known && (good < noted || hash_->digest() != note.digest)) {
    log(LogLevel::kWarning, "{}: what an earlier copy left is not what its note says, and is written again",
        job_.to.url);
    good = 0;
    restart_hash();
  }
  next_ = processed_ = finished_before_ = noted_ = good;
  if (good > 0 && !plan_.known) finished_digest_ = note.digest;
  report_.resumed_bytes = std::min(good * part_bytes_, size_);
  job_.progress->add(report_.resumed_bytes, 0);
  return {};
}

// ---- moving parts

Status ObjectCopy::transfer() {
  Status status;
  for (;;) {
    if (status && job_.stop.stop_requested()) status = fail(ErrorCode::kCancelled, "stopped");
    if (status) status = advance();
    if (!status) stop_.request_stop();
    if (in_flight_ == 0) {
      if (!status) return status;
      if (!is_decided()) continue;
      if (!is_open_) {
        if (is_same()) return status;
        status = open_writer();  // all blocks are the same, and still it is another object
      } else if (deferred_next_ == deferred_end_) {
        return status;
      }
      continue;
    }
    Status ended = take_completion(queue_.wait());
    while (auto completion = queue_.try_pop()) {
      Status other = take_completion(std::move(*completion));
      if (ended) ended = std::move(other);
    }
    // What was stopped because of an error, or because of the caller, tells nothing.
    if (status && !ended) status = std::move(ended);
    write_note();
  }
}

Status ObjectCopy::advance() {
  start_deferred();
  for (;;) {
    RETURN_IF_ERROR(process_ready());
    if (next_ == parts_ || slots_.size() >= kMostSlots || is_far_ahead() || job_.stop.stop_requested()) return {};
    ASSIGN_OR_RETURN(const bool begun, begin_part(slots_.empty()));
    if (!begun) return {};
  }
}

// False where there is no memory now.
Result<bool> ObjectCopy::begin_part(bool may_wait) {
  const int64_t part = next_;
  const auto [offset, size] = range_of(part);
  // Of a dry run, a block that is another one by its hash.
  const bool needs_no_look = job_.options.dry_run && plan_.known && plan_.compare == Compare::kRecorded;
  Slot slot;
  if (plan_.compare == Compare::kRecorded && same_blocks(plan_.known->blocks, *plan_.old_hashes, offset, size)) {
    slot = {.action = Action::kFromOld, .ready = true};
  } else if (plan_.in_server) {
    slot = {.action = Action::kFromSource, .ready = true};
  } else if (size == 0 || needs_no_look) {
    slot.ready = true;
  } else if (plan_.by_file) {
    if (!may_send_file()) return false;
    ASSIGN_OR_RETURN(slot.file, file_of({offset, size}));
    slot.ready = true;
  } else {
    const auto bytes = static_cast<size_t>(size);
    ASSIGN_OR_RETURN(slot.buffer,
                     may_wait ? tools_.buffers.acquire(bytes, job_.stop) : tools_.buffers.try_acquire(bytes));
    if (!slot.buffer) return false;
    if (plan_.compare == Compare::kOldContent && old_is_known_content(part, slot.buffer)) {
      slot.action = Action::kFromOld;
      slot.ready = true;
    } else if (job_.options.dry_run && plan_.known) {
      slot = {.ready = true};  // another one, too
    }
  }
  ++next_;
  Slot& placed = slots_[part] = std::move(slot);
  if (!placed.ready) {
    run_operation({.tag = static_cast<uint64_t>(part) * 2,
                   .what = Operation::Read{plan_.source.get(), offset, placed.buffer.span()},
                   .stop = stop_.get_token()},
                  *job_.from.storage);
  }
  return true;
}

// One part alone is done here: to hand it to other threads would cost more than it gains.
void ObjectCopy::run_operation(const Operation& operation, Storage& storage) {
  ++in_flight_;
  const bool sends = std::holds_alternative<Operation::Send>(operation.what);
  if (parts_ > 1 || sends) return storage.submit(std::span(&operation, 1), queue_);
  queue_.push({.tag = operation.tag, .status = perform_operation(operation)});
}

Status ObjectCopy::process_ready() {
  for (;;) {
    const auto found = slots_.find(processed_);
    if (found == slots_.end() || !found->second.ready || (in_sequence_ && writes_ > 0)) return {};
    RETURN_IF_ERROR(process(processed_, found->second));
  }
}

Status ObjectCopy::process(int64_t part, Slot& slot) {
  if (slot.buffer || slot.file) RETURN_IF_ERROR(check_content(part, slot));
  if (slot.action == Action::kWrite) {
    ASSIGN_OR_RETURN(slot.action, choose(part, slot));
  }
  slot.ready = false;
  if (!plan_.known && !plan_.in_server) digests_.push_back(hash_->digest());
  if (slot.action == Action::kFromOld && !is_open_) {
    deferred_end_ = ++processed_;
    slots_.erase(part);
    return {};
  }
  if (!is_open_) {
    RETURN_IF_ERROR(open_writer());
    start_deferred();
  }
  ++processed_;
  start(part);
  return {};
}

// Hashes the part; where the source's hashes are known, holds it against them before anything is done with it.
Status ObjectCopy::check_content(int64_t part, Slot& slot) {
  if (!is_checked()) {
    RETURN_IF_ERROR(for_each_piece(slot, [&](std::span<const std::byte> piece) {
      hash_->update(piece);
      if (slot.file && to_caps_.file_checksums) slot.file_crc32c = crc32c(piece, slot.file_crc32c);
    }));
    if (part + 1 == parts_) hash_->finish();
    if (part + 1 == parts_ && plan_.checksum && hash_->checksum() != plan_.checksum) {
      return fail(ErrorCode::kCorruption, "what came of {} has the {} {:x}, and the server keeps {:x}",
                  plan_.source->name(), checksum_name(plan_.checksum->kind), hash_->checksum()->value,
                  plan_.checksum->value);
    }
    return check_ended_blocks();
  }
  if (slot.action == Action::kFromOld) return {};  // was compared with them
  ASSIGN_OR_RETURN(std::optional<WrongBlock> wrong, find_wrong_block(part, slot));
  if (!wrong) return {};
  log(LogLevel::kWarning, "{}: block {} came with other bytes than it has, and is read again", job_.from.url,
      wrong->block);
  if (slot.file) {
    ASSIGN_OR_RETURN(slot.file, file_of(range_of(part)));
  } else {
    RETURN_IF_ERROR(plan_.source->read_at(range_of(part).offset, slot.buffer.span()));
  }
  ASSIGN_OR_RETURN(wrong, find_wrong_block(part, slot));
  return wrong ? wrong_block(*wrong) : Status();
}

// REQUIRES: is_checked().
Result<std::optional<ObjectCopy::WrongBlock>> ObjectCopy::find_wrong_block(int64_t part, Slot& slot) {
  ContentHash content(false, true);
  slot.file_crc32c = 0;
  RETURN_IF_ERROR(for_each_piece(slot, [&](std::span<const std::byte> piece) {
    content.update(piece);
    if (slot.file && to_caps_.file_checksums) slot.file_crc32c = crc32c(piece, slot.file_crc32c);
  }));
  content.finish();
  const auto block = static_cast<size_t>(range_of(part).offset / kBlockBytes);
  for (size_t i = 0; i < content.blocks().size(); ++i) {
    if (content.blocks()[i] != plan_.known->blocks[block + i]) return WrongBlock{block + i, content.blocks()[i]};
  }
  return std::nullopt;
}

Status ObjectCopy::wrong_block(const WrongBlock& wrong) const {
  return fail(ErrorCode::kCorruption, "block {} of {} has the hash {}, not {} as {} says", wrong.block,
              plan_.source->name(), to_hex(wrong.hash), to_hex(plan_.known->blocks[wrong.block]),
              sidecar_key(job_.from.key));
}

Status ObjectCopy::check_ended_blocks() {
  if (!plan_.known) return {};
  for (; checked_blocks_ < hash_->blocks().size(); ++checked_blocks_) {
    if (hash_->blocks()[checked_blocks_] == plan_.known->blocks[checked_blocks_]) continue;
    return wrong_block({checked_blocks_, hash_->blocks()[checked_blocks_]});
  }
  return {};
}

// Of what is in a file, small pieces, which stay in the page cache for those that follow.
template <class Take>
Status ObjectCopy::for_each_piece(const Slot& slot, Take&& take) {
  if (!slot.file) {
    take(slot.buffer.span());
    return {};
  }
  const int64_t size = slot.file->size();
  scratch_.resize(kCachedBytes);
  for (int64_t at = 0; at < size; at += std::ssize(scratch_)) {
    const auto piece = std::span(scratch_).first(static_cast<size_t>(std::min(size - at, std::ssize(scratch_))));
    RETURN_IF_ERROR(slot.file->read_at(at, piece));
    take(piece);
  }
  return {};
}

Result<std::string> ObjectCopy::md5_of(const Slot& slot) {
  Md5 md5;
  RETURN_IF_ERROR(for_each_piece(slot, [&](std::span<const std::byte> piece) { md5.update(piece); }));
  return md5.finish_hex();
}

Result<Action> ObjectCopy::choose(int64_t part, const Slot& slot) {
  const auto [offset, size] = range_of(part);
  if (const auto held = part_md5s_.find(offset); held != part_md5s_.end()) {
    ASSIGN_OR_RETURN(const std::string md5, md5_of(slot));
    if (md5 == held->second) return Action::kKeep;
  }
  if (plan_.compare == Compare::kNewContent && same_blocks(hash_->blocks(), *plan_.old_hashes, offset, size)) {
    return Action::kFromOld;
  }
  if (plan_.compare == Compare::kBothContents && old_is_same(part, slot.buffer)) return Action::kFromOld;
  return Action::kWrite;
}

// An old target that cannot be read is another one.
bool ObjectCopy::old_is_known_content(int64_t part, const Buffer& buffer) {
  const auto [offset, size] = range_of(part);
  if (plan_.old.size < offset + size || !plan_.old_reader->read_at(offset, buffer.span())) return false;
  return xxh3_128(buffer.span()) == plan_.known->blocks[static_cast<size_t>(offset / kBlockBytes)];
}

bool ObjectCopy::old_is_same(int64_t part, const Buffer& buffer) {
  const auto [offset, size] = range_of(part);
  if (plan_.old.size < offset + size) return false;
  scratch_.resize(kCachedBytes);
  for (int64_t at = 0; at < size; at += std::ssize(scratch_)) {
    const auto bytes = static_cast<size_t>(std::min(size - at, std::ssize(scratch_)));
    if (!plan_.old_reader->read_at(offset + at, std::span(scratch_).first(bytes))) return false;
    if (std::memcmp(scratch_.data(), buffer.data() + at, bytes) != 0) return false;
  }
  return true;
}

void ObjectCopy::start(int64_t part) {
  Slot& slot = slots_.at(part);
  const auto [offset, size] = range_of(part);
  if (size == 0 || slot.action == Action::kKeep || job_.options.dry_run) return finish(part);
  if (slot.action == Action::kFromSource) return start_copy(part, *plan_.source);
  if (slot.action == Action::kFromOld) return start_copy(part, *plan_.old_reader);
  ++writes_;
  if (slot.file) ++tools_.sending;
  Operation write{.tag = static_cast<uint64_t>(part) * 2 + 1, .stop = stop_.get_token()};
  if (slot.file) {
    write.what = Operation::Send{writer_.get(), offset, slot.file.get(), slot.file_crc32c, job_.progress};
  } else {
    write.what = Operation::Write{writer_.get(), offset, slot.buffer.span()};
  }
  run_operation(write, *job_.to.storage);
}

void ObjectCopy::start_copy(int64_t part, const RandomReader& from) {
  slots_.at(part).buffer = {};
  slots_.at(part).file.reset();
  const auto copy = [this, part, &from] {
    const auto [offset, size] = range_of(part);
    Status status = stop_.stop_requested() ? Status(fail(ErrorCode::kCancelled, "stopped before it was copied"))
                                           : writer_->copy_range(from, offset, size, offset);
    queue_.push({.tag = static_cast<uint64_t>(part) * 2 + 1, .status = std::move(status)});
  };
  ++in_flight_;
  ++copies_;
  if (parts_ == 1) {
    copy();
  } else {
    tools_.blocking.submit(copy);
  }
}

void ObjectCopy::start_deferred() {
  if (!is_open_) return;
  while (deferred_next_ < deferred_end_ && copies_ < kMostCopies) {
    const int64_t part = deferred_next_++;
    slots_[part] = {.action = Action::kFromOld};
    start(part);
  }
}

Status ObjectCopy::take_completion(Completion completion) {
  --in_flight_;
  const auto part = static_cast<int64_t>(completion.tag / 2);
  Slot& slot = slots_.at(part);
  if (completion.tag % 2 == 0) {
    slot.ready = true;
    return std::move(completion.status);
  }
  if (slot.action == Action::kWrite) {
    --writes_;
    if (slot.file) {
      --tools_.sending;
      RETURN_IF_ERROR(slot.file->check_unchanged());  // before what the server makes of such bytes
    }
    is_upload_gone_ = is_upload_gone_ || is_gone(completion.status);
  } else {
    --copies_;
    if (!completion.status && slot.action == Action::kFromOld &&
        completion.status.error().code() != ErrorCode::kCancelled) {
      failed_on_old_ = true;
    }
  }
  RETURN_IF_ERROR(std::move(completion.status));
  finish(part);
  return {};
}

void ObjectCopy::finish(int64_t part) {
  const auto found = slots_.find(part);
  const int64_t size = range_of(part).size;
  switch (found->second.action) {
    case Action::kWrite:
      report_.moved_bytes += size;
      break;
    case Action::kFromSource:
    case Action::kFromOld:
      report_.copied_bytes += size;
      break;
    case Action::kKeep:
      report_.resumed_bytes += size;
      break;
  }
  const bool was_counted =
      found->second.action == Action::kWrite && found->second.file != nullptr && !job_.options.dry_run;
  if (!was_counted) job_.progress->add(size, 0);
  slots_.erase(found);
  finished_.insert(part);
  while (!finished_.empty() && *finished_.begin() == finished_before_) {
    finished_.erase(finished_.begin());
    ++finished_before_;
    if (digests_.empty()) continue;
    finished_digest_ = digests_.front();
    digests_.pop_front();
  }
}

void ObjectCopy::write_note() {
  if (!takes_notes_ || writer_ == nullptr || finished_before_ == noted_) return;
  const ResumeNote note{
      .identity = identity_of(job_, plan_, kBlockBytes), .parts = finished_before_, .digest = finished_digest_};
  noted_ = finished_before_;
  if (const Status noted = writer_->set_note(serialize_note(note)); !noted) {
    takes_notes_ = false;  // an old note is still true
    log(LogLevel::kInfo, "{}: a stop now would lose what was copied: {}", job_.to.url, noted.error().to_string());
  }
}

// ---- the end

Status ObjectCopy::commit() {
  auto committed = writer_->commit(job_.options.durability);
  is_upload_gone_ = is_gone(committed);
  if (!committed && to_caps_.notes) writer_.reset();  // a file that may not be on the disk is not to be gone on with
  ASSIGN_OR_RETURN(report_.object, std::move(committed));
  if (const auto hashes = hashes_of(report_.object.version)) {
    // The object is right without them; the next copy of it only has less to go by.
    const Status stored = store_sidecar(*job_.to.storage, job_.to.key, *hashes);
    if (!stored) log(LogLevel::kWarning, "{}: no block hashes are kept: {}", job_.to.url, stored.error().to_string());
  }
  return {};
}

// What the sidecar of the new object says, where it is to have one.
std::optional<formats::BlockHashes> ObjectCopy::hashes_of(const std::string& version) const {
  const bool wanted = job_.options.sidecar && !to_caps_.is_local() && size_ > kBlockBytes && !version.empty();
  if (!wanted || (plan_.in_server && !plan_.known)) return std::nullopt;
  formats::BlockHashes hashes{.object_size = size_, .object_version = version, .block_bytes = kBlockBytes};
  hashes.object_hash = plan_.known ? plan_.known->object_hash : hash_->digest();
  hashes.blocks = plan_.known ? plan_.known->blocks : hash_->blocks();
  return hashes;
}

// What was moved waits for the next copy, unless that would not go on with it, or must not.
void ObjectCopy::give_up(const Error& error) {
  if (writer_ == nullptr) return;
  const bool is_passing = error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kUnavailable ||
                          error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPermissionDenied ||
                          error.code() == ErrorCode::kInternal;
  const bool has_something =
      to_caps_.notes ? noted_ > 0 : finished_before_ > 0 || !finished_.empty() || !part_md5s_.empty();
  if (is_resumable_ && is_passing && has_something && !failed_on_old_) {
    if (const Status left = writer_->suspend(); !left) log(LogLevel::kInfo, "{}", left.error().to_string());
  }
  writer_.reset();
}

std::optional<TransferOptions> ObjectCopy::options_of_another(const Result<TransferReport>& report) const {
  TransferOptions options = job_.options;
  if (!report && failed_on_old_) {
    log(LogLevel::kInfo, "{}: copied whole: {}", job_.to.url, report.error().to_string());
    options.delta = false;
    return options;
  }
  options.resume = options.resume && !is_open_;
  // Somebody else was done with the upload first: a process that goes on with it too, or one that was killed while the
  // server completed it. What is there now may be what is to be copied.
  if (!report && is_upload_gone_ && is_resumable_ && !to_caps_.notes) {
    log(LogLevel::kInfo, "{}: copied again: {}", job_.to.url, report.error().to_string());
    options.target.reset();
    return options;
  }
  if (!report || !took_over_ || to_caps_.notes || !job_.options.posix) return std::nullopt;
  // An upload has the attributes that it was begun with, and does not tell them.
  const auto now = job_.to.storage->stat(job_.to.key);
  if (!now || same_attributes(*job_.to.storage, plan_.write.posix, now->posix)) return std::nullopt;
  options.target = *now;
  return options;
}

// Somebody else's upload, or one of ours that was killed before it left block hashes, may be what is to be copied.
Result<std::optional<TransferReport>> prove_unchanged(const CopyJob& job, const CopyPlan& plan) {
  if (plan.etag.empty()) return std::nullopt;
  const bool of_source = plan.old_reader != nullptr;
  ASSIGN_OR_RETURN(auto proven, prove_by_etag(of_source ? *plan.old_reader : *plan.source, plan.etag, job.stop));
  if (!proven) return std::nullopt;
  if (!of_source && job.options.sidecar && !job.options.dry_run && !proven->blocks.empty()) {
    const formats::BlockHashes hashes{.object_size = plan.old.size,
                                      .object_version = plan.old.version,
                                      .object_hash = proven->hash,
                                      .block_bytes = kBlockBytes,
                                      .blocks = std::move(proven->blocks)};
    const Status stored = store_sidecar(*job.to.storage, job.to.key, hashes);
    if (!stored) log(LogLevel::kWarning, "{}: no block hashes are kept: {}", job.to.url, stored.error().to_string());
  }
  job.progress->add(plan.old.size, 0);
  return TransferReport{.object = plan.old, .hash = proven->hash, .unchanged = true};
}

}  // namespace

Result<TransferReport> copy_object(const CopyTools& tools, const CopyJob& job) {
  ASSIGN_OR_RETURN(CopyPlan plan, plan_copy(job, job.options.delta));
  ASSIGN_OR_RETURN(auto unchanged, prove_unchanged(job, plan));
  if (unchanged) return *std::move(unchanged);
  ObjectCopy copy(tools, job, std::move(plan));
  auto report = copy.run();
  const auto options = copy.options_of_another(report);
  if (!options) return report;
  job.progress->add(-job.progress->snapshot().bytes, 0);
  // Each goes without something that the one before it did, so there are few.
  const CopyJob another{job.from, job.source, job.to, *options, job.stop, job.progress, true};
  auto repeated = copy_object(tools, another);
  if (report && repeated) {
    repeated->moved_bytes += report->moved_bytes;
    repeated->resumed_bytes += report->resumed_bytes;
  }
  return repeated;
}

}  // namespace millrace::sync
