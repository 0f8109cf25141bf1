// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the guardian and those that ask it tell each other: fixed messages over a Unix socket that keeps their bounds,
// some with a descriptor. Both ends are of one binary.

#include <cstdint>
#include <string>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/status.h"

namespace millrace::link {

struct GuardMessage {
  enum Kind : uint32_t {
    kServe,   // to the guardian: the sender fills files from now on; the answer is kGroup
    kGroup,   // with a copy of fanotify's descriptor: while anybody holds one, no waiting program goes on
    kFill,    // from the guardian: a program waits for file `id`, whose descriptor comes along
    kAnswer,  // `value`: 0, or the error of that program's open
    kLeave,   // the sender stops filling: waiting and later opens get EIO
    kAsk,     // the answer is kState: `value` is the guardian's process, `id` how many programs wait
    kState,
    kEnd,    // end, unless a program uses the visible path or somebody fills; the answer is kEnded
    kEnded,  // `value`: 0, or what keeps the guardian; EINPROGRESS: somebody fills
  };
  uint32_t kind = kAsk;
  int32_t value = 0;
  uint64_t id = 0;
};

// Errors: unavailable: the other side is gone; resource_exhausted: it does not read (with `may_wait` false).
[[nodiscard]] Status send_message(int socket, const GuardMessage& message, int descriptor = -1, bool may_wait = true);
struct ReceivedMessage {
  GuardMessage message;
  Descriptor descriptor;
};
// Errors: unavailable: the other side is gone.
[[nodiscard]] Result<ReceivedMessage> receive_message(int socket);

// The guardian's socket of this path. Errors: invalid_argument (the path is too long for a socket), not_found (nobody
// listens), those of the system.
[[nodiscard]] Result<Descriptor> listen_at(const std::string& path);
[[nodiscard]] Result<Descriptor> connect_to(const std::string& path);

}  // namespace millrace::link
