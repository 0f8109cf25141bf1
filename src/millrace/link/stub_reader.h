// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading files of a link whose content is in the bucket only: released ones, and those of --lazy.

#include <memory>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace::link {

// The object of a file: `below` the bucket's side `url`, in this version; with "" in the version of `file`'s size and
// time. Errors: unavailable (it is gone, or of another size or time), corruption (it has another version).
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_object(const std::string& url, const std::string& below,
                                                                const ObjectInfo& file, std::string version);

// From now on local storage reads such files from the bucket, range by range, in the version that the link remembers;
// on nodes that have no link, by the marker of the directory, if the object has the file's size and time. Once a
// process, at its start; starts nothing.
void read_stubs_from_buckets();

}  // namespace millrace::link
