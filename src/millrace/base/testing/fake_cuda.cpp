// SPDX-License-Identifier: Apache-2.0
// A library with the functions of CUDA's driver that base/memory/pinned.cpp calls, for tests. Contexts are per thread,
// as there.

#include <atomic>
#include <cstddef>

namespace {

thread_local void* current = nullptr;
std::atomic<int> pinned{0}, refused_code{0};
int context = 0;

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  current = context;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = nullptr;
  return 0;
}
int cuMemHostRegister_v2(void*, size_t, unsigned flags) {
  if (current == nullptr || flags != 1) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  if (refused_code != 0) return refused_code;
  ++pinned;
  return 0;
}
int cuMemHostUnregister(void*) {
  if (current == nullptr) return 201;
  --pinned;
  return 0;
}

// For tests: what the calling thread's first use of a device does.
void fakeUse() {
  current = &context;
}
int fakePinned() {
  return pinned;
}
void fakeRefuse(int code) {
  refused_code = code;
}
}

#pragma GCC visibility pop
