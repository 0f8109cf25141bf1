// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/nvml.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace::monitor {

namespace {

constexpr Series kBusy{"millrace_gpu_busy_ratio", "Share of the last period in which a kernel ran"};
constexpr Series kMemoryBusy{"millrace_gpu_memory_busy_ratio",
                             "Share of the last period in which memory was read or written"};
constexpr Series kUsed{"millrace_gpu_memory_used_bytes", "Memory in use"};
constexpr Series kTotal{"millrace_gpu_memory_size_bytes", "Memory of the GPU"};
constexpr Series kTemperature{"millrace_gpu_temperature_celsius", "Temperature of the GPU"};
constexpr Series kPower{"millrace_gpu_power_watts", "Power drawn"};
constexpr Series kPowerLimit{"millrace_gpu_power_limit_watts", "Power limit in force"};
constexpr Series kEnergy{"millrace_gpu_energy_joules_total", "Energy since the driver was loaded", true};
constexpr Series kClock{"millrace_gpu_sm_clock_hertz", "Clock of the multiprocessors"};
constexpr Series kLowered{"millrace_gpu_clock_lowered", "1 while this reason lowers the clocks"};
constexpr Series kXid{"millrace_gpu_xid_total",
                      "Xid errors that the driver reported since the monitor began, by number", true};
constexpr Series kReplays{"millrace_gpu_pcie_replays_total", "PCIe transfers that were repeated", true};
constexpr Series kFields[] = {
    {"millrace_gpu_ecc_corrected_total", "ECC errors corrected since boot", true},
    {"millrace_gpu_ecc_uncorrected_total", "ECC errors not corrected since boot", true},
    {"millrace_gpu_pcie_transmit_bytes_total", "Bytes sent over PCIe", true},
    {"millrace_gpu_pcie_receive_bytes_total", "Bytes received over PCIe", true},
    {"millrace_gpu_nvlink_transmit_bytes_total", "Bytes sent over all NVLinks", true},
    {"millrace_gpu_nvlink_receive_bytes_total", "Bytes received over all NVLinks", true},
};
constexpr uint32_t kAllLinks = 0xFFFFFFFF;
// GPM: of the time between two looks, for a GPU and for a MIG slice.
struct GpmOf {
  uint32_t id;  // in percent
  Series gpu, mig;
};
constexpr GpmOf kGpmOf[] = {
    {2,
     {"millrace_gpu_sm_busy_ratio", "Share of multiprocessors with work, over the time since the sample before"},
     {"millrace_mig_sm_busy_ratio", "Share of a MIG slice's multiprocessors with work"}},
    {3,
     {"millrace_gpu_sm_occupancy_ratio", "Warps on the multiprocessors, of those that fit"},
     {"millrace_mig_sm_occupancy_ratio", "Warps on a MIG slice's multiprocessors, of those that fit"}},
    {5,
     {"millrace_gpu_tensor_busy_ratio", "Share of the time in which tensor cores worked"},
     {"millrace_mig_tensor_busy_ratio", "Share of the time in which a MIG slice's tensor cores worked"}},
    {10,
     {"millrace_gpu_dram_busy_ratio", "Share of the memory's bandwidth in use"},
     {"millrace_mig_dram_busy_ratio", "Share of a MIG slice's memory bandwidth in use"}},
};
constexpr std::chrono::milliseconds kGpmApart{100};  // NVML asks for at least that between two looks
constexpr Series kMigUsed{"millrace_mig_memory_used_bytes", "Memory of the MIG slice in use"};
constexpr Series kMigTotal{"millrace_mig_memory_size_bytes", "Memory of the MIG slice"};
struct FieldOf {
  uint32_t id, scope;
  double scale;
};
constexpr FieldOf kFieldOf[] = {
    {3, 0, 1}, {4, 0, 1}, {197, 0, 1024}, {198, 0, 1024}, {138, kAllLinks, 1024}, {139, kAllLinks, 1024}};
constexpr std::pair<uint64_t, const char*> kReasons[] = {{0x4, "power_cap"},
                                                         {0x8, "hardware_slowdown"},
                                                         {0x20, "software_thermal"},
                                                         {0x40, "hardware_thermal"},
                                                         {0x80, "power_brake"}};
constexpr int kOk = 0;
constexpr int kGpuLost = 15;
constexpr uint64_t kXidEvents = 8;

}  // namespace

// As in nvml.h. They have linkage because Nvml::Calls names them.
namespace nvml {
struct Utilization {
  uint32_t gpu, memory;
};
struct Memory2 {
  uint32_t version;
  uint64_t total, reserved, free, used;
};
static_assert(sizeof(Memory2) == 40);
struct Temperature1 {
  uint32_t version, sensor;
  int32_t celsius;
};
struct FieldValue {
  uint32_t id, scope;
  int64_t time, latency;
  uint32_t type;
  int32_t code;
  std::array<unsigned char, 8> value;
};
static_assert(sizeof(FieldValue) == 40);
struct GpmSupport {
  uint32_t version, yes;
};
struct GpmMetric {
  uint32_t id;
  int32_t code;
  double value;
  std::array<const char*, 3> names;
};
static_assert(sizeof(GpmMetric) == 40);
// nvml.h gives the array another length in each version; NVML takes the count.
struct GpmMetrics {
  uint32_t version, count;
  void *first, *second;
  std::array<GpmMetric, std::size(kGpmOf)> metrics;
};
static_assert(sizeof(GpmMetrics) == 24 + 40 * std::size(kGpmOf));
struct EventData {
  void* device;
  uint64_t type, number;
  uint32_t gpu_instance, compute_instance;
};
static_assert(sizeof(EventData) == 32);
}  // namespace nvml

namespace {

using namespace nvml;

template <class T>
double as(const FieldValue& field) {
  T value;
  std::memcpy(&value, field.value.data(), sizeof(T));
  return static_cast<double>(value);
}

double number(const FieldValue& field) {
  switch (field.type) {
    case 0:
      return as<double>(field);
    case 1:
      return as<uint32_t>(field);
    case 4:
      return as<int64_t>(field);
    case 5:
      return as<int32_t>(field);
    case 6:
      return as<uint16_t>(field);
    default:
      return as<uint64_t>(field);
  }
}

std::string reason(int code) {
  if (code == kGpuLost) return "it fell off the bus; drain the node and reboot it";
  if (code == 9) return "the driver is not loaded";
  if (code == 18) return "driver and library differ: the driver was upgraded; reboot the node";
  return fmt::format("NVML answers {}", code);
}

}  // namespace

// Null: this driver lacks the call.
struct Nvml::Calls {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, void**);
  int (*utilization)(void*, Utilization*);
  int (*memory)(void*, Memory2*);
  int (*temperature)(void*, Temperature1*);
  int (*old_temperature)(void*, unsigned, unsigned*);
  int (*power)(void*, unsigned*);
  int (*power_limit)(void*, unsigned*);
  int (*energy)(void*, unsigned long long*);
  int (*clock)(void*, unsigned, unsigned*);
  int (*reasons)(void*, unsigned long long*);
  int (*old_reasons)(void*, unsigned long long*);
  int (*replays)(void*, unsigned*);
  int (*fields)(void*, int, FieldValue*);
  int (*gpm_support)(void*, GpmSupport*);
  int (*gpm_alloc)(void**);
  int (*gpm_free)(void*);
  int (*gpm_look)(void*, void*);
  int (*gpm_look_mig)(void*, unsigned, void*);
  int (*gpm_metrics)(GpmMetrics*);
  int (*mig_mode)(void*, unsigned*, unsigned*);
  int (*most_migs)(void*, unsigned*);
  int (*mig)(void*, unsigned, void**);
  int (*mig_instance)(void*, unsigned*);
  int (*make_events)(void**);
  int (*register_events)(void*, uint64_t, void*);
  int (*next_event)(void*, EventData*, unsigned);
  int (*free_events)(void*);

  bool has_gpm() const {
    return gpm_support != nullptr && gpm_alloc != nullptr && gpm_free != nullptr && gpm_look != nullptr &&
           gpm_metrics != nullptr;
  }
  // Two looks at a GPU or slice, of which the newer one is kept for the next time.
  struct GpmLooks {
    void *last = nullptr, *next = nullptr;
    Clock::time_point when;
    bool has_last = false;
  };
  std::map<std::pair<void*, int64_t>, GpmLooks> gpm;  // by GPU and instance; -1: the whole GPU
  std::map<void*, bool> knows_gpm;                    // by GPU

  void* events = nullptr;                                    // null: Xid errors are not told
  std::map<void*, std::string> gpus;                         // whose events are told
  std::map<std::pair<std::string, uint64_t>, int64_t> xids;  // by GPU and number
};

Nvml::Nvml(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}
Nvml::~Nvml() {
  for (const auto& [which, looks] : calls_->gpm) {
    for (void* const look : {looks.last, looks.next}) {
      if (look != nullptr) calls_->gpm_free(look);
    }
  }
  if (calls_->events != nullptr && calls_->free_events != nullptr) calls_->free_events(calls_->events);
  if (calls_->shutdown != nullptr) calls_->shutdown();
}

Result<std::unique_ptr<Nvml>> Nvml::open(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: NVML keeps threads
  if (handle == nullptr) return fail(ErrorCode::kUnsupported, "no {}: this node has no NVIDIA driver", library);
  auto calls = std::make_unique<Calls>();
  const auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(handle, name));
  };
  find(calls->init, "nvmlInit_v2");
  find(calls->shutdown, "nvmlShutdown");
  find(calls->count, "nvmlDeviceGetCount_v2");
  find(calls->handle, "nvmlDeviceGetHandleByIndex_v2");
  find(calls->utilization, "nvmlDeviceGetUtilizationRates");
  find(calls->memory, "nvmlDeviceGetMemoryInfo_v2");
  find(calls->temperature, "nvmlDeviceGetTemperatureV");
  find(calls->old_temperature, "nvmlDeviceGetTemperature");
  find(calls->power, "nvmlDeviceGetPowerUsage");
  find(calls->power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  find(calls->energy, "nvmlDeviceGetTotalEnergyConsumption");
  find(calls->clock, "nvmlDeviceGetClockInfo");
  find(calls->reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  find(calls->old_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  find(calls->replays, "nvmlDeviceGetPcieReplayCounter");
  find(calls->fields, "nvmlDeviceGetFieldValues");
  find(calls->gpm_support, "nvmlGpmQueryDeviceSupport");
  find(calls->gpm_alloc, "nvmlGpmSampleAlloc");
  find(calls->gpm_free, "nvmlGpmSampleFree");
  find(calls->gpm_look, "nvmlGpmSampleGet");
  find(calls->gpm_look_mig, "nvmlGpmMigSampleGet");
  find(calls->gpm_metrics, "nvmlGpmMetricsGet");
  find(calls->mig_mode, "nvmlDeviceGetMigMode");
  find(calls->most_migs, "nvmlDeviceGetMaxMigDeviceCount");
  find(calls->mig, "nvmlDeviceGetMigDeviceHandleByIndex");
  find(calls->mig_instance, "nvmlDeviceGetGpuInstanceId");
  find(calls->make_events, "nvmlEventSetCreate");
  find(calls->register_events, "nvmlDeviceRegisterEvents");
  find(calls->next_event, "nvmlEventSetWait_v2");
  find(calls->free_events, "nvmlEventSetFree");
  if (calls->init == nullptr || calls->count == nullptr || calls->handle == nullptr) {
    return fail(ErrorCode::kUnsupported, "{} has not the functions of NVML", library);
  }
  if (const int code = calls->init(); code != kOk) {
    return fail(ErrorCode::kUnavailable, "NVML does not start: {}", reason(code));
  }
  if (calls->make_events != nullptr && calls->register_events != nullptr && calls->next_event != nullptr &&
      calls->make_events(&calls->events) != kOk) {
    calls->events = nullptr;
  }
  if (calls->register_events == nullptr || calls->next_event == nullptr) calls->events = nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(calls)));
}

// Errors that came since the last look; NVML keeps them until then. No time is spent waiting.
void Nvml::read_events(Sample& sample) {
  constexpr int kMost = 1000;
  if (calls_->events == nullptr) return;
  EventData event{};
  for (int i = 0; i < kMost && calls_->next_event(calls_->events, &event, 0) == kOk; ++i) {
    const auto gpu = calls_->gpus.find(event.device);
    if (gpu != calls_->gpus.end() && event.type == kXidEvents) ++calls_->xids[{gpu->second, event.number}];
  }
  for (const auto& [which, count] : calls_->xids) {
    sample.add(kXid, static_cast<double>(count), {{"gpu", which.first}, {"xid", std::to_string(which.second)}});
  }
}

void Nvml::read(Sample& sample) {
  unsigned count = 0;
  if (const int code = calls_->count(&count); code != kOk)
    return sample.missing.push_back("GPUs: " + reason(code)), void();
  for (unsigned index = 0; index < count; ++index) {
    const std::string gpu = std::to_string(index);
    void* device = nullptr;
    const int code = calls_->handle(index, &device);
    if (code == kOk) {
      if (calls_->events != nullptr && calls_->gpus.emplace(device, gpu).second) {
        calls_->register_events(device, kXidEvents, calls_->events);
      }
      read_gpu(device, gpu, sample);
      read_gpm(device, -1, {{"gpu", gpu}}, sample);
      read_migs(device, gpu, sample);
    } else {
      sample.missing.push_back("GPU " + gpu + ": " + reason(code));
    }
  }
  read_events(sample);
}

// Hopper and later. The first look has nothing to compare with.
void Nvml::read_gpm(void* device, int64_t instance, const Labels& labels, Sample& sample) {
  if (!calls_->has_gpm() || (instance >= 0 && calls_->gpm_look_mig == nullptr)) return;
  if (!calls_->knows_gpm.contains(device)) {
    GpmSupport support{.version = 1, .yes = 0};
    calls_->knows_gpm[device] = calls_->gpm_support(device, &support) == kOk && support.yes != 0;
  }
  if (!calls_->knows_gpm[device]) return;
  Calls::GpmLooks& looks = calls_->gpm[{device, instance}];
  const auto now = Clock::now();
  if (looks.has_last && now - looks.when < kGpmApart) return;
  if (looks.next == nullptr && calls_->gpm_alloc(&looks.next) != kOk) return looks.next = nullptr, void();
  const int looked = instance < 0 ? calls_->gpm_look(device, looks.next)
                                  : calls_->gpm_look_mig(device, static_cast<unsigned>(instance), looks.next);
  if (looked != kOk) return;
  GpmMetrics metrics{
      .version = 1, .count = std::size(kGpmOf), .first = looks.last, .second = looks.next, .metrics = {}};
  for (size_t i = 0; i < std::size(kGpmOf); ++i) metrics.metrics[i].id = kGpmOf[i].id;
  if (looks.has_last && calls_->gpm_metrics(&metrics) == kOk) {
    for (size_t i = 0; i < std::size(kGpmOf); ++i) {
      const GpmMetric& metric = metrics.metrics[i];
      if (metric.code == kOk) sample.add(instance < 0 ? kGpmOf[i].gpu : kGpmOf[i].mig, metric.value / 100, labels);
    }
  }
  std::swap(looks.last, looks.next);
  looks.has_last = true;
  looks.when = now;
}

// A GPU in MIG mode tells no utilisation of its own.
void Nvml::read_migs(void* device, const std::string& gpu, Sample& sample) {
  unsigned current = 0, pending = 0, most = 0;
  if (calls_->mig_mode == nullptr || calls_->most_migs == nullptr || calls_->mig == nullptr ||
      calls_->mig_instance == nullptr || calls_->mig_mode(device, &current, &pending) != kOk || current != 1 ||
      calls_->most_migs(device, &most) != kOk)
    return;
  for (unsigned index = 0; index < most; ++index) {
    void* slice = nullptr;
    unsigned instance = 0;
    if (calls_->mig(device, index, &slice) != kOk || calls_->mig_instance(slice, &instance) != kOk) continue;
    const Labels labels = {{"gpu", gpu}, {"mig", std::to_string(instance)}};
    Memory2 memory{.version = 0x02000028, .total = 0, .reserved = 0, .free = 0, .used = 0};
    if (calls_->memory != nullptr && calls_->memory(slice, &memory) == kOk) {
      sample.add(kMigUsed, static_cast<double>(memory.used), labels);
      sample.add(kMigTotal, static_cast<double>(memory.total), labels);
    }
    read_gpm(device, instance, labels, sample);
  }
}

void Nvml::read_gpu(void* device, const std::string& gpu, Sample& sample) {
  const Labels labels = {{"gpu", gpu}};
  const auto add_unsigned = [&](int (*call)(void*, unsigned*), const Series& series, double scale) {
    unsigned value = 0;
    if (call != nullptr && call(device, &value) == kOk) sample.add(series, value * scale, labels);
  };
  Utilization busy{};
  const int code = calls_->utilization != nullptr ? calls_->utilization(device, &busy) : kOk;
  if (code == kGpuLost) return sample.missing.push_back("GPU " + gpu + ": " + reason(code)), void();
  if (calls_->utilization != nullptr && code == kOk) {
    sample.add(kBusy, busy.gpu / 100.0, labels);
    sample.add(kMemoryBusy, busy.memory / 100.0, labels);
  }
  Memory2 memory{.version = 0x02000028, .total = 0, .reserved = 0, .free = 0, .used = 0};
  if (calls_->memory != nullptr && calls_->memory(device, &memory) == kOk) {
    sample.add(kUsed, static_cast<double>(memory.used), labels);
    sample.add(kTotal, static_cast<double>(memory.total), labels);
  }
  Temperature1 temperature{.version = 0x100000C, .sensor = 0, .celsius = 0};
  unsigned old_celsius = 0;
  if (calls_->temperature != nullptr && calls_->temperature(device, &temperature) == kOk) {
    sample.add(kTemperature, temperature.celsius, labels);
  } else if (calls_->old_temperature != nullptr && calls_->old_temperature(device, 0, &old_celsius) == kOk) {
    sample.add(kTemperature, old_celsius, labels);
  }
  add_unsigned(calls_->power, kPower, 1e-3);
  add_unsigned(calls_->power_limit, kPowerLimit, 1e-3);
  add_unsigned(calls_->replays, kReplays, 1);
  unsigned long long wide = 0;
  if (calls_->energy != nullptr && calls_->energy(device, &wide) == kOk) {
    sample.add(kEnergy, static_cast<double>(wide) / 1e3, labels);
  }
  unsigned megahertz = 0;
  if (calls_->clock != nullptr && calls_->clock(device, 1, &megahertz) == kOk)
    sample.add(kClock, megahertz * 1e6, labels);
  const auto reasons = calls_->reasons != nullptr ? calls_->reasons : calls_->old_reasons;
  if (reasons != nullptr && reasons(device, &wide) == kOk) {
    for (const auto& [bit, name] : kReasons) {
      sample.add(kLowered, (wide & bit) != 0 ? 1 : 0, {{"gpu", gpu}, {"reason", name}});
    }
  }
  std::array<FieldValue, std::size(kFieldOf)> fields{};
  for (size_t i = 0; i < fields.size(); ++i)
    fields[i] = {
        .id = kFieldOf[i].id, .scope = kFieldOf[i].scope, .time = 0, .latency = 0, .type = 0, .code = 0, .value = {}};
  if (calls_->fields == nullptr || calls_->fields(device, static_cast<int>(fields.size()), fields.data()) != kOk)
    return;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].code == kOk) sample.add(kFields[i], number(fields[i]) * kFieldOf[i].scale, labels);
  }
}

}  // namespace millrace::monitor
