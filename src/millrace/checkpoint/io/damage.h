// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which errors mean that a step's files cannot be used, so that a restore goes to the step before. Pure; thread-safe.

#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// Wrong bytes, a device that cannot read them (EIO and its like), or a file that may not be read. A server that does
// not answer is no damage: the step may be whole, and older steps would lose work.
bool is_damage(const Error& error);

// `error` came from opening or reading the file at `location`. A folder in its place becomes corruption.
Error as_damage(Error error, const Location& location);

}  // namespace millrace::checkpoint
