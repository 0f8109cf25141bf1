// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/decide.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;

enum class Change { kNone, kNew, kChanged, kGone };

Change change_here(const LinkFile& known, const std::optional<ObjectInfo>& here) {
  if (!here) return known.state == State::kGoneHere ? Change::kNone : Change::kGone;
  if (known.state == State::kGoneHere) return Change::kNew;
  return sync::is_version(known.here, *here) ? Change::kNone : Change::kChanged;
}

Change change_there(const LinkFile& known, const std::optional<ObjectInfo>& there) {
  if (!there) return known.state == State::kGoneThere ? Change::kNone : Change::kGone;
  if (known.state == State::kGoneThere) return Change::kNew;
  return known.there == there->version ? Change::kNone : Change::kChanged;
}

bool carries(const Carries& what, Change change) {
  switch (change) {
    case Change::kNew:
      return what.added;
    case Change::kChanged:
      return what.changed;
    case Change::kGone:
      return what.deleted;
    case Change::kNone:
      return false;
  }
  return false;
}

Decision decide_new(const LinkConfig& config, bool is_here, bool is_there) {
  if (is_here && is_there) return {.step = Step::kCompare, .reason = "on both sides, and not known yet"};
  if (is_here && config.exports.added) return {.step = Step::kExport, .reason = "new in the directory"};
  if (is_there && config.imports.added) return {.step = Step::kImport, .reason = "new in the bucket"};
  return {};
}

// The content of a released file is in the bucket only.
Decision decide_released(Change here, Change there) {
  if (here == Change::kChanged) {
    return {.step = Step::kRefuse,
            .reason = "was changed while its content was not here: remove it, and it is restored from the bucket"};
  }
  if (there == Change::kGone) {
    return {.step = Step::kRefuse,
            .reason =
                "CONTENT LOST: the object of this released file was removed from the bucket; put it back from a "
                "version or a backup"};
  }
  return {};
}

}  // namespace

Decision decide(const LinkConfig& config, const std::optional<LinkFile>& known, const std::optional<ObjectInfo>& here,
                const std::optional<ObjectInfo>& there) {
  if (!known) return decide_new(config, here.has_value(), there.has_value());
  const Change now_here = change_here(*known, here);
  const Change now_there = change_there(*known, there);
  if (!here && !there) return {.step = Step::kForget, .reason = "gone from both sides"};
  // A stub that never had content here is no more than a listing of the bucket.
  const bool is_listing = config.lazy && config.imports.deleted && known->proof.empty() && now_here == Change::kNone;
  if (known->state == State::kReleased && !(is_listing && now_there == Change::kGone)) {
    if (Decision refused = decide_released(now_here, now_there); refused.step == Step::kRefuse) return refused;
  }
  if (now_here == Change::kNone && now_there == Change::kNone) return {};

  if (now_here != Change::kNone && now_there != Change::kNone) {
    if (here && there) return {.step = Step::kCompare, .reason = "both sides changed", .conflict = true};
    // A change is worth more than a removal: nothing is lost so.
    if (there) {
      if (!carries(config.imports, now_there)) return {};
      return {.step = Step::kImport, .reason = "removed here and changed in the bucket", .conflict = true};
    }
    if (!carries(config.exports, now_here)) return {};
    return {.step = Step::kExport, .reason = "changed here and removed from the bucket", .conflict = true};
  }

  if (now_here == Change::kGone) {
    if (config.exports.deleted) return {.step = Step::kDeleteThere, .reason = "removed from the directory"};
    return {
        .step = Step::kRemember, .reason = "removed from the directory; the object stays", .state = State::kGoneHere};
  }
  if (now_there == Change::kGone) {
    if (config.imports.deleted) return {.step = Step::kDeleteHere, .reason = "removed from the bucket"};
    return {.step = Step::kRemember, .reason = "removed from the bucket; the file stays", .state = State::kGoneThere};
  }
  if (now_here != Change::kNone) {
    if (!carries(config.exports, now_here)) return {};
    return {.step = Step::kExport, .reason = "changed in the directory"};
  }
  if (!carries(config.imports, now_there)) return {};
  return {.step = Step::kImport, .reason = "changed in the bucket"};
}

Decision decide_renamed_stub(const LinkConfig& config, const std::optional<LinkFile>& known,
                             const std::optional<ObjectInfo>& there) {
  const Change now_there = known ? change_there(*known, there) : there ? Change::kNew : Change::kNone;
  if (there && now_there != Change::kNone) {
    return {.step = Step::kCompare, .reason = "renamed here and changed in the bucket", .conflict = true};
  }
  const bool is_new = !known || known->state == State::kGoneHere;
  if (!carries(config.exports, is_new ? Change::kNew : Change::kChanged)) {
    return {.step = Step::kRefuse,
            .reason =
                "is a released file under a new name, and the link carries no such change to the bucket: rename "
                "it back"};
  }
  return {.step = Step::kExport,
          .reason = "renamed while its content was not here",
          .conflict = known && now_there == Change::kGone};
}

Resolution resolve(ConflictRule rule, const ObjectInfo& here, const ObjectInfo& there) {
  switch (rule) {
    case ConflictRule::kBoth:
      return {.step = Step::kImport, .both = true};
    case ConflictRule::kBucket:
      return {.step = Step::kImport};
    case ConflictRule::kDirectory:
      return {.step = Step::kExport};
    case ConflictRule::kNewest:
      return {.step = here.modified > there.modified ? Step::kExport : Step::kImport};
  }
  return {};
}

}  // namespace millrace::link
