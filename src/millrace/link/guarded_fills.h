// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fills the stubs that programs wait for. This is the part of the guardian (guardian.h) in the process that runs the
// link. It starts a guardian if there is none, and a new one when that dies. The new guardian takes over fanotify's
// descriptor, of which this process holds a copy.

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "millrace/link/carry.h"
#include "millrace/link/config.h"

namespace millrace::link {

class GuardedFills {
 public:
  // `config` must outlive the object. Errors: those of the state, unavailable (the guardian does not start).
  [[nodiscard]] static Result<std::unique_ptr<GuardedFills>> start(const LinkConfig& config, const LinkHome& home,
                                                                   std::function<void(const LinkEvent&)> on_event,
                                                                   std::function<void(const std::string&)> on_note,
                                                                   const std::stop_token& stop);
  // Stops filling. Programs that wait for a stub or open one get EIO until the link runs again. The guardian stays.
  ~GuardedFills();

 private:
  struct Impl;
  explicit GuardedFills(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::link
