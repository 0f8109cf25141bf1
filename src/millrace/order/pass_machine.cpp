// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/pass_machine.h"

#include <utility>

namespace millrace::order {

namespace {

int64_t after(const PassPosition& now) {
  return now.number + (now.is_over ? 1 : 0);
}

}  // namespace

bool PassMachine::ask(int64_t number, const AskPosition& where) {
  if (is_endless_) return true;
  if (!is_loaded_) {
    asked_ = number;
    return true;
  }
  const PassPosition now = where();
  return number == now.number || number == after(now);
}

void PassMachine::loaded() {
  continues_ = is_loaded_ = true;
  asked_.reset();
  moved();
}

void PassMachine::moved() {
  ++moves_;
  is_touched_ = true;
}

void PassMachine::began() {
  is_ended_ = false;
  moved();
}

void PassMachine::gave() {
  is_touched_ = true;
  is_loaded_ = is_ended_ = false;
}

std::optional<int64_t> PassMachine::for_begins(const AskPosition& where) {
  const bool continues = std::exchange(continues_, false);
  if (asked_ || is_endless_) return next_begins();
  const PassPosition now = where();
  // A state from the end of a pass means the next pass, because all batches of this one had been given.
  return now.is_over || !continues ? std::optional(now.number + 1) : std::nullopt;
}

std::optional<int64_t> PassMachine::next_begins() {
  return std::exchange(asked_, std::nullopt);
}

int64_t PassMachine::following(const AskPosition& where) const {
  return asked_ ? *asked_ : after(where());
}

int64_t PassMachine::pass_of_length(const AskPosition& where) const {
  if (asked_) return *asked_;
  const PassPosition now = where();
  return is_ended_ ? after(now) : now.number;
}

std::optional<int64_t> PassMachine::pass_of_state(const AskPosition& where) const {
  if (is_endless_ || !is_ended_) return std::nullopt;
  const PassPosition now = where();
  return now.is_over ? std::optional(now.number + 1) : std::nullopt;
}

NextStart PassMachine::next_start(const AskPosition& where) const {
  if (asked_ || continues_ || is_endless_) return {asked_, moves_};
  return {where().number + 1, moves_};
}

Result<std::optional<int64_t>> pass_of_worker(const NextStart& start, const NextStart& last, bool is_endless,
                                              const AskPosition& where) {
  if (last.number && last.moves == start.moves) {
    if (!is_endless) return last.number;
    return fail(
        ErrorCode::kUnsupported,
        "the workers have begun with this endless loader before, and only they know how far it came: call "
        "loader.load_state_dict(loader.state_dict(batch)), with the last batch that was used, or use no workers");
  }
  if (start.number || is_endless) return start.number;
  const PassPosition now = where();
  return now.is_over ? std::optional(now.number + 1) : std::nullopt;
}

}  // namespace millrace::order
