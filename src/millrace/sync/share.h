// SPDX-License-Identifier: Apache-2.0
#pragma once

// How several tasks (processes on any nodes) share the keys of one tree without a coordinator. A folder of small
// objects beside the target, the board, has one for each range that is worked on and one for each that is done
// (docs/format/shares.md). A task without work takes the rear half of another one's range, or goes on with that of a
// task that was not heard of for a time. What may go wrong (two tasks take one range, a server that loses conditional
// writes) makes work be done twice and never be left out: a range is shortened after the taken part is on the board,
// and at the end the ranges that are done must cover everything.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/url.h"
#include "millrace/sync/key_range.h"

namespace millrace::sync {

// An ASCII path strictly between `after` and `until`, to list from; "" if none exists. `until` "": no end.
std::string path_between(std::string_view after, std::string_view until);

// A path, which is bytes, as text for JSON, and back: what is no printable ASCII, and '%', as in "%c3%a9".
std::string text_of_path(std::string_view path);
std::string path_of_text(std::string_view text);

// For ShareOptions::owner: a name that no other process has, ever.
std::string unique_owner();

struct ShareOptions {
  std::string owner;                             // a name that no other task has at the same time
  std::chrono::duration<double> dead_after{60};  // a task whose range did not change for so long
  // A dead task's range is begun again: what its owner learned of it is gone with it.
  bool again = false;
  // The first path behind another, as the source lists it; nullopt where there is none.
  std::function<Result<std::optional<std::string>>(const std::string& after)> next_path;
  std::function<Clock::time_point()> now = [] { return Clock::now(); };  // another clock in a simulation
  uint64_t seed = 0;  // seed of the choice of a range to look at; 0: random
};

// One task's view of the board. For one thread at a time.
class Share {
 public:
  // `board`: a folder below the target, for this one job.
  Share(Location board, ShareOptions options);

  struct Turn {
    std::shared_ptr<KeyRange> range;  // the range to work on; null: none now
    bool finished = false;            // everything is done
    bool closes = false;              // and this task is the one that said so: of all tasks one, at most
  };
  // Looks for a range, once. REQUIRES: it has none. Errors: those of the board's storage and of next_path.
  [[nodiscard]] Result<Turn> look();
  // Says how far the range is, and takes over what others took of its end. To be called every few seconds. False when
  // another task goes on with the range, because it has not heard of this one.
  [[nodiscard]] Result<bool> beat();
  // The range is done; `note` is kept with it. Errors: those of the storage.
  [[nodiscard]] Status finish(std::string_view note = "");

  // A range that was done, as its task finished it.
  struct Done {
    std::string after, until, note;
  };
  // All of a finished job, which cover everything and may overlap. nullopt: it is not finished. Errors: those of the
  // storage, corruption.
  [[nodiscard]] static Result<std::optional<std::vector<Done>>> finished_ranges(const Location& board);

 private:
  struct Record {
    std::string id, after, done, begun, until, owner;
    int64_t beats = 0;
    std::string version;  // version of the record's object
  };
  struct Seen {
    std::string version;
    Clock::time_point since;
    bool fruitless = false;  // nothing could be taken of this version
  };
  std::string key_of(const char* folder, const std::string& id) const;
  [[nodiscard]] Result<std::optional<Record>> read(const std::string& id);
  // False when another was faster.
  [[nodiscard]] Result<bool> write(Record& record, bool is_new);
  [[nodiscard]] Result<bool> claim_new(const std::string& id, const std::string& after, const std::string& until);
  [[nodiscard]] Result<bool> take_over(Record record);
  [[nodiscard]] Result<bool> take_half(Record record);
  [[nodiscard]] Result<std::string> split_of(const Record& record);
  [[nodiscard]] Result<Turn> look_at_the_end();
  [[nodiscard]] Result<bool> is_finished();

  const Location board_;
  const ShareOptions options_;
  std::mt19937_64 random_;
  std::shared_ptr<KeyRange> range_;
  Record mine_;  // while there is a range
  int64_t taken_ = 0;
  std::map<std::string, Seen> seen_;  // by id
};

// Runs `work`, which is to stop by its token, on this thread, while another one beats: soon at first, so that little of
// a range is done before others know how far it is. False: another task goes on with the range. REQUIRES: `share` has a
// range.
[[nodiscard]] bool work_and_beat(Share& share, std::chrono::duration<double> dead_after, const std::stop_token& stop,
                                 const std::function<void(const std::stop_token&)>& work);

// A folder below kHiddenFolder of `root` for a board, past the limits of requests and bytes: a sign of life that waits
// behind a copy's requests would come too late, and the few requests of a board count little. Errors: those of the
// credentials.
[[nodiscard]] Result<Location> open_board(Location root, std::string_view folder);

}  // namespace millrace::sync
