// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/published.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/per_process.h"

namespace millrace {

namespace {

namespace fs = std::filesystem;

// The file, little-endian as every processor that Millrace runs on.
struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t rows;
  uint64_t pid;
  uint64_t start_ticks;
  int64_t begun_ns;
  int32_t rank;
  int32_t world_size;
  uint32_t checksum;  // CRC-32C of what is above, and of all names
  uint32_t reserved;
  uint64_t reserved2;
};
static_assert(sizeof(Header) == 64);

struct Row {
  std::array<char, 24> name;  // ends in zeros
  int64_t value;
};
static_assert(sizeof(Row) == 32 && offsetof(Row, value) % 8 == 0);
static_assert(std::atomic_ref<int64_t>::is_always_lock_free);

constexpr std::array<char, 8> kMagic = {'M', 'R', 'P', 'U', 'B', 'L', 'S', 'H'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMostRows = 1000;
constexpr size_t kPageBytes = 4096;
constexpr size_t kRows = static_cast<size_t>(Published::kCount);
static_assert(sizeof(Header) + kRows * sizeof(Row) <= kPageBytes);

constexpr std::array<PublishedDef, kRows> kPublishedDefs = {{
    {"batches", "1", true, "Batches handed to the training loop"},
    {"samples", "1", true, "Samples in these batches"},
    {"tokens", "1", true, "Token ids in these batches"},
    {"read_bytes", "bytes", true, "Bytes that loaders read from storage"},
    {"wait_ns", "ns", true, "Time the training loop waited for batches"},
    {"queue_batches", "1", false, "Batches that were ready when the last one was taken"},
    {"last_batch_ns", "ns", false, "When the last batch was handed out, since 1970"},
    {"saves", "1", true, "Checkpoints whose snapshot was taken"},
    {"stall_ns", "ns", true, "Time save() kept the training loop"},
    {"write_bytes", "bytes", true, "Bytes of checkpoints written, in all tiers"},
    {"saves_under_way", "1", false, "Checkpoints that have not ended in all tiers"},
    {"unwritten_bytes", "bytes", false, "Bytes of these checkpoints"},
    {"last_save_ns", "ns", false, "When the last snapshot was taken, since 1970"},
    {"links", "1", false, "Links between a directory and a bucket that this process runs"},
    {"link_since_ns", "ns", false, "Since when the oldest change of these links waits, since 1970; 0: none does"},
}};

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// When a process began, in ticks since the machine's start: with its pid it tells it from every other.
std::optional<uint64_t> start_ticks(uint64_t pid) {
  const std::string text = read_text(fmt::format("/proc/{}/stat", pid)).value_or("");
  size_t at = text.rfind(')');  // the name before it may hold anything
  constexpr int kBehindName = 20;
  for (int blank = 0; blank < kBehindName && at != std::string::npos; ++blank) at = text.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(text).substr(at + 1);
  const auto ticks = parse_whole(rest.substr(0, rest.find(' ')));
  if (!ticks) return std::nullopt;
  return static_cast<uint64_t>(*ticks);
}

int number_of(std::initializer_list<const char*> names, int missing) {
  for (const char* name : names) {
    const char* const text = std::getenv(name);
    const auto number = text == nullptr ? std::nullopt : parse_whole(text);
    if (number && *number >= 0 && *number < (1 << 30)) return static_cast<int>(*number);
  }
  return missing;
}

template <class Rows>
uint32_t checksum_of(const Header& header, const Rows& rows) {
  uint32_t crc = crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum)));
  for (const Row& row : rows) crc = crc32c(std::as_bytes(std::span(row.name)), crc);
  return crc;
}

// This user's folder on the node: memory where there is such a file system.
std::string own_folder() {
  if (const char* const named = std::getenv("MILLRACE_RUNTIME_DIR")) return named;
  const char* const parent = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
  return fmt::format("{}/millrace-{}", parent, geteuid());
}

// Nobody else may own the folder: what is in it would be theirs to change.
bool is_usable(const std::string& folder) {
  constexpr mode_t kMode = 0755;
  if (folder.empty() || (mkdir(folder.c_str(), kMode) != 0 && errno != EEXIST)) return false;
  struct stat info{};
  return lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

// PID.TICKS.N; others are not ours.
std::optional<std::pair<uint64_t, uint64_t>> parse_published_name(std::string_view name) {
  const size_t first = name.find('.');
  if (first == std::string_view::npos) return std::nullopt;
  const size_t second = std::min(name.find('.', first + 1), name.size());
  const auto pid = parse_whole(name.substr(0, first));
  const auto ticks = parse_whole(name.substr(first + 1, second - first - 1));
  if (!pid || !ticks || *pid <= 0) return std::nullopt;
  return std::pair{static_cast<uint64_t>(*pid), static_cast<uint64_t>(*ticks)};
}

bool is_alive(uint64_t pid, uint64_t ticks) {
  return start_ticks(pid) == ticks;
}

void remove_dead(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const auto process = parse_published_name(at->path().filename().string());
    if (process && !is_alive(process->first, process->second)) unlink(at->path().c_str());
  }
}

// The numbers of this process, in its file or, without one, in memory.
class Page {
 public:
  Page() {
    if (!map_file()) values_ = reinterpret_cast<Row*>(spare_.data() + sizeof(Header));
  }
  ~Page() {
    remove();
    if (mapped_ != nullptr) munmap(mapped_, kPageBytes);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  std::atomic_ref<int64_t> at(Published row) { return std::atomic_ref(values_[static_cast<size_t>(row)].value); }
  void remove() {
    if (!path_.empty()) unlink(path_.c_str());
    path_.clear();
  }

 private:
  bool map_file() {
    static std::atomic<int> made{0};
    const std::string folder = own_folder();
    const auto pid = static_cast<uint64_t>(getpid());
    const auto ticks = start_ticks(pid);
    if (!ticks || !is_usable(folder)) return false;
    remove_dead(folder);
    const std::string name = fmt::format("{}/{}.{}.{}", folder, pid, *ticks, made++);
    if (!write_file(name + ".new", pid, *ticks)) {
      unlink((name + ".new").c_str());
      return false;
    }
    // Whole before it can be seen by its name.
    if (rename((name + ".new").c_str(), name.c_str()) != 0) return unlink((name + ".new").c_str()), false;
    path_ = name;
    return true;
  }

  // Writes all of it, so that a full file system is found here and not by a signal when a number changes.
  bool write_file(const std::string& path, uint64_t pid, uint64_t ticks) {
    constexpr mode_t kMode = 0644;
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kMode);
    if (fd < 0) return false;
    std::array<Row, kRows> rows{};
    for (size_t i = 0; i < kRows; ++i) kPublishedDefs[i].name.copy(rows[i].name.data(), rows[i].name.size() - 1);
    Header header{.magic = kMagic,
                  .version = kVersion,
                  .rows = kRows,
                  .pid = pid,
                  .start_ticks = ticks,
                  .begun_ns = unix_ns(),
                  .rank = number_of({"RANK", "SLURM_PROCID"}, -1),
                  .world_size = number_of({"WORLD_SIZE", "SLURM_NTASKS"}, 0),
                  .checksum = 0,
                  .reserved = 0,
                  .reserved2 = 0};
    header.checksum = checksum_of(header, rows);
    std::memcpy(spare_.data(), &header, sizeof(header));
    std::memcpy(spare_.data() + sizeof(header), rows.data(), sizeof(rows));
    const bool written = write(fd, spare_.data(), kPageBytes) == static_cast<ssize_t>(kPageBytes);
    void* const mapped = written ? mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (mapped == MAP_FAILED) return false;
    mapped_ = static_cast<std::byte*>(mapped);
    values_ = reinterpret_cast<Row*>(mapped_ + sizeof(Header));
    return true;
  }

  std::string path_;
  std::byte* mapped_ = nullptr;
  Row* values_ = nullptr;
  alignas(64) std::array<std::byte, kPageBytes> spare_{};
};

std::atomic<Page*> page_at_exit{nullptr};
std::atomic<uint64_t> generation_at_exit{0};

// Lives as long as the process: threads may still count while it ends.
PerProcess<Page>& pages() {
  static auto& instance = *new PerProcess<Page>([] { return std::make_unique<Page>(); });
  return instance;
}

Page& page() {
  Page& here = pages().get();
  if (page_at_exit.load(std::memory_order_acquire) == &here) return here;
  static const bool registered = std::atexit([] {
                                   // In a child that made none the file is the parent's.
                                   Page* const last = page_at_exit.load();
                                   if (last != nullptr && generation_at_exit.load() == fork_generation())
                                     last->remove();
                                 }) == 0;
  static_cast<void>(registered);
  generation_at_exit = fork_generation();
  page_at_exit.store(&here, std::memory_order_release);
  return here;
}

}  // namespace

std::span<const PublishedDef> published_defs() {
  return kPublishedDefs;
}

void publish_add(Published row, int64_t amount) {
  page().at(row).fetch_add(amount, std::memory_order_relaxed);
}

void publish_set(Published row, int64_t value) {
  page().at(row).store(value, std::memory_order_relaxed);
}

void publish_now(Published row) {
  publish_set(row, unix_ns());
}

int64_t PublishedProcess::value(Published row) const {
  const auto found = values.find(kPublishedDefs[static_cast<size_t>(row)].name);
  return found == values.end() ? 0 : found->second;
}

Result<PublishedProcess> read_published_file(const std::string& path) {
  const auto bad = [&](std::string_view reason) { return fail(ErrorCode::kCorruption, "{}: {}", path, reason); };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return tl::unexpected(errno_error(errno, "open " + path));
  struct stat info{};
  std::vector<std::byte> bytes(sizeof(Header) + kMostRows * sizeof(Row));
  ssize_t size = -1;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) size = pread(fd, bytes.data(), bytes.size(), 0);
  close(fd);
  Header header{};
  if (size < static_cast<ssize_t>(sizeof(header))) return bad("too short for published numbers");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return bad("no published numbers");
  if (header.version > kVersion)
    return fail(ErrorCode::kUnsupported, "{}: version {}; this Millrace reads up to {}, a newer Millrace reads it",
                path, header.version, kVersion);
  if (header.version == 0 || header.rows > kMostRows ||
      static_cast<size_t>(size) < sizeof(header) + header.rows * sizeof(Row))
    return bad("its header is damaged");
  std::vector<Row> rows(header.rows);
  std::memcpy(rows.data(), bytes.data() + sizeof(header), rows.size() * sizeof(Row));
  if (checksum_of(header, rows) != header.checksum) return bad("its header does not match its checksum");
  PublishedProcess process{.path = path,
                           .pid = static_cast<pid_t>(header.pid),
                           .begun_ns = header.begun_ns,
                           .rank = header.rank,
                           .world_size = header.world_size,
                           .values = {}};
  for (const Row& row : rows) {
    const auto end = std::find(row.name.begin(), row.name.end(), '\0');
    process.values.emplace(std::string(row.name.begin(), end), row.value);
  }
  return process;
}

std::vector<std::string> published_folders() {
  const std::string own = own_folder();
  if (own.empty()) return {};
  if (std::getenv("MILLRACE_RUNTIME_DIR") != nullptr || geteuid() != 0) return {own};
  std::vector<std::string> folders;
  for (const char* parent : {"/dev/shm", "/tmp"}) {
    std::error_code error;
    for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (name.starts_with("millrace-") && parse_whole(name.substr(9)).has_value()) folders.push_back(at->path());
    }
  }
  return folders;
}

std::vector<PublishedProcess> read_published(std::span<const std::string> folders, int* newer) {
  std::vector<PublishedProcess> found;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      const auto process = parse_published_name(name);
      if (!process || name.ends_with(".new") || !is_alive(process->first, process->second)) continue;
      auto read = read_published_file(at->path());
      if (!read && newer != nullptr && read.error().code() == ErrorCode::kUnsupported) ++*newer;
      // The name is anybody's; the file must say the same.
      if (read && static_cast<uint64_t>(read->pid) == process->first) found.push_back(*std::move(read));
    }
  }
  std::ranges::sort(found, {}, &PublishedProcess::pid);
  return found;
}

}  // namespace millrace
