// SPDX-License-Identifier: Apache-2.0
#pragma once

// The GIL, let go of for a while.

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace millrace::python {

// While it lives others may run Python. In a daemon thread, Python up to 3.13 ends the thread when it asks for the GIL
// after the interpreter began to go: by unwinding its stack, which ends the process at the first frame that may not be
// unwound. Such a thread stays where it is instead, as it does from 3.14 on, and the process ends around it.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() { take_back(state_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  struct StayIfUnwound {
    bool unwound = true;
    ~StayIfUnwound() {
      while (unwound) ::pause();
    }
  };
  static void take_back(PyThreadState* state) {
    StayIfUnwound stay;
    PyEval_RestoreThread(state);
    stay.unwound = false;
  }

  PyThreadState* const state_;
};

}  // namespace millrace::python
