// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/lustre.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "millrace/base/command.h"
#include "millrace/storage/local/detail/files.h"

namespace millrace {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

struct NamedLayout {
  LustreLayout layout;
  std::string_view name;
  std::vector<std::string> setstripe;
};
const std::vector<NamedLayout>& layouts() {
  static const std::vector<NamedLayout> table{
      {LustreLayout::kSingle, "single", {"-c", "1", "-S", "4M"}},
      {LustreLayout::kSpread, "spread", {"-c", "8", "-S", "4M"}},
      {LustreLayout::kProgressive,
       "progressive",
       {"-E", "100M", "-c", "1", "-S", "1M", "-E", "10G", "-c", "4", "-S", "4M", "-E", "-1", "-c", "-1", "-S", "16M"}},
      {LustreLayout::kAll, "all", {"-c", "-1", "-S", "16M"}},
  };
  return table;
}

const NamedLayout& find_layout(LustreLayout layout) {
  return *std::find_if(layouts().begin(), layouts().end(), [&](const auto& row) { return row.layout == layout; });
}

Result<bool> is_on_lustre(Syscalls& sys, const std::string& path) {
  RETURN_IF_ERROR(local::stat_path(sys, path));
  return local::is_lustre(sys, path);
}

}  // namespace

std::string_view lustre_layout_name(LustreLayout layout) {
  return find_layout(layout).name;
}

std::optional<LustreLayout> parse_lustre_layout(std::string_view name) {
  for (const auto& row : layouts()) {
    if (row.name == name) return row.layout;
  }
  return std::nullopt;
}

Result<bool> set_lustre_layout(const std::string& dir, LustreLayout layout, Syscalls& sys) {
  ASSIGN_OR_RETURN(const bool on_lustre, is_on_lustre(sys, dir));
  if (!on_lustre) return false;
  std::vector<std::string> arguments{"setstripe"};
  const auto& options = find_layout(layout).setstripe;
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(dir);
  RETURN_IF_ERROR(local::run_lfs(std::move(arguments)));
  return true;
}

Result<std::optional<std::string>> show_lustre_layout(const std::string& path, Syscalls& sys) {
  ASSIGN_OR_RETURN(const bool on_lustre, is_on_lustre(sys, path));
  if (!on_lustre) return std::nullopt;
  ASSIGN_OR_RETURN(std::string text, local::run_lfs({"getstripe", "-d", path}));
  return text;
}

namespace local {
namespace {

constexpr std::chrono::seconds kLfsLimit{30};  // lfs takes milliseconds; it hangs when a server is away

struct SizeClass {
  int64_t below_bytes;
  std::optional<Stripes> stripes;
};
// FSx's default layout (1, 8, 16, 32 servers; steps at 100 MiB, 10 GiB, 100 GiB), with fewer servers for a rank's
// checkpoint file and for shards, because many of them are read or written at once.
constexpr std::array<SizeClass, 4> kBySize{{{100 * kMiB, std::nullopt},
                                            {kGiB, Stripes{4, 4 * kMiB}},
                                            {100 * kGiB, Stripes{8, 4 * kMiB}},
                                            {INT64_MAX, Stripes{-1, 16 * kMiB}}}};

}  // namespace

bool is_lustre(Syscalls& sys, const std::string& path) {
  struct statfs info{};
  if (retry([&] { return sys.statfs(path.c_str(), &info); }) < 0) return false;
  return static_cast<int64_t>(info.f_type) == kLustreMagic;
}

Result<std::string> run_lfs(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "lfs");
  ASSIGN_OR_RETURN(CommandOutput done, run_command(arguments, kLfsLimit, {}));
  if (done.ok) return std::move(done.out);
  const std::string_view said = done.err.empty() ? std::string_view(done.out) : done.err;
  return fail(ErrorCode::kUnavailable, "lfs {}: {}: {}", arguments[1], done.status,
              said.substr(0, said.find_last_not_of('\n') + 1));
}

std::optional<Stripes> stripes_for(int64_t size_hint_bytes, int wanted) {
  const auto fits = [&](const SizeClass& row) { return size_hint_bytes < row.below_bytes; };
  const auto row = std::find_if(kBySize.begin(), kBySize.end() - 1, fits);
  if (wanted == 0) return row->stripes;
  return Stripes{wanted, row->stripes ? row->stripes->size_bytes : kMiB};
}

Status make_striped_file(const std::string& path, const Stripes& stripes) {
  return run_lfs({"setstripe", "-c", std::to_string(stripes.count), "-S", std::to_string(stripes.size_bytes), path})
      .map([](const std::string&) {});
}

}  // namespace local
}  // namespace millrace
