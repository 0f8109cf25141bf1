// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "millrace/plan/catalogue.h"

namespace millrace::plan {

namespace {

constexpr Source kEc2{"ec2", "EC2's instance types, as karpenter-provider-aws 1d92708 lists them", "2024-10", "stated"};
constexpr Source kTitan{"torchtitan", "torchtitan's table of dense bf16 peaks, from the makers' data sheets", "2026-02",
                        "checked"};
constexpr Source kSheet{"data sheet", "the maker's data sheet, dense half of any sparse figure", "2026-02",
                        "unconfirmed"};
constexpr Source kDriver{"driver", "total memory as nvidia-smi prints it", "2026-02", "unconfirmed"};
constexpr Source kDriverChecked{"driver", "total memory as nvidia-smi prints it", "2026-02", "stated"};
constexpr Source kTuring{"data sheet",
                         "tensor peak with FP32 accumulation; measured products reach 44.9 (busy-gemm-benchmark)",
                         "2026-02", "unconfirmed"};

}  // namespace

std::span<const Gpu> gpus() {
  static const std::array<Gpu, 18> kGpus{{
      {"b300", "NVIDIA B300", {275040, &kEc2}, {2250, &kSheet}, {8000, &kSheet}, "10.3", true, ""},
      {"b200", "NVIDIA B200", {183359, &kEc2}, {2250, &kTitan}, {8000, &kSheet}, "10.0", true, ""},
      {"h200", "NVIDIA H200 SXM", {143771, &kDriverChecked}, {989, &kTitan}, {4800, &kSheet}, "9.0", true, ""},
      {"h100-sxm", "NVIDIA H100 SXM", {81559, &kDriver}, {989, &kTitan}, {3350, &kSheet}, "9.0", true, ""},
      {"h100-nvl",
       "NVIDIA H100 NVL",
       {95830, &kDriver},
       {835, &kTitan},
       {3900, &kSheet},
       "9.0",
       true,
       "1979 in other tables is the SXM's sparse figure"},
      {"h100-pcie", "NVIDIA H100 PCIe", {81559, &kDriver}, {756, &kTitan}, {2000, &kSheet}, "9.0", true, ""},
      {"rtxpro6000",
       "NVIDIA RTX PRO 6000 Blackwell",
       {97887, &kDriver},
       {500, &kSheet},
       {1600, &kSheet},
       "12.0",
       true,
       "TFLOPS are a round figure"},
      {"l40s",
       "NVIDIA L40S",
       {45776, &kEc2},
       {362, &kTitan},
       {864, &kSheet},
       "8.9",
       true,
       "183.2 in other tables is twice its FP32 shader figure"},
      {"a100-80gb", "NVIDIA A100 80GB", {81920, &kEc2}, {312, &kTitan}, {2039, &kSheet}, "8.0", true, ""},
      {"a100-40gb", "NVIDIA A100 40GB", {40960, &kEc2}, {312, &kTitan}, {1555, &kSheet}, "8.0", true, ""},
      {"rtx4090",
       "NVIDIA GeForce RTX 4090",
       {24564, &kDriverChecked},
       {165, &kSheet},
       {1008, &kSheet},
       "8.9",
       true,
       ""},
      {"v100-32gb", "NVIDIA V100 SXM 32GB", {32768, &kEc2}, {125, &kSheet}, {900, &kSheet}, "7.0", false, "no bf16"},
      {"v100-16gb", "NVIDIA V100 SXM 16GB", {16384, &kEc2}, {125, &kSheet}, {900, &kSheet}, "7.0", false, "no bf16"},
      {"l4", "NVIDIA L4", {22888, &kEc2}, {121, &kSheet}, {300, &kSheet}, "8.9", true, ""},
      {"a10g",
       "NVIDIA A10G",
       {22888, &kEc2},
       {70, &kSheet},
       {600, &kSheet},
       "8.6",
       true,
       "125 in other tables is the A10's"},
      {"t4", "NVIDIA T4", {15360, &kDriver}, {65, &kSheet}, {320, &kSheet}, "7.5", false, "no bf16"},
      {"rtx4070", "NVIDIA GeForce RTX 4070", {12282, &kDriver}, {58, &kSheet}, {504, &kSheet}, "8.9", true, ""},
      {"rtx2080ti",
       "NVIDIA GeForce RTX 2080 Ti",
       {11264, &kDriver},
       {54, &kTuring},
       {616, &kSheet},
       "7.5",
       false,
       "no bf16, no FlashAttention 2"},
  }};
  return kGpus;
}

std::span<const Instance> instances() {
  static constexpr std::array<Instance, 18> kInstances{{
      {"p6-b300.48xlarge", "b300", 8, 192, 4096, 30400, 6400, 16},
      {"p6-b200.48xlarge", "b200", 8, 192, 2048, 30400, 3200, 8},
      {"p5en.48xlarge", "h200", 8, 192, 2048, 30400, 3200, 16},
      {"p5e.48xlarge", "h200", 8, 192, 2048, 30400, 3200, 32},
      {"p5.48xlarge", "h100-sxm", 8, 192, 2048, 30400, 3200, 32},
      {"p5.4xlarge", "h100-sxm", 1, 16, 256, 3800, 100, 1},
      {"p4de.24xlarge", "a100-80gb", 8, 96, 1152, 8000, 400, 4},
      {"p4d.24xlarge", "a100-40gb", 8, 96, 1152, 8000, 400, 4},
      {"p3dn.24xlarge", "v100-32gb", 8, 96, 768, 1800, 100, 1},
      {"g7e.48xlarge", "rtxpro6000", 8, 192, 2048, 15200, 1600, 4},
      {"g6e.48xlarge", "l40s", 8, 192, 1536, 7600, 400, 4},
      {"g6e.24xlarge", "l40s", 4, 96, 768, 3800, 200, 2},
      {"g6e.12xlarge", "l40s", 4, 48, 384, 3800, 100, 1},
      {"g6.48xlarge", "l4", 8, 192, 768, 7520, 100, 1},
      {"g6.12xlarge", "l4", 4, 48, 192, 3760, 40, 1},
      {"g5.48xlarge", "a10g", 8, 192, 768, 7600, 100, 1},
      {"g5.12xlarge", "a10g", 4, 48, 192, 3800, 40, 1},
      {"g4dn.12xlarge", "t4", 4, 48, 192, 900, 50, 1},
  }};
  return kInstances;
}

const Source& instance_source() {
  return kEc2;
}

}  // namespace millrace::plan
