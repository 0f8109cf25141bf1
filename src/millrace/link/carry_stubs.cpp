// SPDX-License-Identifier: Apache-2.0
// What files are whose content came, went or moved without this node.
#include "millrace/link/carry.h"
#include "millrace/link/guarded_stub.h"
#include "millrace/link/hsm.h"
#include "millrace/link/stub.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;

}  // namespace

// What the state should say of a file whose content came or went without this node: another one has released it, in
// place, and proved before that the object has the content; a stub was renamed and has its old name again; or a whole
// file is where a stub was.
std::optional<LinkFile> Carrier::state_by_looking(const LinkFile& known, const ObjectInfo& here) const {
  const bool is_stub_again = known.state == State::kGoneHere;
  if (sync::is_version(known.here, here) && !is_stub_again) return std::nullopt;
  LinkFile other = known;
  const std::string path = local_path(known.path);
  if (config_.hsm && (known.state == State::kEqual || known.state == State::kGoneThere) &&
      known.here.version == here.version) {
    // Lustre has released it: no more than the change time and the blocks are others.
    const auto is_away = is_hsm_released(path, stop_);
    if (!is_away || !*is_away) return std::nullopt;
    other.here = sync::recorded_version(here);
    return other;
  }
  if (known.state != State::kGoneThere && known.here.version == here.version && looks_released(path)) {
    other.here = sync::recorded_version(here);
    other.state = State::kReleased;
    return other;
  }
  if (known.state != State::kReleased || is_stub(path) || looks_released(path)) return std::nullopt;
  other.state = State::kEqual;
  other.proof.clear();
  return other;
}

// A program's open brings its content just now: what the file has of time and blocks says nothing.
bool Carrier::is_being_filled(const std::string& path) const {
  if (config_.show_at.empty()) return false;
  const auto stub = read_guarded_stub(local_path(path));
  return stub && stub->is_filling;
}

// What the state has of a released file under its name before: a rename keeps its version.
Result<std::optional<LinkFile>> Carrier::origin_of(const std::string& path, const std::optional<LinkFile>& known,
                                                   const ObjectInfo& here) {
  if ((known && known->here.version == here.version) || !looks_released(local_path(path))) return std::nullopt;
  ASSIGN_OR_RETURN(std::optional<LinkFile> origin, state_.find_here(here.version));
  if (origin && (origin->path == path || origin->state == State::kGoneThere)) origin.reset();
  return origin;
}

}  // namespace millrace::link
