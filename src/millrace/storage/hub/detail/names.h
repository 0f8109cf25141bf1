// SPDX-License-Identifier: Apache-2.0
#pragma once

// The syntax of the Hub's names. Pure functions.

#include <string_view>

namespace millrace::hub {

bool is_name(std::string_view text);      // name of an organisation or repository
bool is_repo_id(std::string_view id);     // "org/name"
bool is_revision(std::string_view text);  // text could be a revision; an empty text could, too
bool is_commit(std::string_view text);    // 40 hexadecimal digits

}  // namespace millrace::hub
