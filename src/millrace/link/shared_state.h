// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tasks of one link know together (docs/format/link_tasks.md). Each has a state of its own; in the bucket lie
// the rows of the last finished sweep, in byte order and range by range, and a journal of what was learned since. A
// task brings the rows of a range into its state before it decides about that range. Rows that are old, or lost with
// a task, cost a comparison. For one thread.

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
  // `board`: the folder of the link's tasks; `owner`: of no other process, ever. `state` outlives it.
  SharedState(Location board, std::string owner, LinkState& state)
      : board_(std::move(board)), owner_(std::move(owner)), state_(state) {}

  // Reads what is new: the index of the newest finished sweep, and journals. Errors: those of the storage, of the
  // state.
  [[nodiscard]] Status refresh();
  // The number of the newest finished sweep that is known; 0: none.
  int64_t newest() const { return newest_; }
  // Folder of the board of a sweep's ranges.
  Location board_of(int64_t sweep) const;

  // Brings the rows of (after, until] into the state; those of single paths, with what lies around them. Before the
  // first sweep nothing is known: a node's own rows may be older than what another one released.
  [[nodiscard]] Status load(const std::string& after, const std::string& until);
  [[nodiscard]] Status load_for(const std::vector<std::string>& paths);
  // Writes the rows of a range that this task has looked at in a sweep; what it found, and what is left for the end of
  // the sweep, goes along. Returns the note for the board.
  [[nodiscard]] Result<std::string> save(int64_t sweep, const std::string& after, const std::string& until,
                                         const SweepFindings& findings);
  // Writes what was learned outside of sweeps to the journal.
  [[nodiscard]] Status publish();

  // What all ranges of the newest sweep found: the numbers, and with the paths that they left for its end.
  SweepFindings totals() const;
  [[nodiscard]] Result<SweepFindings> findings() const;
  // Tells the others of a finished sweep. Removes what nobody needs any more.
  [[nodiscard]] Status announce();
  [[nodiscard]] Status tidy();
  // One node goes on alone: it learns all that the tasks knew, and the board goes.
  [[nodiscard]] Status take_home();

 private:
  struct Chunk {
    std::string after, until;
    std::string key;  // "": no rows
  };
  struct Range {
    std::string after, until;
    std::map<std::string, int64_t> heard;  // up to which number of each owner's journal these rows have it
    std::vector<Chunk> chunks;
    SweepFindings counts;  // without paths
    std::string left;      // key of the paths
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
  std::vector<Range> index_;              // of the newest sweep, by `after`
  std::set<std::string> held_;            // chunks of it whose rows are in the state
  std::map<std::string, int64_t> heard_;  // of each owner, the last journal that was read
  int64_t journals_ = 0, chunks_ = 0, lefts_ = 0;
};

}  // namespace millrace::link
