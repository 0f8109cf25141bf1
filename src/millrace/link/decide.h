// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is to be done about one path, from what both sides have now and what they had when they were last equal. A pure
// function: every rule of a link is here.

#include <optional>
#include <string_view>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

enum class Step {
  kNone,
  kImport,       // the object becomes the file
  kExport,       // the file becomes the object
  kDeleteHere,   // the file goes, by the link's rule for removals
  kDeleteThere,  // the object goes
  kCompare,      // both may be the same already: if so they are remembered, else it is a conflict
  kRemember,     // nothing moves; the state learns what is there now (Decision::state)
  kForget,       // both sides are gone
  kPostpone,     // only of Carrier: the file is not finished yet
  kRefuse,       // an error, until somebody mends it (Decision::reason)
};

struct Decision {
  Step step = Step::kNone;
  std::string_view reason;  // for people
  // With kRemember: what to remember.
  LinkFile::State state = LinkFile::State::kEqual;
  // Both sides changed. Under kImport and kExport the other side's change was a removal.
  bool conflict = false;
};

// `here` and `there` are as listed, nullopt where that side has no such file; `known` is what the state has.
[[nodiscard]] Decision decide(const LinkConfig& config, const std::optional<LinkFile>& known,
                              const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there);

// The same for a released file that was renamed to here: it has no content to send or to compare, and its object moves.
// With kExport: that copy, inside the bucket.
[[nodiscard]] Decision decide_renamed_stub(const LinkConfig& config, const std::optional<LinkFile>& known,
                                           const std::optional<ObjectInfo>& there);

// What a conflict of two files ends in: kImport or kExport; `both` says that the file gets another name first.
struct Resolution {
  Step step = Step::kImport;
  bool both = false;
};
[[nodiscard]] Resolution resolve(ConflictRule rule, const ObjectInfo& here, const ObjectInfo& there);

}  // namespace millrace::link
