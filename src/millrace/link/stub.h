// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stubs: files of a link whose content exists only in the bucket. A stub keeps name, size and time. Most stubs have
// mode 0000 and an attribute that also marks copies of them; guarded ones are in guarded_stub.h. Functions are
// thread-safe.

#include <cstdint>
#include <string>

#include "millrace/base/io/file_time.h"
#include "millrace/storage/storage.h"

namespace millrace::link {

// Returns whether the file has the attribute of a stub. A copy of a stub has it too.
[[nodiscard]] bool is_stub(const std::string& path);
// Returns whether the file is one hole that nobody may read, or a guarded stub. Such a file was released, even if the
// link's state is lost.
[[nodiscard]] bool looks_released(const std::string& path);
// Makes a stub at `path`, and the folders above it. `replaces`: overwrite the stub at `path`; otherwise nothing may be
// there. `guarded`: make a guarded stub with these attributes. Errors: already_exists, permission_denied (root, and a
// guarded one by anyone else), unsupported (a file system without attributes or hard links), those of the file system.
[[nodiscard]] Status make_stub(const std::string& path, int64_t size, const FileTime& modified, bool replaces,
                               const PosixAttributes* guarded = nullptr);
// Removes the attribute from a file that has its content again.
void clear_stub(const std::string& path);

}  // namespace millrace::link
