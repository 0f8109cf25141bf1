// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads files of a link whose content is in the bucket only: released files, and those of a --lazy link.

#include <memory>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace::link {

// Opens the object `below` the bucket's side `url`, in this version; "": the version with the size and time of `file`.
// Errors: unavailable (it is gone, or has another size or time), corruption (it has another version).
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_object(const std::string& url, const std::string& below,
                                                                const ObjectInfo& file, std::string version);

// Makes local storage read such files from the bucket, range by range, in the version that the link remembers. On
// nodes without a link it finds the bucket by the directory's marker, and requires that the object has the file's size
// and time. Call once per process, at its start. Only registers hooks: opens no link and starts no thread.
void read_stubs_from_buckets();

}  // namespace millrace::link
