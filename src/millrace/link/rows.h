// SPDX-License-Identifier: Apache-2.0
#pragma once

// Encodes rows of a link's state as bytes, for other tasks of the link (docs/format/link_tasks.md).

#include <string>
#include <string_view>
#include <vector>

#include "millrace/link/state.h"

namespace millrace::link {

std::string encode_rows(const std::vector<Learned>& rows);
// Decodes rows. `name`: the source of the bytes, for errors. Errors: corruption.
[[nodiscard]] Result<std::vector<Learned>> decode_rows(std::string_view bytes, const std::string& name);

}  // namespace millrace::link
