// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/nvml.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "millrace/monitor/testing.h"

namespace millrace::monitor {
namespace {

class NvmlTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    setenv("FAKE_NVML", (folder_ / "gpus").c_str(), 1);
  }
  Sample read() const {
    Sample sample;
    const auto nvml = Nvml::open(MILLRACE_FAKE_NVML);
    EXPECT_TRUE(nvml) << nvml.error().to_string();
    if (nvml) (*nvml)->read(sample);
    return sample;
  }
};

TEST_F(NvmlTest, ReadsValuesInBaseUnits) {
  put("gpus",
      "count=1\n0.busy=37\n0.total=1000\n0.used=400\n0.celsius=55\n0.milliwatts=250000\n0.megahertz=1500\n"
      "0.reasons=64\n0.field4=2\n0.field197=3\n0.field139=5\n");
  const auto values = by_key(read());
  EXPECT_EQ(values.at("millrace_gpu_busy_ratio{gpu=\"0\"}"), 0.37);
  EXPECT_EQ(values.at("millrace_gpu_memory_used_bytes{gpu=\"0\"}"), 400);
  EXPECT_EQ(values.at("millrace_gpu_memory_size_bytes{gpu=\"0\"}"), 1000);
  EXPECT_EQ(values.at("millrace_gpu_temperature_celsius{gpu=\"0\"}"), 55);
  EXPECT_EQ(values.at("millrace_gpu_power_watts{gpu=\"0\"}"), 250);
  EXPECT_EQ(values.at("millrace_gpu_sm_clock_hertz{gpu=\"0\"}"), 1.5e9);
  EXPECT_EQ(values.at("millrace_gpu_clock_lowered{gpu=\"0\",reason=\"hardware_thermal\"}"), 1);
  EXPECT_EQ(values.at("millrace_gpu_clock_lowered{gpu=\"0\",reason=\"power_cap\"}"), 0);
  EXPECT_EQ(values.at("millrace_gpu_ecc_uncorrected_total{gpu=\"0\"}"), 2);
  EXPECT_EQ(values.at("millrace_gpu_pcie_transmit_bytes_total{gpu=\"0\"}"), 3 * 1024);
  EXPECT_EQ(values.at("millrace_gpu_nvlink_receive_bytes_total{gpu=\"0\"}"), 5 * 1024);
}

TEST_F(NvmlTest, WhatTheDriverLacksIsLeftOutAndALostGpuIsNamed) {
  put("gpus", "count=2\n0.busy=lost\n1.celsius=40\n");
  const Sample sample = read();
  EXPECT_THAT(by_key(sample), testing::ElementsAre(testing::Pair("millrace_gpu_temperature_celsius{gpu=\"1\"}", 40)));
  EXPECT_THAT(sample.missing, testing::ElementsAre(testing::HasSubstr("GPU 0: it fell off the bus")));
}

// GPM compares two looks, so it tells from the second sample on; too soon a look is left out.
TEST_F(NvmlTest, GpmTellsOfTheTimeBetweenTwoLooks) {
  put("gpus", "count=2\n0.celsius=40\n0.gpm=1\n0.gpm2=80\n0.gpm3=25\n0.gpm5=60\n1.celsius=40\n1.gpm2=99\n");
  auto nvml = Nvml::open(MILLRACE_FAKE_NVML);
  ASSERT_TRUE(nvml);
  const auto values = [&] {
    Sample sample;
    (*nvml)->read(sample);
    return by_key(sample);
  };
  const std::string key = "millrace_gpu_sm_busy_ratio{gpu=\"0\"}";
  EXPECT_FALSE(values().contains(key)) << "nothing to compare with";
  EXPECT_FALSE(values().contains(key)) << "too soon";
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  const auto second = values();
  EXPECT_EQ(second.at(key), 0.8);
  EXPECT_EQ(second.at("millrace_gpu_sm_occupancy_ratio{gpu=\"0\"}"), 0.25);
  EXPECT_EQ(second.at("millrace_gpu_tensor_busy_ratio{gpu=\"0\"}"), 0.6);
  EXPECT_FALSE(second.contains("millrace_gpu_dram_busy_ratio{gpu=\"0\"}")) << "the driver has no such value";
  EXPECT_FALSE(second.contains("millrace_gpu_sm_busy_ratio{gpu=\"1\"}")) << "this GPU has no GPM";
  put("gpus", "count=2\n0.celsius=40\n0.gpm=1\n0.gpm2=10\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  EXPECT_EQ(values().at(key), 0.1);
  nvml->reset();
  const auto looks = reinterpret_cast<int (*)()>(dlsym(dlopen(MILLRACE_FAKE_NVML, RTLD_NOW), "fakeLooks"));
  EXPECT_EQ(looks(), 0) << "each is freed";
}

TEST_F(NvmlTest, SlicesOfMigAreReadOneByOne) {
  put("gpus",
      "count=1\n0.celsius=40\n0.mig=1\n0.gpm=1\n"
      "1001.used=100\n1001.total=1000\n1001.gpm2=50\n1005.used=200\n1005.total=500\n1005.gpm2=20\n");
  const auto nvml = Nvml::open(MILLRACE_FAKE_NVML);
  ASSERT_TRUE(nvml);
  const auto values = [&] {
    Sample sample;
    (*nvml)->read(sample);
    return by_key(sample);
  };
  auto found = values();
  EXPECT_EQ(found.at("millrace_mig_memory_used_bytes{gpu=\"0\",mig=\"1\"}"), 100);
  EXPECT_EQ(found.at("millrace_mig_memory_size_bytes{gpu=\"0\",mig=\"5\"}"), 500);
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  found = values();
  EXPECT_EQ(found.at("millrace_mig_sm_busy_ratio{gpu=\"0\",mig=\"1\"}"), 0.5);
  EXPECT_EQ(found.at("millrace_mig_sm_busy_ratio{gpu=\"0\",mig=\"5\"}"), 0.2);
  EXPECT_FALSE(found.contains("millrace_mig_memory_used_bytes{gpu=\"0\",mig=\"0\"}"));
  put("gpus", "count=1\n0.celsius=40\n0.mig=0\n1001.used=100\n");
  EXPECT_FALSE(values().contains("millrace_mig_memory_used_bytes{gpu=\"0\",mig=\"1\"}")) << "MIG is off";
}

TEST_F(NvmlTest, XidErrorsAreCounted) {
  put("gpus", "count=1\n0.celsius=40\n0.xid=79\n");
  const auto nvml = Nvml::open(MILLRACE_FAKE_NVML);
  ASSERT_TRUE(nvml);
  const auto values = [&] {
    Sample sample;
    (*nvml)->read(sample);
    return by_key(sample);
  };
  const std::string key = "millrace_gpu_xid_total{gpu=\"0\",xid=\"79\"}";
  EXPECT_EQ(values().at(key), 1);
  EXPECT_EQ(values().at(key), 1) << "none came in between";
  put("gpus", "count=1\n0.celsius=40\n0.xid=48\n");
  EXPECT_EQ(values().at("millrace_gpu_xid_total{gpu=\"0\",xid=\"48\"}"), 1);
  EXPECT_EQ(values().at(key), 1);
}

TEST_F(NvmlTest, ANodeWithoutADriverIsAnErrorThatSaysSo) {
  const auto nvml = Nvml::open("libmillrace-no-such.so.1");
  ASSERT_FALSE(nvml);
  EXPECT_EQ(nvml.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(nvml.error().message(), testing::HasSubstr("no NVIDIA driver"));
}

}  // namespace
}  // namespace millrace::monitor
