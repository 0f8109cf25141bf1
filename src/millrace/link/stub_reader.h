// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading files of a link whose content is in the bucket only: released ones, and those of --lazy.

namespace millrace::link {

// From now on local storage reads such files from the bucket, range by range, in the version that the link remembers;
// on nodes that have no link, by the marker of the directory, if the object has the file's size and time. Once a
// process, at its start; starts nothing.
void read_stubs_from_buckets();

}  // namespace millrace::link
