// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

namespace millrace::plan {

namespace {

// What names shorten to, without the maker, the family and punctuation. The longest that a name contains decides.
constexpr std::array<std::pair<std::string_view, std::string_view>, 32> kAliases{{
    {"b300", "b300"},
    {"b200", "b200"},
    {"h200", "h200"},
    {"h100sxm", "h100-sxm"},
    {"h10080gbhbm3", "h100-sxm"},
    {"h100", "h100-sxm"},
    {"h100nvl", "h100-nvl"},
    {"h100pcie", "h100-pcie"},
    {"pro6000", "rtxpro6000"},
    {"6000blackwell", "rtxpro6000"},
    {"l40s", "l40s"},
    {"a10080gb", "a100-80gb"},
    {"a100sxm80gb", "a100-80gb"},
    {"a100sxm480gb", "a100-80gb"},
    {"a100pcie80gb", "a100-80gb"},
    {"a10080", "a100-80gb"},
    {"a10040gb", "a100-40gb"},
    {"a100sxm440gb", "a100-40gb"},
    {"a100", "a100-40gb"},
    {"4090", "rtx4090"},
    {"v10032gb", "v100-32gb"},
    {"v100sxm232gb", "v100-32gb"},
    {"v100sxm32gb", "v100-32gb"},
    {"v10016gb", "v100-16gb"},
    {"v100", "v100-16gb"},
    {"l4", "l4"},
    {"a10g", "a10g"},
    {"t4", "t4"},
    {"4070", "rtx4070"},
    {"2080ti", "rtx2080ti"},
    {"rtx2080ti", "rtx2080ti"},
    {"a100sxm4", "a100-40gb"},
}};

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

const Gpu* whole_gpu(std::string_view name) {
  const std::string text = plain(name);
  const auto of_id = [](std::string_view id) {
    return &*std::find_if(gpus().begin(), gpus().end(), [&](const Gpu& gpu) { return gpu.id == id; });
  };
  for (const Gpu& gpu : gpus()) {
    if (plain(gpu.id) == text) return &gpu;
  }
  const std::pair<std::string_view, std::string_view>* best = nullptr;
  for (const auto& alias : kAliases) {
    const size_t at = text.find(alias.first);
    // "l4" is not in "l40", nor "a100" in "a1000".
    const bool ends =
        at != std::string::npos && (at + alias.first.size() == text.size() ||
                                    std::isdigit(static_cast<unsigned char>(text[at + alias.first.size()])) == 0 ||
                                    std::isdigit(static_cast<unsigned char>(alias.first.back())) == 0);
    if (ends && (best == nullptr || alias.first.size() > best->first.size())) best = &alias;
  }
  return best == nullptr ? nullptr : of_id(best->second);
}

// Instances of compute (of 7) and of memory (of 8), as NVIDIA's guide to MIG has them for A100 and later.
struct Profile {
  int compute;
  int memory;
};
constexpr std::array<Profile, 6> kProfiles{{{1, 1}, {1, 2}, {2, 2}, {3, 4}, {4, 4}, {7, 8}}};
constexpr Source kMig{"mig", "a share of the whole GPU: compute of 7, memory of 8, by NVIDIA's guide to MIG", "2026-02",
                      "unconfirmed"};

// GPUs that MIG can cut, with the GB by which their profiles are named: an eighth of 94 is "12gb".
constexpr std::array<std::pair<std::string_view, double>, 8> kSliceable{{{"a100-40gb", 40},
                                                                         {"a100-80gb", 80},
                                                                         {"h100-sxm", 80},
                                                                         {"h100-nvl", 94},
                                                                         {"h100-pcie", 80},
                                                                         {"h200", 141},
                                                                         {"b200", 180},
                                                                         {"b300", 288}}};

// 0: it cannot be cut.
double nominal_gb(const Gpu& gpu) {
  const auto found =
      std::find_if(kSliceable.begin(), kSliceable.end(), [&](const auto& each) { return each.first == gpu.id; });
  return found == kSliceable.end() ? 0 : found->second;
}

Gpu slice_of(const Gpu& gpu, const Profile& profile) {
  Gpu slice = gpu;
  const double memory = profile.memory / 8.0, compute = profile.compute / 7.0;
  const auto gigabytes = std::lround(nominal_gb(gpu) * memory);
  const std::string name = fmt::format("{}g.{}gb", profile.compute, gigabytes);
  slice.id = gpu.id + ":" + name;
  slice.name = fmt::format("{} MIG {}", gpu.name, name);
  slice.memory_mib = {std::floor(gpu.memory_mib.value * memory), &kMig};
  slice.tflops = {gpu.tflops.value * compute, &kMig};
  slice.bandwidth_gb_per_s = {gpu.bandwidth_gb_per_s.value * memory, &kMig};
  slice.note = fmt::format(
      "{}/7 of the compute, {}/8 of memory and bandwidth; collectives between slices of one GPU are not supported",
      profile.compute, profile.memory);
  return slice;
}

struct SliceName {
  std::string_view gpu;  // what stands before it
  int compute = 0;
  double gigabytes = 0;
};

// "h100_1g.12gb", "h100-nvl:1g.12gb"
std::optional<SliceName> slice_name(std::string_view name) {
  const size_t g = name.find("g.");
  if (g == std::string_view::npos || g == 0 || std::isdigit(static_cast<unsigned char>(name[g - 1])) == 0)
    return std::nullopt;
  double gigabytes = 0;
  for (size_t i = g + 2; i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0; ++i) {
    gigabytes = gigabytes * 10 + (name[i] - '0');
  }
  if (gigabytes <= 0) return std::nullopt;
  return SliceName{name.substr(0, g - 1), name[g - 1] - '0', gigabytes};
}

Result<Gpu> find_slice(std::string_view name, const SliceName& wanted) {
  const Gpu* whole = whole_gpu(wanted.gpu);
  if (whole == nullptr || nominal_gb(*whole) == 0) {
    return fail(ErrorCode::kNotFound, "'{}': say of which GPU it is a slice, for example h100-nvl:1g.12gb", name);
  }
  const Profile* best = nullptr;
  double least = 0;
  for (const Profile& profile : kProfiles) {
    const double off = std::abs(wanted.gigabytes - nominal_gb(*whole) * profile.memory / 8);
    if (profile.compute == wanted.compute && (best == nullptr || off < least)) {
      best = &profile;
      least = off;
    }
  }
  if (best == nullptr || least > 0.2 * wanted.gigabytes) {
    return fail(ErrorCode::kNotFound, "'{}': {} has no such MIG profile (millrace plan gpus --mig lists them)", name,
                whole->name);
  }
  return slice_of(*whole, *best);
}

double value_by(const Gpu& gpu, Measure by) {
  switch (by) {
    case Measure::kTflops:
      return gpu.tflops.value;
    case Measure::kMemory:
      return gpu.memory_mib.value;
    case Measure::kBandwidth:
      return gpu.bandwidth_gb_per_s.value;
  }
  return 0;
}

}  // namespace

std::string Figure::source_text() const {
  return source == nullptr ? "given" : fmt::format("{} ({}), {}", source->text, source->date, source->confidence);
}

Result<Gpu> find_gpu(std::string_view name) {
  if (const auto slice = slice_name(name)) return find_slice(name, *slice);
  if (const Gpu* gpu = whole_gpu(name)) return *gpu;
  std::string ids;
  for (const Gpu& gpu : gpus()) ids += (ids.empty() ? "" : ", ") + gpu.id;
  return fail(ErrorCode::kNotFound, "'{}' is not in the catalogue; there are {}", name, ids);
}

Result<Instance> find_instance(std::string_view id) {
  for (const Instance& instance : instances()) {
    if (instance.id == id) return instance;
  }
  std::string ids;
  for (const Instance& instance : instances()) ids += fmt::format("{}{}", ids.empty() ? "" : ", ", instance.id);
  return fail(ErrorCode::kNotFound, "'{}' is not in the catalogue; there are {}", id, ids);
}

std::vector<Term> terms_of(const Gpu& gpu) {
  return {{gpu.id + " memory", Range::point(gpu.memory_mib.value), "MiB", gpu.memory_mib.source_text()},
          {gpu.id + " TFLOPS", Range::point(gpu.tflops.value), "dense 16-bit", gpu.tflops.source_text()},
          {gpu.id + " bandwidth", Range::point(gpu.bandwidth_gb_per_s.value), "GB/s",
           gpu.bandwidth_gb_per_s.source_text()}};
}

std::vector<Gpu> mig_slices(const Gpu& gpu) {
  std::vector<Gpu> slices;
  if (nominal_gb(gpu) == 0) return slices;
  for (const Profile& profile : kProfiles) slices.push_back(slice_of(gpu, profile));
  return slices;
}

std::vector<Gpu> ranked(std::vector<Gpu> gpus, Measure by) {
  std::stable_sort(gpus.begin(), gpus.end(),
                   [by](const Gpu& a, const Gpu& b) { return value_by(a, by) > value_by(b, by); });
  return gpus;
}

}  // namespace millrace::plan
