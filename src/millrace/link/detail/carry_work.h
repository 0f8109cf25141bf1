// SPDX-License-Identifier: Apache-2.0
#pragma once

// One path on its way through the Carrier (carry.h).

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/link/carry.h"

namespace millrace::link {

struct Carrier::Work {
  std::string path;
  std::optional<LinkFile> known;
  std::optional<ObjectInfo> here, there;
  std::optional<LinkFile> origin;  // of a released file that was renamed: as what the state has it
  Decision decision;
  std::string outcome;  // of a conflict; "" where there is none
  bool restores = false;
  bool is_away = false;           // its content is in the HSM of its Lustre, and reading would bring it back
  std::optional<Error> not_read;  // why nothing reads it: so, or because Lustre does not say where its content is
  bool only_ctime = false;        // but for its change time it is as remembered: exported only if its content is not
  int64_t bytes_at_work = 0;
};

}  // namespace millrace::link
