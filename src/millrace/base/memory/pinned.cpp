// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/memory/pinned.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace {

// Functions of CUDA's driver API, by the names that its library exports (cuda.h maps some to the _v2 ones).
struct CudaDriver {
  using Context = void*;
  int (*current)(Context* context) = nullptr;
  int (*push)(Context context) = nullptr;
  int (*pop)(Context* context) = nullptr;
  int (*pin)(void* data, size_t bytes, unsigned flags) = nullptr;
  int (*unpin)(void* data) = nullptr;
  std::atomic<Context> seen{nullptr};  // the last context of a thread that had one
};

namespace {

constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: pinned for every context

// A context while it exists: the thread's own, or the one that was seen last.
class InContext {
 public:
  explicit InContext(CudaDriver& driver) : driver_(driver) {
    CudaDriver::Context now = nullptr;
    if (driver_.current(&now) == 0 && now != nullptr) {
      driver_.seen = now;
      is_there_ = true;
      return;
    }
    now = driver_.seen;
    is_there_ = pushed_ = now != nullptr && driver_.push(now) == 0;
  }
  ~InContext() {
    CudaDriver::Context popped = nullptr;
    if (pushed_) driver_.pop(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

  bool is_there() const { return is_there_; }

 private:
  CudaDriver& driver_;
  bool is_there_ = false, pushed_ = false;
};

Result<std::unique_ptr<CudaDriver>> open_driver(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: CUDA keeps threads
  if (handle == nullptr) return fail(ErrorCode::kUnsupported, "no CUDA driver: {}", dlerror());
  auto driver = std::make_unique<CudaDriver>();
  const auto find = [&](auto& function, const char* name) {
    // SAFETY: the signatures are those of cuda.h.
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    return function != nullptr;
  };
  if (!find(driver->current, "cuCtxGetCurrent") || !find(driver->push, "cuCtxPushCurrent_v2") ||
      !find(driver->pop, "cuCtxPopCurrent_v2") || !find(driver->pin, "cuMemHostRegister_v2") ||
      !find(driver->unpin, "cuMemHostUnregister"))
    return fail(ErrorCode::kUnsupported, "{} is no CUDA driver: {}", library, dlerror());
  return driver;
}

// One for each library, for the whole process.
Result<CudaDriver*> driver_of(const std::string& library) {
  static Mutex mutex;
  static std::map<std::string, std::unique_ptr<CudaDriver>> drivers;
  MutexLock lock(mutex);
  auto& driver = drivers[library];
  if (!driver) {
    ASSIGN_OR_RETURN(driver, open_driver(library));
  }
  return driver.get();
}

}  // namespace

void PinnedRange::see_context(const std::string& library) {
  const auto driver = driver_of(library);
  if (driver) static_cast<void>(InContext(**driver).is_there());
}

Result<PinnedRange> PinnedRange::pin(std::span<std::byte> memory, const std::string& library) {
  ASSIGN_OR_RETURN(CudaDriver* const driver, driver_of(library));
  const InContext context(*driver);
  if (!context.is_there()) return fail(ErrorCode::kUnavailable, "no device is in use yet");
  if (const int code = driver->pin(memory.data(), memory.size(), kPortable); code != 0)
    return fail(ErrorCode::kResourceExhausted, "the CUDA driver does not pin {} bytes (error {})", memory.size(), code);
  PinnedRange range;
  range.driver_ = driver;
  range.data_ = memory.data();
  return range;
}

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(data_, other.data_);
  return *this;
}

PinnedRange::~PinnedRange() {
  if (driver_ == nullptr) return;
  const InContext context(*driver_);
  driver_->unpin(data_);
}

}  // namespace millrace
