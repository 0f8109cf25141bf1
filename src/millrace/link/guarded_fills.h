// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fills the stubs that programs wait for: the side of the guardian (guardian.h) that runs the link. Starts a guardian
// where there is none, and another one when it dies; the new one takes over fanotify's descriptor, of which this side
// holds a copy.

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "millrace/link/carry.h"
#include "millrace/link/config.h"

namespace millrace::link {

class GuardedFills {
 public:
  // `config` outlives it. Errors: those of the state, unavailable (the guardian does not start).
  [[nodiscard]] static Result<std::unique_ptr<GuardedFills>> start(const LinkConfig& config, const LinkHome& home,
                                                                   std::function<void(const LinkEvent&)> on_event,
                                                                   std::function<void(const std::string&)> on_note,
                                                                   const std::stop_token& stop);
  // Programs that wait get EIO, and so do others that open a stub, until the link runs again. The guardian stays.
  ~GuardedFills();

 private:
  struct Impl;
  explicit GuardedFills(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::link
