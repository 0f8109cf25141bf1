// SPDX-License-Identifier: Apache-2.0
// A library with NVML's functions for tests. FAKE_NVML names a file of lines "0.busy=37"; it is read at each call. A
// value "lost" answers 15, a key that is not there 3 (not supported). Structures are laid out as in nvml.h.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

constexpr int kNotSupported = 3;
constexpr int kLost = 15;

int answer(const std::string& key, double& value) {
  std::ifstream file(std::getenv("FAKE_NVML"));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key + "=")) continue;
    const std::string text = line.substr(key.size() + 1);
    value = std::atof(text.c_str());
    return text == "lost" ? kLost : 0;
  }
  return kNotSupported;
}

template <class T>
int answer_device(void* device, const char* key, T* out) {
  double value = 0;
  const int code = answer(std::to_string(reinterpret_cast<uintptr_t>(device) - 1) + "." + key, value);
  if (code == 0) *out = static_cast<T>(value);
  return code;
}

// A look of GPM; how many there are tells a leak.
struct Look {
  std::string key;  // "0." or "0.mig3."
  std::chrono::steady_clock::time_point when;
};
int looks = 0;

int look_at(const std::string& key, void* look) {
  *static_cast<Look*>(look) = {key, std::chrono::steady_clock::now()};
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  double value = 0;
  const int code = answer("count", value);
  *count = static_cast<unsigned>(value);
  return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(uintptr_t{index} + 1);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[1] = 0;
  return answer_device(device, "busy", rates);
}
int nvmlDeviceGetMemoryInfo_v2(void* device, uint64_t* memory) {
  if (static_cast<uint32_t>(memory[0]) != 0x02000028) return 25;
  if (const int code = answer_device(device, "total", memory + 1); code != 0) return code;
  return answer_device(device, "used", memory + 4);
}
int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* celsius) {
  return answer_device(device, "celsius", celsius);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  return answer_device(device, "milliwatts", milliwatts);
}
int nvmlDeviceGetClockInfo(void* device, unsigned kind, unsigned* megahertz) {
  return kind == 1 ? answer_device(device, "megahertz", megahertz) : kNotSupported;
}
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  return answer_device(device, "reasons", reasons);
}
int nvmlDeviceGetFieldValues(void* device, int count, unsigned char* fields) {
  for (int i = 0; i < count; ++i, fields += 40) {
    uint32_t id = 0;
    std::memcpy(&id, fields, 4);
    uint64_t value = 0;
    const int code = answer_device(device, ("field" + std::to_string(id)).c_str(), &value);
    const uint32_t type = 3;  // unsigned, 64 bits
    std::memcpy(fields + 24, &type, 4);
    std::memcpy(fields + 28, &code, 4);
    std::memcpy(fields + 32, &value, 8);
  }
  return 0;
}
// A slice is a device from 1000 on: 1000 * (GPU + 1) + its number, which is its instance, too.
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return answer_device(device, "mig", current);
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** slice) {
  double used = 0;
  const auto gpu = reinterpret_cast<uintptr_t>(device) - 1;
  *slice = reinterpret_cast<void*>(1000 * (gpu + 1) + index + 1);
  return answer(std::to_string(1000 * (gpu + 1) + index) + ".used", used) == 0 ? 0 : 6;
}
int nvmlDeviceGetGpuInstanceId(void* slice, unsigned* instance) {
  *instance = static_cast<unsigned>((reinterpret_cast<uintptr_t>(slice) - 1) % 1000);
  return 0;
}
int nvmlGpmQueryDeviceSupport(void* device, unsigned* support) {
  return support[0] == 1 ? answer_device(device, "gpm", support + 1) : 25;
}
int nvmlGpmSampleAlloc(void** look) {
  ++looks;
  *look = new Look;
  return 0;
}
int nvmlGpmSampleFree(void* look) {
  --looks;
  delete static_cast<Look*>(look);
  return 0;
}
int nvmlGpmSampleGet(void* device, void* look) {
  return look_at(std::to_string(reinterpret_cast<uintptr_t>(device) - 1) + ".", look);
}
int nvmlGpmMigSampleGet(void* device, unsigned instance, void* look) {
  return look_at(std::to_string(1000 * reinterpret_cast<uintptr_t>(device) + instance) + ".", look);
}
// Looks of different devices, and such that are too near to each other, are refused.
int nvmlGpmMetricsGet(unsigned char* metrics) {
  uint32_t version = 0, count = 0;
  const Look *first = nullptr, *second = nullptr;
  std::memcpy(&version, metrics, 4);
  std::memcpy(&count, metrics + 4, 4);
  std::memcpy(&first, metrics + 8, 8);
  std::memcpy(&second, metrics + 16, 8);
  if (version != 1) return 25;
  if (first == second || first->key != second->key || second->when - first->when < std::chrono::milliseconds(100))
    return 2;
  for (uint32_t i = 0; i < count; ++i) {
    unsigned char* const metric = metrics + 24 + 40 * i;
    uint32_t id = 0;
    double value = 0;
    std::memcpy(&id, metric, 4);
    const int code = answer(first->key + "gpm" + std::to_string(id), value);
    std::memcpy(metric + 4, &code, 4);
    std::memcpy(metric + 8, &value, 8);
  }
  return 0;
}
int fakeLooks() {
  return looks;
}
int nvmlEventSetCreate(void** set) {
  static int events = 0;
  *set = &events;
  return 0;
}
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  double number = 0;
  return device != nullptr && types == 8 && set != nullptr ? answer("0.xid", number) : 2;
}
// Each new number of GPU 0 comes once; 10 is a timeout.
int nvmlEventSetWait_v2(void*, unsigned char* event, unsigned) {
  static double told = 0;
  double number = 0;
  if (answer("0.xid", number) != 0 || number == told) return 10;
  told = number;
  const uint64_t device = 1, type = 8;
  const auto xid = static_cast<uint64_t>(number);
  std::memcpy(event, &device, 8);
  std::memcpy(event + 8, &type, 8);
  std::memcpy(event + 16, &xid, 8);
  return 0;
}
int nvmlEventSetFree(void*) {
  return 0;
}
}
#pragma GCC visibility pop
