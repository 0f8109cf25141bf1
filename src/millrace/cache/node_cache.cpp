// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/node_cache.h"

#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/cache/detail/cache_files.h"
#include "millrace/cache/detail/open_records.h"
#include "millrace/cache/detail/slot_table.h"

// A read goes through its blocks in order. A block is found, or the thread claims it (a lock on one byte of cache.lock)
// with the missing blocks behind it and downloads them in one piece, or another thread or process has claimed it: then
// it sleeps until that one raises the counter, and looks again. A thread that holds a claim never waits for another
// claim, so no circle can form. Locks go with their process, and a sleeper looks again after kNap in any case, so a
// process that was killed holds nobody up.

namespace millrace::cache {

namespace {

constexpr int64_t kMostBlockBytes = kChunkBytes * kMostChunks;
constexpr int64_t kFillBytes = 4 << 20;    // of one download: an S3 request that costs little beside its bytes
constexpr int64_t kPrefetch = 32;          // blocks: what the loader reads at once
constexpr int64_t kFillMemory = 64 << 20;  // for downloads under way, of the process's memory
constexpr int64_t kMemoryShare = 8;        // but at most this part of it
constexpr int64_t kStatBlockBytes = 512;   // of st_blocks
constexpr int kThreads = 32;               // they wait for the server, or for other processes
// A choice: a stop, and the death of the process that fills a block, wake nobody and are seen so late at most.
constexpr std::chrono::milliseconds kNap{20};
constexpr std::chrono::minutes kQuiet{1};  // between two warnings
// Claims are bytes below CacheFiles::kSlotLocks. Objects that share the upper 38 bits wait for each other; no more.
constexpr int64_t kBlockBits = 24;

int64_t claim_byte(Hash128 object, int64_t block) {
  return static_cast<int64_t>(object.low >> (2 + kBlockBits) << kBlockBits) +
         (block & ((int64_t{1} << kBlockBits) - 1));
}

Hash128 block_key(Hash128 object, int64_t block) {
  const auto number = static_cast<uint64_t>(block);
  return {object.high + number, object.low + number * 0x9E3779B97F4A7C15};
}

void sleep_until_changed(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
  // SAFETY: an atomic of a word is that word (futex(2)); the memory is shared between processes.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &nap, nullptr, 0);
}

void wake_sleepers(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  // SAFETY: as above.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

Status check_goes_on(const NodeCache::Call& call, std::string_view name) {
  if (call.stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name);
  if (Clock::now() < call.deadline) return {};
  return fail(ErrorCode::kTimeout, "read {}: another process is downloading it, and its time is over", name);
}

Result<std::unique_ptr<BufferPool>> reserve_memory() {
  const auto budget = MemoryBudget::process();
  return BufferPool::reserve(*budget, "node cache", std::min(kFillMemory, budget->cap_bytes() / kMemoryShare));
}

// Half of the disk, of which the cache may hold a part already.
Result<int64_t> default_cap(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  if (error) return tl::unexpected(errno_error(error.value(), "look for space in " + directory));
  struct stat data = {};
  const int64_t cached = ::stat((directory + "/cache.data").c_str(), &data) == 0 ? data.st_blocks * kStatBlockBytes : 0;
  return (static_cast<int64_t>(space.available) + cached) / 2;
}

}  // namespace

Hash128 object_id(std::string_view storage, std::string_view key, std::string_view version, int64_t size) {
  const std::string text =
      fmt::format("{} {} {} {}{}{}{}", storage.size(), key.size(), version.size(), storage, key, version, size);
  return xxh3_128(text);
}

struct NodeCache::Impl {
  Impl(CacheOptions cache_options, std::unique_ptr<CacheFiles> opened)
      : options(std::move(cache_options)), files(std::move(opened)), table(*files) {}

  bool read_hit(const CachedObject& object, int64_t block, int64_t offset, std::span<std::byte> out, const Call& call);
  bool is_on_disk(const CachedObject& object, int64_t block);
  void prefetch(const CachedObject& object, int64_t block, int64_t end);
  void read_ahead(const CachedObject& object, int64_t offset, int64_t end);
  bool is_cached(const CachedObject& object, int64_t block) {
    return table.find(block_key(object.id, block)).has_value();
  }
  Result<ByteLock> claim(const CachedObject& object, int64_t block, int64_t end);
  Result<ByteLock> try_claim(Hash128 object, int64_t block);
  Status download(const CachedObject& object, const RandomReader& source, int64_t block, int64_t blocks, int64_t offset,
                  std::span<std::byte> out, const Call& call);
  void store(Hash128 key, std::span<const std::byte> bytes);
  void warn(const Error& error);
  std::atomic<uint32_t>& counter(Hash128 object) { return files->header().fills[object.low % kFillCounters]; }

  const CacheOptions options;
  const std::unique_ptr<CacheFiles> files;
  SlotTable table;
  Executor threads{kThreads, "mr-cache"};
  using Pool = Result<std::unique_ptr<BufferPool>>;
  PerProcess<Pool> memory{[] { return std::make_unique<Pool>(reserve_memory()); }};
  std::atomic<Clock::rep> warned{0};
};

NodeCache::NodeCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeCache::~NodeCache() = default;

Executor& NodeCache::threads() {
  return impl_->threads;
}
const CacheOptions& NodeCache::options() const {
  return impl_->options;
}
int64_t NodeCache::limit_bytes() const {
  return impl_->files->limit_bytes();
}

Result<std::shared_ptr<NodeCache>> NodeCache::open(const CacheOptions& options, const std::stop_token& stop) {
  CacheOptions own = options;
  if (own.block_bytes < 1 || own.block_bytes > kMostBlockBytes) {
    return fail(ErrorCode::kInvalidArgument, "the cache {}: a block has 1 to {} bytes, not {}", own.directory,
                kMostBlockBytes, own.block_bytes);
  }
  if (own.cap_bytes == 0) {
    ASSIGN_OR_RETURN(own.cap_bytes, default_cap(own.directory));
  }
  ASSIGN_OR_RETURN(auto files, CacheFiles::open(own.directory, own.cap_bytes, own.block_bytes, stop));
  return std::shared_ptr<NodeCache>(new NodeCache(std::make_unique<Impl>(own, std::move(files))));
}

Result<std::shared_ptr<NodeCache>> NodeCache::of_process(const CacheOptions& options, const std::stop_token& stop) {
  struct Known {
    Mutex mutex;
    std::map<std::string, std::shared_ptr<NodeCache>> caches GUARDED_BY(mutex);  // by real path
  };
  // Never destroyed: at exit, threads may still read.
  static const auto& process = *new PerProcess<Known>([] { return std::make_unique<Known>(); });
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  const std::string path = std::filesystem::weakly_canonical(options.directory, error).string();
  Known& known = process.get();
  MutexLock lock(known.mutex);
  auto& cache = known.caches[path];
  if (cache == nullptr) {
    ASSIGN_OR_RETURN(cache, open(options, stop));
  } else if (options.cap_bytes > 0) {
    RETURN_IF_ERROR(cache->impl_->files->lower_to(options.cap_bytes, stop));
  }
  return cache;
}

Status NodeCache::read(const CachedObject& object, const RandomReader& source, int64_t offset, std::span<std::byte> out,
                       const Call& call) {
  const int64_t block_bytes = impl_->options.block_bytes, end = offset + static_cast<int64_t>(out.size());
  std::atomic<uint32_t>& counter = impl_->counter(object.id);
  const int64_t last = (end + block_bytes - 1) / block_bytes;
  int64_t prefetched = 0;  // blocks before it were asked for
  impl_->read_ahead(object, offset, end);
  for (int64_t at = offset; at < end;) {
    const int64_t block = at / block_bytes;
    const auto upto = [&](int64_t block_end) {
      return out.subspan(static_cast<size_t>(at - offset),
                         static_cast<size_t>(std::min(end, block_end * block_bytes) - at));
    };
    const uint32_t ticket = counter.load();
    if (block >= prefetched && last - block > 1) {
      prefetched = std::min(last, block + kPrefetch);
      if (impl_->is_on_disk(object, block)) impl_->prefetch(object, block, prefetched);
    }
    if (impl_->read_hit(object, block, at, upto(block + 1), call)) {
      at = std::min(end, (block + 1) * block_bytes);
      continue;
    }
    Result<ByteLock> claimed = impl_->claim(object, block, last);
    if (!claimed) {  // the system has no more locks
      impl_->warn(claimed.error());
      return source.read_at(at, out.subspan(static_cast<size_t>(at - offset)));
    }
    ByteLock claim = std::move(*claimed);
    if (!claim) {
      RETURN_IF_ERROR(check_goes_on(call, source.name()));
      sleep_until_changed(counter, ticket);
      continue;
    }
    if (impl_->is_cached(object, block)) continue;  // another process was faster
    const int64_t blocks = claim.end() - claim.begin();
    Status got = impl_->download(object, source, block, blocks, at, upto(block + blocks), call);
    claim = {};
    wake_sleepers(counter);
    RETURN_IF_ERROR(std::move(got));
    at = std::min(end, (block + blocks) * block_bytes);
  }
  return {};
}

// The blocks of a range lie all over the data, so the system does not read ahead by itself. Blocks [block, end) are
// asked for at once, unless they are in memory.
void NodeCache::Impl::prefetch(const CachedObject& object, int64_t block, int64_t end) {
  for (int64_t next = block; next < end; ++next) {
    if (const auto found = table.find(block_key(object.id, next))) table.prefetch(*found);
  }
}

// The system's read-ahead is off (SlotTable) and could not know where the next block lies. A thread whose reads of one
// object follow each other finds the next blocks on their way: as many as it has read in a row, kPrefetch at most. They
// count as unchecked.
void NodeCache::Impl::read_ahead(const CachedObject& object, int64_t offset, int64_t end) {
  struct Sequence {
    const Impl* cache = nullptr;
    Hash128 object;
    int64_t begin = 0;  // of its first read
    int64_t end = 0;    // of the last one
    int64_t asked = 0;  // blocks before it were asked for
  };
  thread_local Sequence sequence;
  if (sequence.cache != this || sequence.object != object.id || sequence.end != offset) {
    sequence = {this, object.id, offset, end, 0};
    return;
  }
  sequence.end = end;
  const int64_t blocks = (object.size + options.block_bytes - 1) / options.block_bytes;
  const int64_t next = (end + options.block_bytes - 1) / options.block_bytes;
  const int64_t most = std::min(kPrefetch, (end - sequence.begin) / options.block_bytes);
  if (sequence.asked - next > most / 2) return;
  const int64_t from = std::max(sequence.asked, next);
  sequence.asked = std::min(blocks, next + most);
  if (from < sequence.asked && is_on_disk(object, from)) prefetch(object, from, sequence.asked);
}

bool NodeCache::Impl::is_on_disk(const CachedObject& object, int64_t block) {
  const auto found = table.find(block_key(object.id, block));
  return found && !table.is_in_memory(*found);
}

bool NodeCache::Impl::read_hit(const CachedObject& object, int64_t block, int64_t offset, std::span<std::byte> out,
                               const Call& call) {
  const Hash128 key = block_key(object.id, block);
  const auto found = table.find(key);
  if (!found) return false;
  const SlotTable::Outcome outcome = table.read(*found, key, offset - block * options.block_bytes, out);
  if (outcome == SlotTable::Outcome::kDamaged) {
    log(LogLevel::kWarning, "the cache {}: a block was damaged on the disk; it is downloaded again",
        files->directory());
    if (call.metrics != nullptr) call.metrics->add(Metric::kCacheDamaged, 1);
  }
  const bool was_checked = outcome == SlotTable::Outcome::kChecked;
  if (!was_checked && outcome != SlotTable::Outcome::kKnown) return false;
  if (call.metrics != nullptr) {
    call.metrics->add(Metric::kCacheHitBytes, std::ssize(out));
    if (was_checked) call.metrics->add(Metric::kCacheCheckedBytes, std::ssize(out));
  }
  return true;
}

Result<ByteLock> NodeCache::Impl::try_claim(Hash128 object, int64_t block) {
  const int64_t byte = claim_byte(object, block);
  ASSIGN_OR_RETURN(const bool is_taken, files->locks().try_lock(byte, byte + 1));
  return is_taken ? ByteLock(files->locks(), byte, byte + 1) : ByteLock();
}

// Claims `block` and the blocks behind it that nobody has or fetches, up to `end` and to what one download takes. Not
// locked when another thread or process has claimed `block`.
Result<ByteLock> NodeCache::Impl::claim(const CachedObject& object, int64_t block, int64_t end) {
  ASSIGN_OR_RETURN(ByteLock claim, try_claim(object.id, block));
  const int64_t most = std::max<int64_t>(1, kFillBytes / options.block_bytes);
  for (int64_t next = block + 1; claim && next < std::min(end, block + most); ++next) {
    if (is_cached(object, next) || claim_byte(object.id, next) != claim.end() || !claim.try_extend()) break;
  }
  return claim;
}

// With the claim to `blocks` blocks from `block` on: reads them from `source`, stores them and copies to `out` what it
// asks for from `offset` on.
Status NodeCache::Impl::download(const CachedObject& object, const RandomReader& source, int64_t block, int64_t blocks,
                                 int64_t offset, std::span<std::byte> out, const Call& call) {
  const int64_t begin = block * options.block_bytes;
  const int64_t size = std::min(object.size, begin + blocks * options.block_bytes) - begin;
  const Pool& pool = memory.get();
  if (!pool) return tl::unexpected(pool.error());
  ASSIGN_OR_RETURN(const Buffer buffer, (*pool)->acquire(static_cast<size_t>(size), call.stop));
  RETURN_IF_ERROR(source.read_at(begin, buffer.span()));
  if (call.metrics != nullptr) call.metrics->add(Metric::kCacheMissBytes, size);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t at = i * options.block_bytes;
    const auto bytes = static_cast<size_t>(std::min(options.block_bytes, size - at));
    store(block_key(object.id, block + i), buffer.span().subspan(static_cast<size_t>(at), bytes));
  }
  std::memcpy(out.data(), buffer.data() + (offset - begin), out.size());
  return {};
}

void NodeCache::Impl::store(Hash128 key, std::span<const std::byte> bytes) {
  const Result<bool> stored = table.store(key, bytes);
  if (!stored) warn(stored.error());
}

void NodeCache::Impl::warn(const Error& error) {
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep before = warned.load();
  if (before != 0 && now - before < Clock::duration(kQuiet).count()) return;
  if (!warned.compare_exchange_strong(before, now)) return;
  log(LogLevel::kWarning, "the cache {} cannot keep what is downloaded: {}", files->directory(), error.to_string());
}

Result<NodeCache::Opened> NodeCache::open_once(std::string_view storage, std::string_view key, const Call& call,
                                               const std::function<Result<Opened>()>& open) {
  const Hash128 id = object_id(storage, key, "", -1);
  std::atomic<uint32_t>& counter = impl_->counter(id);
  for (;;) {
    const uint32_t ticket = counter.load();
    if (auto known = find_open_record(*impl_->files, id, impl_->options.open_age)) {
      return Opened{known->size, std::move(known->version)};
    }
    Result<ByteLock> claim = impl_->try_claim(id, 0);
    if (!claim) return open();
    if (!*claim) {
      RETURN_IF_ERROR(check_goes_on(call, key));
      sleep_until_changed(counter, ticket);
      continue;
    }
    if (find_open_record(*impl_->files, id, impl_->options.open_age)) continue;
    Result<Opened> opened = open();
    if (opened) keep_open_record(*impl_->files, id, {opened->size, opened->version}, std::chrono::system_clock::now());
    *claim = {};
    wake_sleepers(counter);
    return opened;
  }
}

void NodeCache::forget_opened(std::string_view storage, std::string_view key) {
  keep_open_record(*impl_->files, object_id(storage, key, "", -1), {0, "forgotten"}, {});
}

}  // namespace millrace::cache
