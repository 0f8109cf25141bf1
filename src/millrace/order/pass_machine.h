// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decides which pass of a loader comes next. Pure: reads no data and uses no thread or process. For one thread.

#include <cstdint>
#include <functional>
#include <optional>

#include "millrace/base/status.h"

namespace millrace::order {

// The position of a reader.
struct PassPosition {
  int64_t number = 0;    // number of the pass, counted from 0
  bool is_over = false;  // all batches of that pass were returned
};
// Asks the reader for its position. Called only when the answer matters, because it may wait until the dataset is
// open.
using AskPosition = std::function<PassPosition()>;

// How the next `for` of a worker process begins.
struct NextStart {
  std::optional<int64_t> number;  // the pass to begin; empty: continue
  int64_t moves = 0;              // how often the loader was repositioned
  bool operator==(const NextStart&) const = default;
};

// Decides the passes of a loader. Methods that return a pass return the pass to begin, or nothing if the loader
// continues.
//
// The first `for` continues from the loader's position: its start, a loaded state, or the batches that next()
// returned. Each further `for` begins the next pass, even if the previous `for` was left early. An endless loader
// always continues.
class PassMachine {
 public:
  explicit PassMachine(bool is_endless) : is_endless_(is_endless) {}

  // Events of the loader.

  // Handles set_epoch(number). Returns false if it changes nothing because a loaded state names another pass.
  bool ask(int64_t number, const AskPosition& where);
  // Notes that a state was loaded into the reader.
  void loaded();
  // Notes that the reader was moved to another position in its pass.
  void moved();
  // Notes that the reader has begun the pass that a method returned.
  void began();
  // Notes that next() has returned a batch.
  void gave();
  // next() has reported the end of the pass.
  void ended() { is_ended_ = true; }

  // Questions about the passes that follow.

  // Returns the pass that a `for` begins.
  std::optional<int64_t> for_begins(const AskPosition& where);
  // Notes that a running `for` takes a further batch, perhaps after a state was loaded inside the `for`.
  void for_goes_on() { continues_ = false; }
  // Returns the pass that next() begins when it is called outside a `for`.
  std::optional<int64_t> next_begins();
  // Returns the pass of the next batch.
  int64_t following(const AskPosition& where) const;
  // Returns the pass whose length len() returns: the current pass, or between passes the next one.
  int64_t pass_of_length(const AskPosition& where) const;
  // Returns the pass that a state taken now begins; nothing: the state is the reader's position.
  std::optional<int64_t> pass_of_state(const AskPosition& where) const;
  NextStart next_start(const AskPosition& where) const;

  bool is_endless() const { return is_endless_; }
  bool is_touched() const { return is_touched_; }  // the reader was moved from its start
  int64_t moves() const { return moves_; }         // how often the reader was repositioned

 private:
  bool is_endless_;
  bool is_touched_ = false;
  bool continues_ = true;   // the next `for` continues from here
  bool is_loaded_ = false;  // a state was loaded, and no batch returned since
  bool is_ended_ = false;   // next() has reported the end of the pass
  std::optional<int64_t> asked_;
  int64_t moves_ = 0;
};

// Returns the pass that a DataLoader's worker begins, or nothing if it continues. `last`: the pass after the one that
// this worker began last, and the loader's moves at that time. Errors: unsupported (workers have already begun with an
// endless loader).
[[nodiscard]] Result<std::optional<int64_t>> pass_of_worker(const NextStart& start, const NextStart& last,
                                                            bool is_endless, const AskPosition& where);

}  // namespace millrace::order
