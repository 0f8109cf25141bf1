// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/trash.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>

#include "millrace/base/thread/sync.h"
#include "millrace/link/wall_clock.h"

namespace millrace::link {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTrash = ".millrace/trash";

std::optional<int64_t> seconds_of_stamp(std::string_view text) {
  std::tm parts{};
  const std::string whole(text);
  const char* const end = ::strptime(whole.c_str(), "%Y%m%dT%H%M%SZ", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return static_cast<int64_t>(::timegm(&parts));
}

// Now, or the next second in which this process has put no file of this path away: none may replace another.
int64_t free_second(const std::string& path) {
  static Mutex mutex;
  static std::set<std::string> taken;
  static int64_t last = 0;
  const MutexLock lock(mutex);
  int64_t second = latest_now_s();
  if (second > last) taken.clear();
  while (!taken.insert(fmt::format("{} {}", second, path)).second) ++second;
  last = std::max(last, second);
  return second;
}

Status make_folders_of(const std::string& path) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return tl::unexpected<Error>(errno_error(error.value(), "make the folder of " + path));
  return {};
}

// One by one: some gateways abort when many objects go at once from a bucket with notices. Only what is too old by the
// clock of this machine and by that of the bucket, which is asked when it is needed: one of them may be wrong.
Status empty_side(const Location& root, const Removal& rule, const Location& there,
                  std::optional<int64_t>& bucket_now) {
  if (!rule.trash) return {};
  const std::string prefix = root.child(kTrash).key + "/";
  const int64_t keeps_s = rule.trash->count(), now = static_cast<int64_t>(wall_now_s());
  return for_each_object(*root.storage, prefix, [&](const ObjectInfo& object) -> Status {
    const std::string_view below = std::string_view(object.key).substr(prefix.size());
    const auto time = seconds_of_stamp(below.substr(0, below.find('/')));
    if (!time || *time >= now - keeps_s) return {};
    if (!bucket_now) {
      const auto asked = bucket_now_s(there);
      if (!asked && asked.error().code() != ErrorCode::kPermissionDenied) return tl::unexpected<Error>(asked.error());
      bucket_now = asked ? *asked : earliest_now_s();  // of a bucket that may only be read
    }
    return *time < *bucket_now - keeps_s ? root.storage->remove({&object.key, 1}) : Status();
  });
}

}  // namespace

std::string stamp(int64_t seconds) {
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(static_cast<time_t>(seconds)));
}

std::string Trash::name_of(const std::string& path) const {
  return fmt::format("{}/{}/{}", kTrash, stamp(free_second(config_.directory + "/" + path)), path);
}

Status Trash::keep_file(const std::string& path, const ObjectInfo& file) const {
  if (!config_.here.trash) return {};
  const std::string name = name_of(path), kept = config_.directory + "/" + name;
  RETURN_IF_ERROR(make_folders_of(kept));
  if (::link((config_.directory + "/" + path).c_str(), kept.c_str()) == 0 || errno == EEXIST) return {};
  // A file system without hard links.
  const auto copied = engine_.copy(here_.child(path), file, here_.child(name), {.sidecar = false}, stop_);
  return copied ? Status() : tl::unexpected<Error>(copied.error());
}

Status Trash::keep_object(const std::string& path, const ObjectInfo& object) const {
  if (!config_.there.trash) return {};
  const auto copied = engine_.copy(there_.child(path), object, there_.child(name_of(path)), {.sidecar = false}, stop_);
  return copied ? Status() : tl::unexpected<Error>(copied.error());
}

Status Trash::throw_file(const std::string& path) const {
  if (!config_.here.trash) {
    const std::string key = here_.child(path).key;
    return here_.storage->remove({&key, 1});
  }
  const std::string old = config_.directory + "/" + path, kept = config_.directory + "/" + name_of(path);
  RETURN_IF_ERROR(make_folders_of(kept));
  if (std::rename(old.c_str(), kept.c_str()) == 0) return {};
  return tl::unexpected<Error>(errno_error(errno, "rename " + old));
}

Status Trash::empty() const {
  std::optional<int64_t> bucket_now;
  RETURN_IF_ERROR(empty_side(here_, config_.here, there_, bucket_now));
  return empty_side(there_, config_.there, there_, bucket_now);
}

}  // namespace millrace::link
