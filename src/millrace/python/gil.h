// SPDX-License-Identifier: Apache-2.0
#pragma once

// Releases the GIL for a scope.

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace millrace::python {

// While it lives, other threads may run Python. A destructor that waits for threads needs a GilRelease, because those
// threads take the GIL to log a line. When a daemon thread requests the GIL after the interpreter began to end, Python
// up to 3.13 ends the thread by unwinding its stack. That aborts the process at the first frame that must not be
// unwound. Here such a thread blocks instead, as in Python 3.14, until the process ends.
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
