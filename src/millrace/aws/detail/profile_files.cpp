// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/detail/profile_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "millrace/base/command.h"
#include "millrace/base/io/descriptor.h"
#include "millrace/base/io/file_time.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/base/thread/sync.h"

namespace millrace::aws {
namespace {

// A file that was written a moment ago may be written again without a new time: clocks of file systems tick every few
// milliseconds, some of them every second. It is parsed again until it is older than this.
constexpr std::chrono::seconds kSettledAfter(2);

// What tells one content of a file from another. Of a missing file all is zero.
struct ProfileVersion {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  FileTime modified, changed;
  bool operator==(const ProfileVersion&) const = default;

  bool is_settled() const { return modified + kSettledAfter < FileTime(std::chrono::system_clock::now()); }
};

struct OpenProfile {
  Descriptor file;  // none of a missing file
  ProfileVersion version;
};

Result<OpenProfile> open_profile(const std::string& path) {
  struct stat facts = {};
  // Devices count as missing, as in botocore: /dev/null is the usual way to say "none".
  if (::stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return OpenProfile();
  OpenProfile opened{Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), {}};
  // Ask the open file: NFS may answer stat() from before a change, and open() does not.
  if (opened.file.get() < 0 || ::fstat(opened.file.get(), &facts) != 0) {
    return tl::unexpected(errno_error(errno, fmt::format("read {}", path)));
  }
  opened.version = {facts.st_dev, facts.st_ino, facts.st_size, FileTime(facts.st_mtim), FileTime(facts.st_ctim)};
  return opened;
}

using ProfileSections = std::vector<std::pair<std::string, ProfileSection>>;

Result<ProfileSections> parse_open_profile(const OpenProfile& opened, const std::string& path) {
  if (opened.file.get() < 0) return ProfileSections();
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(opened.file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return tl::unexpected(errno_error(errno, fmt::format("read {}", path)));
    if (count == 0) return parse_profile_file(text, path);
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

void add_section(std::map<std::string, ProfileSection>& to, const std::string& name, const ProfileSection& section) {
  ProfileSection& known = to[name];
  for (const auto& [key, value] : section.values) known.values[key] = value;
  for (const auto& [key, values] : section.nested) known.nested[key] = values;
}

// The two words of [profile NAME], [sso-session NAME] and [services NAME]. Other sections are ignored.
void add_config_section(ProfileFiles& files, const std::string& header, const ProfileSection& section) {
  const Result<std::vector<std::string>> words = split_command(header);
  if (!words || words->size() != 2) return;
  if ((*words)[0] == "profile") add_section(files.profiles, (*words)[1], section);
  if ((*words)[0] == "sso-session") add_section(files.sso_sessions, (*words)[1], section);
  if ((*words)[0] == "services") add_section(files.services, (*words)[1], section);
}

ProfileFiles joined(const ProfileSections& config, const ProfileSections& credentials) {
  ProfileFiles files;
  for (const auto& [header, section] : config) {
    if (header == "default") add_section(files.profiles, header, section);
  }
  // After it, so that [profile default] wins over [default].
  for (const auto& [header, section] : config) add_config_section(files, header, section);
  for (const auto& [header, section] : credentials) {
    add_section(files.profiles, header, section);
    add_section(files.in_credentials_file, header, section);
  }
  return files;
}

// The files that were read last; a process seldom has others.
struct KeptProfiles {
  Mutex mutex;
  std::string config_path GUARDED_BY(mutex), credentials_path GUARDED_BY(mutex);
  ProfileVersion config GUARDED_BY(mutex), credentials GUARDED_BY(mutex);
  std::shared_ptr<const ProfileFiles> files GUARDED_BY(mutex);
  int64_t parsed GUARDED_BY(mutex) = 0;
};

KeptProfiles& kept_profiles() {
  // Never destroyed: credentials may be renewed at exit.
  static const auto& kept = *new PerProcess<KeptProfiles>([] { return std::make_unique<KeptProfiles>(); });
  return kept.get();
}

}  // namespace

Result<std::shared_ptr<const ProfileFiles>> read_profile_files(const std::string& config_path,
                                                               const std::string& credentials_path) {
  KeptProfiles& kept = kept_profiles();
  const MutexLock lock(kept.mutex);
  ASSIGN_OR_RETURN(const OpenProfile config, open_profile(config_path));
  ASSIGN_OR_RETURN(const OpenProfile credentials, open_profile(credentials_path));
  const bool is_known = kept.files && kept.config_path == config_path && kept.credentials_path == credentials_path &&
                        kept.config == config.version && kept.credentials == credentials.version;
  if (is_known) return kept.files;

  kept.parsed += (config.file.get() >= 0 ? 1 : 0) + (credentials.file.get() >= 0 ? 1 : 0);
  ASSIGN_OR_RETURN(const ProfileSections settings, parse_open_profile(config, config_path));
  ASSIGN_OR_RETURN(const ProfileSections secrets, parse_open_profile(credentials, credentials_path));
  auto files = std::make_shared<const ProfileFiles>(joined(settings, secrets));
  kept.files.reset();
  if (config.version.is_settled() && credentials.version.is_settled()) {
    kept.config_path = config_path;
    kept.credentials_path = credentials_path;
    kept.config = config.version;
    kept.credentials = credentials.version;
    kept.files = files;
  }
  return files;
}

int64_t profile_files_parsed() {
  KeptProfiles& kept = kept_profiles();
  const MutexLock lock(kept.mutex);
  return kept.parsed;
}

}  // namespace millrace::aws
