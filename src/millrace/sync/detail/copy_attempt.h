// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attempts once to copy an object by a plan: takes over the leftover of an earlier process, moves the parts, and
// commits. Threads of the scheduler (copy_scheduler.h) run the steps of the attempt, one step at a time.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/sync/detail/content_check.h"
#include "millrace/sync/detail/copy_plan.h"
#include "millrace/sync/detail/copy_scheduler.h"
#include "millrace/sync/detail/finished_parts.h"
#include "millrace/sync/detail/part.h"
#include "millrace/sync/detail/resumed_write.h"

namespace millrace::sync {

// Shared by all copies of an engine.
struct CopyTools {
  BufferPool& buffers;
  CopyScheduler& scheduler;
  std::atomic<int>& sending;  // number of parts being sent from files
};

class CopyAttempt {
 public:
  using Next = CopyScheduler::Next;

  // Completions go to `ended`; the caller passes them to the next go_on(). REQUIRES: `job` and `ended` outlive this;
  // job.progress is not null.
  CopyAttempt(const CopyTools& tools, const CopyJob& job, CopyPlan plan, CompletionQueue& ended);

  // Runs until it must wait. `completions`: the completions since the last step. Returns kCall to wait for more.
  // Blocks on disks and on single requests: opens, the search for a leftover, the commit.
  Next go_on(std::span<Completion> completions);
  // REQUIRES: go_on() returned kEnd. Call once.
  [[nodiscard]] Result<TransferReport> take_report() { return std::move(report_); }
  // Options for another attempt after `report`, if one may help. Each attempt gives up something that the previous one
  // did, so there are few.
  std::optional<TransferOptions> options_of_another(const Result<TransferReport>& report) const;

 private:
  enum class Phase { kPrepare, kMoveParts, kCommit, kCommitting };
  // The caller's stop and the first error set `source`.
  struct LinkedStop {
    explicit LinkedStop(const std::stop_token& caller) : with_caller(caller, [this] { source.request_stop(); }) {}
    std::stop_source source;
    const std::stop_callback<std::function<void()>> with_caller;
  };

  Part part_at(int64_t index) const;
  int64_t most_in_memory() const { return tools_.buffers.limit_bytes() / 2; }  // most bytes of one part
  bool is_decided() const { return decided_ == parts_ && open_parts_.empty(); }
  bool is_same() const { return plan_.old.size == size_ && plan_.same_attributes; }
  bool is_far_ahead() const;
  bool may_send_file() const;
  std::stop_token stop_token() const { return stop_ ? stop_->source.get_token() : job_.stop; }
  [[nodiscard]] Result<Buffer> acquire(int64_t bytes);

  [[nodiscard]] Result<bool> prepare();
  void set_part_bytes(int64_t bytes);
  [[nodiscard]] Status use_file_for(int64_t part_bytes);
  [[nodiscard]] Result<bool> look_for_leftover();
  [[nodiscard]] Status take_over(ResumedWrite leftover, std::span<std::byte> memory);
  [[nodiscard]] Status trust_noted(const ResumeNote& note, std::span<std::byte> memory);
  [[nodiscard]] Result<bool> is_own_part(int64_t offset, const std::string& md5, std::span<std::byte> memory);
  [[nodiscard]] Status open_writer();

  Next move_parts(std::span<Completion> completions);
  [[nodiscard]] Status advance();
  [[nodiscard]] Result<bool> begin_part();
  [[nodiscard]] Result<std::unique_ptr<FileRange>> file_of(const Part& part) const;
  [[nodiscard]] Status decide_ready();
  [[nodiscard]] Status decide(Part& part);
  void start(Part& part);
  void start_copy(Part& part, const RandomReader& from);
  void submit(const Operation& operation, Storage& storage, bool here);
  void start_deferred();
  [[nodiscard]] Status take_completion(Completion completion);
  void finish(int64_t index);
  void write_note();

  [[nodiscard]] Status commit();
  void give_up(const Error& error);
  Next end(Status status);
  std::optional<formats::BlockHashes> hashes_of(const std::string& version) const;

  const CopyTools tools_;
  const CopyJob& job_;
  CopyPlan plan_;
  CompletionQueue& ended_;
  const Capabilities to_caps_;
  const int64_t size_;
  Result<TransferReport> report_;
  Phase phase_ = Phase::kPrepare;
  std::optional<LinkedStop> stop_;               // set if several operations may have to be stopped
  Status status_;                                // the first error
  int in_flight_ = 0, writes_ = 0, copies_ = 0;  // operations; in_flight_ includes writes_ and copies_
  bool needs_memory_ = false;

  std::unique_ptr<Writer> writer_;        // never in a dry run
  std::optional<ResumedWrite> leftover_;  // set until it is taken over
  bool is_open_ = false;                  // bytes are written, or would be in a dry run
  int64_t part_bytes_ = 0;
  int64_t parts_ = 0;
  bool is_whole_blocks_ = false;  // every part is a whole number of blocks
  bool in_sequence_ = false;      // the writer takes ranges only in order
  bool is_resumable_ = false;
  bool took_over_ = false;                    // took over an upload that another process began
  bool failed_on_old_ = false;                // copying from the old target failed
  bool is_upload_gone_ = false;               // another process completed or ended the upload
  std::map<int64_t, std::string> sent_md5s_;  // MD5s of the parts of an upload taken over, by offset

  ContentCheck check_;
  int64_t next_ = 0;                         // the part to begin
  int64_t decided_ = 0;                      // number of decided parts
  std::map<int64_t, Part> open_parts_;       // begun and not finished
  int64_t deferred_ = 0, deferred_end_ = 0;  // parts equal to the old target, copied once another part is written
  FinishedParts finished_;
  bool takes_notes_ = false;
  int64_t noted_ = 0;  // number of parts that the last note covers
};

}  // namespace millrace::sync
