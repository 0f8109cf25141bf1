// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/huge_array.h"

#include <sys/mman.h>

#include <new>

#include "millrace/base/huge_pages.h"

namespace millrace::tokenizer {

void* map_memory(size_t bytes, Pages pages) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (pages == Pages::kHuge) prefer_huge_pages(memory, bytes);
  return memory;
}

void Unmap::operator()(void* memory) const {
  munmap(memory, bytes);
}

}  // namespace millrace::tokenizer
