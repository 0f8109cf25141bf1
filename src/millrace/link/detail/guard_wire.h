// SPDX-License-Identifier: Apache-2.0
#pragma once

// Messages between the guardian and the processes that talk to it: fixed-size messages, some with a descriptor, over a
// Unix socket that keeps message bounds. Both ends run the same binary.

#include <cstdint>
#include <string>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/status.h"

namespace millrace::link {

struct GuardMessage {
  enum Kind : uint32_t {
    kServe,   // to the guardian: the sender fills files from now on; the answer is kGroup
    kGroup,   // with a copy of fanotify's descriptor: while anybody holds one, waiting programs stay blocked
    kFill,    // from the guardian: a program waits for file `id`; its descriptor comes with the message
    kAnswer,  // `value`: 0, or the error that the program's open returns
    kLeave,   // the sender stops filling: programs that wait or open a stub later get EIO
    kAsk,     // the answer is kState: `value` is the guardian's process, `id` the number of waiting programs
    kState,
    kEnd,    // end, unless a program uses the visible path or a process fills; the answer is kEnded
    kEnded,  // `value`: 0, or the error that keeps the guardian running; EINPROGRESS: a process fills
  };
  uint32_t kind = kAsk;
  int32_t value = 0;
  uint64_t id = 0;
};

// Sends a message. Errors: unavailable (the other side is gone), resource_exhausted (it does not read; with `may_wait`
// false).
[[nodiscard]] Status send_message(int socket, const GuardMessage& message, int descriptor = -1, bool may_wait = true);
struct ReceivedMessage {
  GuardMessage message;
  Descriptor descriptor;
};
// Receives a message. Errors: unavailable (the other side is gone).
[[nodiscard]] Result<ReceivedMessage> receive_message(int socket);

// Open the guardian's socket at this path. Errors: invalid_argument (the path is too long for a socket), not_found
// (nobody listens), those of the system.
[[nodiscard]] Result<Descriptor> listen_at(const std::string& path);
[[nodiscard]] Result<Descriptor> connect_to(const std::string& path);

}  // namespace millrace::link
