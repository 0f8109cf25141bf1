// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/memory/buffer_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <new>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/memory/huge_pages.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"

namespace millrace {

tl::unexpected<Error> no_memory(std::string message) {
  return tl::unexpected(Error(ErrorCode::kResourceExhausted, std::move(message), ENOMEM));
}

struct MemoryBudget::Impl {
  int64_t cap = 0;
  mutable Mutex mutex;
  std::map<std::string, int64_t> users GUARDED_BY(mutex);
  int64_t reserved GUARDED_BY(mutex) = 0;

  Status take(const std::string& user, int64_t bytes) {
    MutexLock lock(mutex);
    if (bytes > cap - reserved) {
      std::string held;
      for (const auto& [name, amount] : users) held += fmt::format(" {} holds {};", name, format_bytes(amount));
      return no_memory(
          fmt::format("{} asks for {} of memory, {} of {} are free;{} raise MILLRACE_MEMORY or ask for less", user,
                      format_bytes(bytes), format_bytes(cap - reserved), format_bytes(cap), held));
    }
    reserved += bytes;
    users[user] += bytes;
    return {};
  }
  void give(const std::string& user, int64_t bytes) {
    MutexLock lock(mutex);
    reserved -= bytes;
    if ((users[user] -= bytes) == 0) users.erase(user);
  }
};

namespace {

constexpr size_t kAlignment = 4096;  // a page: what O_DIRECT and pinning ask for

// Direct transfers of huge pages take a tenth of the CPU time, and larger requests.
std::align_val_t alignment_of(size_t capacity) {
  return std::align_val_t(capacity >= kHugePage ? kHugePage : kAlignment);
}

std::byte* new_block(size_t capacity) {
  auto* data = static_cast<std::byte*>(::operator new(capacity, alignment_of(capacity), std::nothrow));
  if (data != nullptr) prefer_huge_pages(data, capacity);
  return data;
}

void delete_block(std::byte* data, size_t capacity) {
  ::operator delete(data, alignment_of(capacity));
}

int64_t machine_memory_bytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream file("/sys/fs/cgroup/memory.max");
  int64_t limit = 0;
  if (file >> limit && limit > 0) bytes = std::min(bytes, limit);  // "max" does not parse
  return bytes;
}

}  // namespace

MemoryBudget::MemoryBudget(int64_t cap_bytes) : impl_(std::make_shared<Impl>()) {
  impl_->cap = cap_bytes;
}

std::shared_ptr<MemoryBudget> MemoryBudget::process() {
  static const auto& budget = *new auto([] {  // never destroyed: worker threads may outlive static objects
    int64_t cap = machine_memory_bytes() / 2 / local_ranks();
    if (const char* text = std::getenv("MILLRACE_MEMORY")) {
      const auto bytes = parse_bytes(text);
      if (bytes && *bytes > 0) {
        cap = *bytes;
      } else {
        log(LogLevel::kWarning, "MILLRACE_MEMORY is \"{}\", not a size like 4GB; the default is used, {}", text,
            format_bytes(cap));
      }
    }
    return std::make_shared<MemoryBudget>(cap);
  }());
  return budget;
}

int64_t MemoryBudget::cap_bytes() const {
  return impl_->cap;
}
int64_t MemoryBudget::reserved_bytes() const {
  MutexLock lock(impl_->mutex);
  return impl_->reserved;
}

struct Buffer::Owner {
  std::shared_ptr<MemoryBudget::Impl> budget;
  std::string user;
  int64_t limit = 0;
  mutable Mutex mutex;
  CondVar freed;
  int64_t in_use GUARDED_BY(mutex) = 0;
  int64_t idle GUARDED_BY(mutex) = 0;
  uint64_t returns GUARDED_BY(mutex) = 0;  // buffers given back so far
  std::multimap<size_t, std::byte*> free GUARDED_BY(mutex);

  // An idle block that fits without wasting more than half of it, else a new one; null when the limit is reached.
  std::pair<std::byte*, size_t> take(size_t capacity) REQUIRES_LOCK(mutex) {
    const auto found = free.lower_bound(capacity);
    if (found != free.end() && found->first <= capacity * 2 && in_use + static_cast<int64_t>(found->first) <= limit) {
      const auto block = std::pair{found->second, found->first};
      free.erase(found);
      idle -= static_cast<int64_t>(block.second);
      in_use += static_cast<int64_t>(block.second);
      return block;
    }
    if (in_use + static_cast<int64_t>(capacity) > limit) return {nullptr, 0};
    while (in_use + idle + static_cast<int64_t>(capacity) > limit) {
      const auto largest = std::prev(free.end());
      idle -= static_cast<int64_t>(largest->first);
      delete_block(largest->second, largest->first);
      free.erase(largest);
    }
    std::byte* const data = new_block(capacity);
    if (data == nullptr) return {nullptr, 0};
    in_use += static_cast<int64_t>(capacity);
    return {data, capacity};
  }

  ~Owner() {
    for (const auto& [size, data] : free) delete_block(data, size);
    budget->give(user, limit);
  }
};

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

Buffer::~Buffer() {
  if (!owner_) return;
  {
    MutexLock lock(owner_->mutex);
    owner_->in_use -= static_cast<int64_t>(capacity_);
    owner_->idle += static_cast<int64_t>(capacity_);
    ++owner_->returns;
    // Before those of the same size: the one that was used last is the next, as it may still be in a cache.
    owner_->free.emplace_hint(owner_->free.lower_bound(capacity_), capacity_, data_);
  }
  owner_->freed.notify_all();
}

Result<std::unique_ptr<BufferPool>> BufferPool::reserve(MemoryBudget& budget, std::string user, int64_t bytes) {
  RETURN_IF_ERROR(budget.impl_->take(user, bytes));
  auto owner = std::make_shared<Buffer::Owner>();
  owner->budget = budget.impl_;
  owner->user = std::move(user);
  owner->limit = bytes;
  return std::unique_ptr<BufferPool>(new BufferPool(std::move(owner)));
}

BufferPool::~BufferPool() = default;

Result<Buffer> BufferPool::try_acquire(size_t size_bytes) {
  const size_t capacity = std::max<size_t>((size_bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  if (static_cast<int64_t>(capacity) > owner_->limit) {
    return no_memory(fmt::format("{} needs one buffer of {}, its whole reservation is {}", owner_->user,
                                 format_bytes(static_cast<int64_t>(capacity)), format_bytes(owner_->limit)));
  }
  Buffer buffer;
  MutexLock lock(owner_->mutex);
  const auto [data, taken] = owner_->take(capacity);
  if (data == nullptr) return buffer;
  buffer.owner_ = owner_;
  buffer.data_ = data;
  buffer.size_ = size_bytes;
  buffer.capacity_ = taken;
  return buffer;
}

Result<Buffer> BufferPool::acquire(size_t size_bytes, std::stop_token stop) {
  std::stop_callback wake(stop, [owner = owner_] {
    MutexLock lock(owner->mutex);
    owner->freed.notify_all();
  });
  for (;;) {
    uint64_t returns_before = 0;
    {
      MutexLock lock(owner_->mutex);
      returns_before = owner_->returns;
    }
    ASSIGN_OR_RETURN(Buffer buffer, try_acquire(size_bytes));
    if (buffer) return buffer;
    MutexLock lock(owner_->mutex);
    while (owner_->returns == returns_before) {
      if (stop.stop_requested()) {
        return fail(ErrorCode::kCancelled, "{}: stopped while waiting for memory", owner_->user);
      }
      if (owner_->in_use == 0) {  // it fits, and no buffer will come back
        return no_memory(fmt::format("{}: the system gave no memory for a buffer of {}; lower MILLRACE_MEMORY",
                                     owner_->user, format_bytes(static_cast<int64_t>(size_bytes))));
      }
      owner_->freed.wait(owner_->mutex);
    }
  }
}

int64_t BufferPool::limit_bytes() const {
  return owner_->limit;
}
int64_t BufferPool::in_use_bytes() const {
  MutexLock lock(owner_->mutex);
  return owner_->in_use;
}

}  // namespace millrace
