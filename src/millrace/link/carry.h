// SPDX-License-Identifier: Apache-2.0
#pragma once

// Does what decide() says of a path: copies, removals, conflicts, and what the state learns from them. Copies run many
// at once on the engine of sync/. Calls come from one thread; the rest is thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/link/decide.h"
#include "millrace/link/trash.h"
#include "millrace/sync/transfer.h"

namespace millrace::link {

// What was done, for a log: "import", "export", "move", "delete_here", "delete_there", "conflict",
// "release", "fill" (a program opened a stub), "fail".
struct LinkEvent {
  std::string_view kind;
  std::string path;
  std::string text;  // the reason or the error
  int64_t size = 0;
  int64_t moved_bytes = 0;  // what of that went through this process
};

struct LinkCounts {
  int64_t imported = 0, imported_bytes = 0;
  int64_t exported = 0, exported_bytes = 0;
  int64_t moved = 0;        // renamed files, copied by the server
  int64_t moved_bytes = 0;  // that went through this process, both ways
  int64_t deleted_here = 0, deleted_there = 0;
  int64_t conflicts = 0;
  int64_t failed = 0;
  int64_t postponed = 0;  // files that are not finished yet
};

class Carrier {
 public:
  // All of these outlive it. `here` and `there` are the roots of the two sides.
  Carrier(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
          sync::TransferEngine& engine, std::function<void(const LinkEvent&)> on_event, std::stop_token stop);
  ~Carrier();

  // Decides about a path and starts what follows; waits while too many copies are under way. What must wait for the end
  // of a sweep is returned and not done: kDeleteHere, kDeleteThere, and kExport where the object that would be replaced
  // is all that a released file has left, which may have another name now. kPostpone: the file is not finished. Else
  // kNone. Errors: those of the state.
  [[nodiscard]] Result<Step> handle(const std::string& path, const std::optional<LinkFile>& known,
                                    const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there);
  // The same for a path that a watcher or an event named: both sides are asked. Errors: also those of the two sides.
  [[nodiscard]] Result<Step> look_at(const std::string& path);
  // The same for a file that was renamed to here just now: it need not have been quiet for a time.
  [[nodiscard]] Result<Step> look_at_renamed(const std::string& path);
  // Brings the content of a released file back. REQUIRES: it is released, as the state has it.
  [[nodiscard]] Status bring_back(const LinkFile& file);
  // As look_at(), and the object is replaced: no renamed file needs it.
  [[nodiscard]] Result<Step> replace(const std::string& path);
  // Brings the content of a released file that was renamed to `path`, so that its object is needed no more. False:
  // there is none. Blocks. Errors: those of the copy.
  [[nodiscard]] Result<bool> bring_renamed(const std::string& path);
  // Removes the file, or the object, if it is still what the state remembers.
  void remove_here(const std::string& path);
  void remove_there(const std::string& path);
  // What lies there longer than the link says.
  [[nodiscard]] Status empty_trash() const { return trash_.empty(); }
  // Waits until everything that was started has ended. Errors: those of the state.
  [[nodiscard]] Status finish();

  // Something waits for the next sweep.
  void postpone();
  // A path cannot be carried until somebody mends it. Errors: those of the state.
  [[nodiscard]] Status refuse(const std::string& path, std::string_view reason);
  // Since the last call.
  LinkCounts take_counts();
  // New files that came to the other side since forget_carried(), in the order of their end: 1, 2, ... 0: not one.
  int64_t order_carried(const std::string& path);
  void forget_carried();

 private:
  struct Work;
  using WorkPtr = std::shared_ptr<Work>;

  [[nodiscard]] Result<Step> start(const WorkPtr& work);
  [[nodiscard]] Result<Step> leave_behind_link(const Work& work, const std::string& link);
  void keep_time(const Work& work, sync::TransferReport& report) const;
  [[nodiscard]] Result<Step> handle(const std::string& path, const std::optional<LinkFile>& known,
                                    const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there,
                                    bool may_replace);
  [[nodiscard]] Result<Step> look_at(const std::string& path, bool may_replace);
  std::optional<LinkFile> state_by_looking(const LinkFile& known, const ObjectInfo& here) const;
  [[nodiscard]] Result<std::optional<LinkFile>> origin_of(const std::string& path, const std::optional<LinkFile>& known,
                                                          const ObjectInfo& here);
  bool stays_stub(const Work& work) const;
  bool is_being_filled(const std::string& path) const;
  [[nodiscard]] Status import_stub(const Work& work);
  void start_import(const WorkPtr& work);
  void start_export(const WorkPtr& work);
  void start_compare(const WorkPtr& work);
  bool start_move(const WorkPtr& work);
  void start_copy(const WorkPtr& work, sync::CopyRequest request, std::function<void(sync::TransferReport&)> done);
  void remove(const std::string& path, Status (Carrier::*what)(const LinkFile&));
  [[nodiscard]] Status remove_file(const LinkFile& known);
  [[nodiscard]] Status remove_object(const LinkFile& known);
  void compare_renamed(const WorkPtr& work, const std::function<void()>& differs);
  void settle_conflict(const WorkPtr& work);
  [[nodiscard]] Status give_other_name(Work& work);
  [[nodiscard]] Status keep_content_of(const LinkFile& file);
  [[nodiscard]] Status note_conflict(Work& work, std::string outcome);
  void note_carried(const Work& work) REQUIRES_LOCK(mutex_);
  void remember(const Work& work, sync::RecordedVersion here, std::string there, std::optional<Hash128> hash);
  void take_state(const Status& written);
  bool changed_here(const Work& work) const;
  bool lost_race(const Work& work, ErrorCode code);
  void ended(const WorkPtr& work, const Status& status);
  bool is_full() const REQUIRES_LOCK(mutex_);
  void take_place(Work& work);
  void run_later();
  void tell(std::string_view kind, const std::string& path, std::string_view text, int64_t size = 0, int64_t moved = 0);
  std::string local_path(std::string_view path) const;

  const LinkConfig& config_;
  const Location& here_;
  const Location& there_;
  LinkState& state_;
  sync::TransferEngine& engine_;
  const Trash trash_;
  const std::function<void(const LinkEvent&)> on_event_;
  const std::stop_token stop_;
  std::string renamed_;  // the path of look_at_renamed(), while it runs
  Executor attributes_;  // asks for those of objects whose stubs any program may open

  Mutex mutex_;
  CondVar changed_;
  size_t at_work_ GUARDED_BY(mutex_) = 0;
  int64_t bytes_at_work_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> lost_races_ GUARDED_BY(mutex_);    // in a row, by path
  std::deque<std::function<void()>> later_ GUARDED_BY(mutex_);  // for the calling thread, which may wait
  Status failure_ GUARDED_BY(mutex_);
  LinkCounts counts_ GUARDED_BY(mutex_);
  std::map<std::string, int64_t> carried_ GUARDED_BY(mutex_);
};

}  // namespace millrace::link
