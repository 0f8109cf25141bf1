// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tells which errors mean that a step's files cannot be used, so that a restore falls back to the step before. Pure;
// thread-safe.

#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// Returns whether `error` means wrong bytes, a device that cannot read them (EIO and the like), or a file that may not
// be read. A server that does not answer is no damage: the step may be whole, and going back to an older step would
// lose work.
bool is_damage(const Error& error);

// Returns `error`, which came from opening or reading the file at `location`. When a folder is in the file's place, it
// returns corruption instead.
Error as_damage(Error error, const Location& location);

}  // namespace millrace::checkpoint
