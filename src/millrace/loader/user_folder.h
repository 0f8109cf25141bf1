// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds this user's folder on this node for indexes of files that have none beside them: tars and files of rows.
// Thread-safe while no thread changes the environment.

#include <filesystem>
#include <optional>

namespace millrace::loader {

// Returns MILLRACE_INDEX_FOLDER, or millrace-indexes-UID in the folder for temporary files. Creates the folder.
// nullopt: the variable is empty, the folder cannot be created, or other users may write into it.
std::optional<std::filesystem::path> user_folder();

}  // namespace millrace::loader
