// SPDX-License-Identifier: Apache-2.0
#pragma once

// meta/info.json. Pure functions; thread-safe.

#include <string_view>

#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

inline constexpr std::string_view kInfoFile = "meta/info.json";

// Parses as much as possible of any text. Reports the rest: LR001, LR002 (an unknown version), LR004 (a template that
// cannot be read), LR010, LR014, LR028, LR029, LR030, LR073 and LR074.
Info parse_info(std::string_view text, Report& report);

}  // namespace millrace::lerobot
