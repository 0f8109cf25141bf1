// SPDX-License-Identifier: Apache-2.0
#pragma once

// The knowledge that the tasks of one link share (docs/format/link_tasks.md). Each task has its own state. The bucket
// holds the rows of the last finished sweep, in byte order and range by range, and a journal of what was learned
// since. A task loads the rows of a range into its state before it decides about that range. Rows that are old, or
// lost with a task, only cost a comparison. For one thread.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/link/state.h"
#include "millrace/link/sweep.h"
#include "millrace/sync/share.h"

namespace millrace::link {

class SharedState {
 public:
  // `board`: the folder of the link's tasks. `owner`: a name that no other process ever has. `state` must outlive it.
  SharedState(Location board, std::string owner, LinkState& state)
      : board_(std::move(board)), owner_(std::move(owner)), state_(state) {}

  // Reads the index of the newest finished sweep, and new journals. Errors: those of the storage, of the state.
  [[nodiscard]] Status refresh();
  // Returns the number of the newest finished sweep that is known; 0: none.
  int64_t newest() const { return newest_; }
  // Returns the folder of the board that holds a sweep's ranges.
  Location board_of(int64_t sweep) const;

  // Loads the rows of the range (after, until] into the state. Before the first sweep it clears the range instead: a
  // node's own rows may be older than a release by another node.
  [[nodiscard]] Status load(const std::string& after, const std::string& until);
  // Loads the rows of the chunks that hold `paths`.
  [[nodiscard]] Status load_for(const std::vector<std::string>& paths);
  // Writes the rows of a range that this task looked at in a sweep, its findings, and the paths left for the end of
  // the sweep. Returns the note for the board.
  [[nodiscard]] Result<std::string> save(int64_t sweep, const std::string& after, const std::string& until,
                                         const SweepFindings& findings);
  // Writes to the journal what this task learned outside of sweeps.
  [[nodiscard]] Status publish();

  // Returns the sum of what all ranges of the newest sweep found: numbers without paths.
  SweepFindings totals() const;
  // Returns the same with the paths that the ranges left for the end of the sweep.
  [[nodiscard]] Result<SweepFindings> findings() const;
  // Tells the other tasks that a sweep is finished.
  [[nodiscard]] Status announce();
  // Removes sweeps and journals that no task needs any more.
  [[nodiscard]] Status tidy();
  // Prepares for one node to go on alone: takes all that the tasks knew into its state, and removes the board.
  [[nodiscard]] Status take_home();

 private:
  struct Chunk {
    std::string after, until;
    std::string key;  // "": no rows
  };
  struct Range {
    std::string after, until;
    std::map<std::string, int64_t> heard;  // by owner: number of the last journal that these rows include
    std::vector<Chunk> chunks;
    SweepFindings counts;  // without paths
    std::string left;      // key of the list of paths left for the end
  };
  static Range range_of(const sync::Share::Done& done, const std::string& name);
  [[nodiscard]] Result<std::vector<Learned>> read_rows(const std::string& path) const;
  [[nodiscard]] Status read_index(int64_t sweep);
  [[nodiscard]] Result<int64_t> find_newest() const;
  [[nodiscard]] Status read_journals();
  [[nodiscard]] Status load_chunk(const Range& range, const Chunk& chunk, std::string after, std::string until);
  std::string key_of(std::string_view path) const { return board_.child(path).key; }

  const Location board_;
  const std::string owner_;
  LinkState& state_;
  int64_t newest_ = 0;
  std::vector<Range> index_;              // ranges of the newest sweep, by `after`
  std::set<std::string> held_;            // chunks of `index_` whose rows are in the state
  std::map<std::string, int64_t> heard_;  // by owner: number of the last journal that was read
  int64_t journals_ = 0, chunks_ = 0, lefts_ = 0;
};

}  // namespace millrace::link
