// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/huge_array.h"

#include <sys/mman.h>

#include <new>

namespace millrace::tokenizer {

void* map_memory(size_t bytes, Pages pages) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Before the first touch, or it does nothing. That it is refused costs time only.
  if (pages == Pages::kHuge) static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
  return memory;
}

void Unmap::operator()(void* memory) const {
  munmap(memory, bytes);
}

}  // namespace millrace::tokenizer
