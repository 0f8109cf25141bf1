// SPDX-License-Identifier: Apache-2.0
#pragma once

// Carries out the steps that decide() chooses for a path: copies, removals and conflicts. Records the results in the
// state. Many copies run at once on the engine of sync/. Calls come from one thread; the rest is thread-safe.

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

// One action, for a log. `kind`: "import", "export", "move", "delete_here", "delete_there", "conflict", "release",
// "fill" (a program opened a stub), "fail".
struct LinkEvent {
  std::string_view kind;
  std::string path;
  std::string text;  // the reason or the error
  int64_t size = 0;
  int64_t moved_bytes = 0;  // the part of `size` that went through this process
};

struct LinkCounts {
  int64_t imported = 0, imported_bytes = 0;
  int64_t exported = 0, exported_bytes = 0;
  int64_t moved = 0;        // renamed files, copied by the server
  int64_t moved_bytes = 0;  // bytes that went through this process, both ways
  int64_t deleted_here = 0, deleted_there = 0;
  int64_t conflicts = 0;
  int64_t failed = 0;
  int64_t postponed = 0;  // files that wait for the next sweep, such as unfinished ones
};

class Carrier {
 public:
  // All objects passed by reference must outlive the Carrier. `here` and `there` are the roots of the two sides.
  Carrier(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
          sync::TransferEngine& engine, std::function<void(const LinkEvent&)> on_event, std::stop_token stop);
  ~Carrier();

  // Decides what to do about a path and starts it; waits while too many copies are under way. Returns the step if it
  // must wait for the end of a sweep and was not done: kDeleteHere, kDeleteThere, or kExport. kExport waits when the
  // object to be replaced holds the only content of a released file, which may have another name now. Returns
  // kPostpone if the file is not finished, otherwise kNone. Errors: those of the state.
  [[nodiscard]] Result<Step> handle(const std::string& path, const std::optional<LinkFile>& known,
                                    const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there);
  // Handles a path that a watcher or an event named: asks both sides for it. Errors: also those of the two sides.
  [[nodiscard]] Result<Step> look_at(const std::string& path);
  // Handles a file that was just renamed to `path`: it need not have been quiet for a time.
  [[nodiscard]] Result<Step> look_at_renamed(const std::string& path);
  // Restores the content of a released file. REQUIRES: the state says that it is released.
  [[nodiscard]] Status bring_back(const LinkFile& file);
  // Handles the path as look_at() does, and replaces the object: no renamed file needs it.
  [[nodiscard]] Result<Step> replace(const std::string& path);
  // Restores the content of a released file that was renamed to `path`, so that its object is no longer needed.
  // Returns false if `path` is no such file. Blocks. Errors: those of the copy.
  [[nodiscard]] Result<bool> bring_renamed(const std::string& path);
  // Remove the file, or the object, if it is still the version that the state remembers.
  void remove_here(const std::string& path);
  void remove_there(const std::string& path);
  // Removes everything that has been in the trash longer than the link keeps it.
  [[nodiscard]] Status empty_trash() const { return trash_.empty(); }
  // Waits until all work that was started has ended. Errors: those of the state.
  [[nodiscard]] Status finish();

  // Counts one file that waits for the next sweep.
  void postpone();
  // Records that a path cannot be carried until somebody fixes it. Errors: those of the state.
  [[nodiscard]] Status refuse(const std::string& path, std::string_view reason);
  // Returns the counts since the last call.
  LinkCounts take_counts();
  // Returns when a new file reached the other side, among those since forget_carried(): 1 for the first to finish, 2
  // for the next, ... 0: it is not among them.
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
  Executor attributes_;  // reads the attributes of objects whose stubs any program may open

  Mutex mutex_;
  CondVar changed_;
  size_t at_work_ GUARDED_BY(mutex_) = 0;
  int64_t bytes_at_work_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> lost_races_ GUARDED_BY(mutex_);    // how often in a row, by path
  std::deque<std::function<void()>> later_ GUARDED_BY(mutex_);  // work for the calling thread, which may block
  Status failure_ GUARDED_BY(mutex_);
  LinkCounts counts_ GUARDED_BY(mutex_);
  std::map<std::string, int64_t> carried_ GUARDED_BY(mutex_);
};

}  // namespace millrace::link
