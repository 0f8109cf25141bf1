// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stubs: files of a link whose content is in the bucket only. Name, size and time are there. Most have mode 0000 and an
// attribute that marks copies of them; guarded ones are in guarded_stub.h. Functions are thread-safe.

#include <cstdint>
#include <string>

#include "millrace/base/file_time.h"
#include "millrace/storage/storage.h"

namespace millrace::link {

// Whether the file has the attribute of a stub, or of a copy of one.
[[nodiscard]] bool is_stub(const std::string& path);
// Whether the file is all hole and nobody may read it, or is guarded: released, even where the state that knew is lost.
[[nodiscard]] bool looks_released(const std::string& path);
// Makes a stub at `path`, and the folders above it. `replaces`: the stub that is there; else nothing may be there. With
// `guarded` a guarded one, of these attributes. Errors: already_exists, permission_denied (root, and a guarded one by
// anyone else), unsupported (a file system without attributes or hard links), those of the file system.
[[nodiscard]] Status make_stub(const std::string& path, int64_t size, const FileTime& modified, bool replaces,
                               const PosixAttributes* guarded = nullptr);
// For a file that has its content after all.
void clear_stub(const std::string& path);

}  // namespace millrace::link
