// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cctype>
#include <cmath>
#include <utility>

#include "millrace/base/text/ascii.h"
#include "millrace/plan/detail/table.h"

namespace millrace::plan {

namespace {

constexpr std::string_view kGpuColumns =
    "id,name,memory_mib,memory_source,tflops,tflops_source,gb_per_s,gb_per_s_source,capability,bf16,mig_gb,aliases,"
    "note";

// Short names, without maker, family and punctuation. The longest one inside a name decides.
struct Alias {
  std::string_view text;
  size_t gpu;  // index of Catalogue::gpus
};

struct Catalogue {
  std::vector<Gpu> gpus;
  std::vector<Alias> aliases;
};

Catalogue read_catalogue() {
  Catalogue catalogue;
  for (const data::Row& row : data::rows_of(data::k_gpus, kGpuColumns)) {
    const auto figure = [&](size_t at) { return Figure{data::number(row[at]), &source_of(row[at + 1])}; };
    for (std::string_view names = row[11]; !names.empty();) {
      const std::string_view name = names.substr(0, names.find(' '));
      catalogue.aliases.push_back({name, catalogue.gpus.size()});
      names.remove_prefix(std::min(names.size(), name.size() + 1));
    }
    catalogue.gpus.push_back({.id = std::string(row[0]),
                              .name = std::string(row[1]),
                              .memory_mib = figure(2),
                              .tflops = figure(4),
                              .bandwidth_gb_per_s = figure(6),
                              .compute_capability = row[8],
                              .bf16 = row[9] == "yes",
                              .mig_gb = data::number(row[10]),
                              .note = std::string(row[12])});
  }
  return catalogue;
}

const Catalogue& catalogue() {
  static const Catalogue kCatalogue = read_catalogue();
  return kCatalogue;
}

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// Whether what follows an alias leaves it the same GPU: "l4" is not in "l40", nor "a100" in "a1000"; a 4070 Ti, a 2080
// Super or the 4090 of a laptop are other GPUs.
bool ends_a_name(std::string_view alias, std::string_view rest) {
  if (rest.empty()) return true;
  if (is_digit(alias.back()) && is_digit(rest.front())) return false;
  constexpr std::array<std::string_view, 3> kOthers{"ti", "super", "laptop"};
  return std::none_of(kOthers.begin(), kOthers.end(), [&](std::string_view word) { return rest.starts_with(word); });
}

const Gpu* whole_gpu(std::string_view name) {
  const std::string text = plain(name);
  for (const Gpu& gpu : gpus()) {
    if (plain(gpu.id) == text) return &gpu;
  }
  const Alias* best = nullptr;
  for (const Alias& alias : catalogue().aliases) {
    const size_t at = text.find(alias.text);
    if (at == std::string::npos || !ends_a_name(alias.text, std::string_view(text).substr(at + alias.text.size())))
      continue;
    if (best == nullptr || alias.text.size() > best->text.size()) best = &alias;
  }
  return best == nullptr ? nullptr : &catalogue().gpus[best->gpu];
}

// Instances of compute (of 7) and of memory (of 8), as NVIDIA's guide to MIG has them for A100 and later.
struct Profile {
  int compute;
  int memory;
};
constexpr std::array<Profile, 6> kProfiles{{{1, 1}, {1, 2}, {2, 2}, {3, 4}, {4, 4}, {7, 8}}};
constexpr Source kMig{"mig", "a share of the whole GPU: compute of 7, memory of 8, by NVIDIA's guide to MIG", "2026-02",
                      "unconfirmed"};

Gpu slice_of(const Gpu& gpu, const Profile& profile) {
  Gpu slice = gpu;
  const double memory = profile.memory / 8.0, compute = profile.compute / 7.0;
  const auto gigabytes = std::lround(gpu.mig_gb * memory);
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
  if (g == std::string_view::npos || g == 0 || !is_digit(name[g - 1])) return std::nullopt;
  double gigabytes = 0;
  for (size_t i = g + 2; i < name.size() && is_digit(name[i]); ++i) {
    gigabytes = gigabytes * 10 + (name[i] - '0');
  }
  if (gigabytes <= 0) return std::nullopt;
  return SliceName{name.substr(0, g - 1), name[g - 1] - '0', gigabytes};
}

Result<Gpu> find_slice(std::string_view name, const SliceName& wanted) {
  const Gpu* whole = whole_gpu(wanted.gpu);
  if (whole == nullptr || whole->mig_gb == 0) {
    return fail(ErrorCode::kNotFound, "'{}': say of which GPU it is a slice, for example h100-nvl:1g.12gb", name);
  }
  const Profile* best = nullptr;
  double least = 0;
  for (const Profile& profile : kProfiles) {
    const double off = std::abs(wanted.gigabytes - whole->mig_gb * profile.memory / 8);
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

std::span<const Gpu> gpus() {
  return catalogue().gpus;
}

const Source& source_of(std::string_view name) {
  static const std::vector<Source> kSources = [] {
    std::vector<Source> sources;
    for (const data::Row& row : data::rows_of(data::k_sources, "id,date,confidence,text"))
      sources.push_back({.name = row[0], .text = row[3], .date = row[1], .confidence = row[2]});
    return sources;
  }();
  const auto found =
      std::find_if(kSources.begin(), kSources.end(), [&](const Source& each) { return each.name == name; });
  assert(found != kSources.end());
  return *found;
}

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

std::vector<Term> terms_of(const Gpu& gpu) {
  return {{gpu.id + " memory", Range::point(gpu.memory_mib.value), "MiB", gpu.memory_mib.source_text()},
          {gpu.id + " TFLOPS", Range::point(gpu.tflops.value), "dense 16-bit", gpu.tflops.source_text()},
          {gpu.id + " bandwidth", Range::point(gpu.bandwidth_gb_per_s.value), "GB/s",
           gpu.bandwidth_gb_per_s.source_text()}};
}

std::vector<Gpu> mig_slices(const Gpu& gpu) {
  std::vector<Gpu> slices;
  if (gpu.mig_gb == 0) return slices;
  for (const Profile& profile : kProfiles) slices.push_back(slice_of(gpu, profile));
  return slices;
}

std::vector<Gpu> ranked(std::vector<Gpu> gpus, Measure by) {
  std::stable_sort(gpus.begin(), gpus.end(),
                   [by](const Gpu& a, const Gpu& b) { return value_by(a, by) > value_by(b, by); });
  return gpus;
}

}  // namespace millrace::plan
