// SPDX-License-Identifier: Apache-2.0
#pragma once

// The folder of this user on this node for what is learned of files that say it nowhere else: indexes of tars, and of
// files of rows. Thread-safe, but for changes of the environment meanwhile.

#include <filesystem>
#include <optional>

namespace millrace::loader {

// MILLRACE_INDEX_FOLDER, or millrace-indexes-UID in the folder for temporary files, which is made. nullopt: the
// variable is empty, the folder cannot be made, or others may write into it.
std::optional<std::filesystem::path> user_folder();

}  // namespace millrace::loader
