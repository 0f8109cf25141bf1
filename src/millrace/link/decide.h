// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decides what to do about one path, from the current versions of both sides and the versions when they were last
// equal. A pure function that holds every rule of a link.

#include <optional>
#include <string_view>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

enum class Step {
  kNone,
  kImport,       // the object becomes the file
  kExport,       // the file becomes the object
  kDeleteHere,   // the file is removed, by the link's rule for removals
  kDeleteThere,  // the object is removed
  kCompare,      // both may be equal already: remembered if so, otherwise a conflict
  kRemember,     // nothing is copied; the state records what is there now (Decision::state)
  kForget,       // both sides are gone
  kPostpone,     // only from Carrier: the file is not finished yet
  kRefuse,       // an error, until somebody fixes it (Decision::reason)
};

struct Decision {
  Step step = Step::kNone;
  std::string_view reason;  // for messages
  // With kRemember: the state to remember.
  LinkFile::State state = LinkFile::State::kEqual;
  // Both sides changed. With kImport and kExport, the change of the other side was a removal.
  bool conflict = false;
};

// Decides about one path. `here` and `there` are as listed, nullopt if that side has no such file. `known` is the
// record in the state.
[[nodiscard]] Decision decide(const LinkConfig& config, const std::optional<LinkFile>& known,
                              const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there);

// Decides about a released file that was renamed to this path. It has no content to send or compare. kExport means
// that its object is copied to the new name inside the bucket.
[[nodiscard]] Decision decide_renamed_stub(const LinkConfig& config, const std::optional<LinkFile>& known,
                                           const std::optional<ObjectInfo>& there);

// How to settle a conflict of two files: kImport or kExport. `both`: the file first gets another name, so that both
// stay.
struct Resolution {
  Step step = Step::kImport;
  bool both = false;
};
[[nodiscard]] Resolution resolve(ConflictRule rule, const ObjectInfo& here, const ObjectInfo& there);

}  // namespace millrace::link
