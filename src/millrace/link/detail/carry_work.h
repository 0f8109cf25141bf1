// SPDX-License-Identifier: Apache-2.0
#pragma once

// One path that the Carrier works on (carry.h).

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/link/carry.h"

namespace millrace::link {

struct Carrier::Work {
  std::string path;
  std::optional<LinkFile> known;
  std::optional<ObjectInfo> here, there;
  std::optional<LinkFile> origin;  // for a renamed released file: its record in the state
  Decision decision;
  std::string outcome;  // outcome of a conflict; "": no conflict
  bool restores = false;
  bool is_away = false;           // the content is in the HSM of its Lustre, and reading would restore it
  std::optional<Error> not_read;  // why the file is not read: `is_away`, or Lustre does not say where its content is
  bool only_ctime = false;        // only its change time differs from the record: exported if the content differs too
  int64_t bytes_at_work = 0;
};

}  // namespace millrace::link
