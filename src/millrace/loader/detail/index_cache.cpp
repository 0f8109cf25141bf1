// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/index_cache.h"

#include <algorithm>
#include <utility>

#include "millrace/loader/detail/heap_bytes.h"
#include "millrace/storage/storage.h"

namespace millrace::loader {

namespace {

using formats::IndexPages;
using formats::ShardRows;

constexpr int64_t kOpenIndexes = 128;   // file handles kept
constexpr int64_t kPageOverhead = 256;  // of a page's vectors and its place in the cache
// A smaller index is read with one request, and its pages kept. 4 MiB are 150,000 samples.
constexpr int64_t kSmallIndex = 4 << 20;

template <class T>
void append_slice(const std::vector<T>& from, int64_t begin, int64_t end, std::vector<T>& to) {
  to.insert(to.end(), from.begin() + begin, from.begin() + end);
}

void append_rows(const ShardRows& from, int64_t begin, int64_t end, ShardRows& to) {
  append_slice(from.offset, begin, end, to.offset);
  append_slice(from.size, begin, end, to.size);
  append_slice(from.tokens, begin, end, to.tokens);
  append_slice(from.hash, begin, end, to.hash);
}

int64_t last_page(const order::Window& window) {
  return (window.first + window.samples - 1) / IndexPages::kPageSamples;
}

int64_t weight_of(const ShardRows& rows) {
  return rows.samples() * static_cast<int64_t>(formats::kIndexRowBytes) + kPageOverhead;
}

// The pages of an index whose file is in memory.
std::vector<ShardRows> all_pages(const IndexPages& index, std::span<const std::byte> file) {
  std::vector<ShardRows> pages;
  for (int64_t page = 0; page < index.pages(); ++page) pages.push_back(index.take_page(page, file));
  return pages;
}

}  // namespace

// An index that was just read, and the pages of it that came along.
struct IndexCache::ReadIndex {
  std::unique_ptr<OpenIndex> index = std::make_unique<OpenIndex>();
  std::vector<ShardRows> pages;
};

IndexCache::IndexCache(const std::vector<Shard>& shards, int64_t cache_bytes, Build build)
    : shards_(shards),
      build_(std::move(build)),
      opened_(shards.size()),
      first_page_(shards.size()),
      pages_(cache_bytes),
      readers_(kOpenIndexes) {}

Result<const OpenIndex*> IndexCache::open(int64_t shard) {
  const auto at = static_cast<size_t>(shard);
  {
    MutexLock lock(mutex_);
    if (opened_[at]) return opened_[at].get();
  }
  ASSIGN_OR_RETURN(ReadIndex read, read_index(shard));
  MutexLock lock(mutex_);
  if (!opened_[at]) {  // else another thread was first
    first_page_[at] = next_page_;
    keep_pages(next_page_, read);
    next_page_ += read.index->pages ? read.index->pages->pages() : 0;
    opened_[at] = std::move(read.index);
  }
  return opened_[at].get();
}

bool IndexCache::is_open(int64_t shard) {
  MutexLock lock(mutex_);
  return opened_[static_cast<size_t>(shard)] != nullptr;
}

int64_t IndexCache::held_bytes(int64_t shard, int64_t samples) {
  constexpr int64_t kFacts = 256;  // strings of an index that prepare wrote
  constexpr int64_t kPageHashes = 32;
  const int64_t object = sizeof(OpenIndex) + sizeof(opened_[0]) + sizeof(first_page_[0]);
  const int64_t pages = (samples + IndexPages::kPageSamples - 1) / IndexPages::kPageSamples * kPageHashes;
  MutexLock lock(mutex_);
  const auto& index = opened_[static_cast<size_t>(shard)];
  if (!index) return object + kFacts + pages;
  const int64_t facts = heap_bytes(index->facts().ids_field) + heap_bytes(index->facts().producer);
  if (!index->built) return object + facts + pages;
  return object + facts + index->built->samples() * static_cast<int64_t>(formats::kIndexRowBytes);
}

// Stops when the cache is full: reading on would only push out pages of the indexes before.
void IndexCache::keep_pages(int64_t first_page, ReadIndex& read) {
  for (size_t page = 0; page < read.pages.size(); ++page) {
    const int64_t weight = weight_of(read.pages[page]);
    if (!pages_.has_room(weight)) return;
    pages_.insert(first_page + static_cast<int64_t>(page),
                  std::make_shared<const ShardRows>(std::move(read.pages[page])), weight);
  }
}

Result<IndexCache::ReadIndex> IndexCache::read_index(int64_t shard) {
  const Shard& s = shards_[static_cast<size_t>(shard)];
  const Location at = index_location(s);
  const auto file = at.storage->open_read(at.key);
  if (file) return read_stored(s, **file);
  if (file.error().code() != ErrorCode::kNotFound) return tl::unexpected(file.error());
  if (s.entry) return fail(ErrorCode::kNotFound, "{}: missing, though the manifest names it", at.url);
  ReadIndex read;
  ASSIGN_OR_RETURN(read.index->built, build_(shard));
  return read;
}

Result<IndexCache::ReadIndex> IndexCache::read_stored(const Shard& shard, const RandomReader& file) {
  ReadIndex read;
  if (file.size() > kSmallIndex) {
    ASSIGN_OR_RETURN(read.index->pages, IndexPages::open(file));
  } else {
    std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
    RETURN_IF_ERROR(file.read_at(0, bytes));
    ASSIGN_OR_RETURN(read.index->pages, IndexPages::open(bytes, file.name()));
    bool is_kept = false;
    {
      MutexLock lock(mutex_);
      is_kept = pages_.has_room(file.size());
    }
    if (is_kept) read.pages = all_pages(*read.index->pages, bytes);
  }
  if (shard.entry && read.index->pages->file_hash() != shard.entry->index_hash) {
    return fail(ErrorCode::kCorruption, "{}: not the index that the manifest names", index_location(shard).url);
  }
  read.index->version = std::string(file.version());
  return read;
}

Result<IndexCache::ReaderPtr> IndexCache::reader(int64_t shard, const OpenIndex& index) {
  {
    MutexLock lock(mutex_);
    if (auto found = readers_.find(shard)) return found;
  }
  const Location at = index_location(shards_[static_cast<size_t>(shard)]);
  OpenOptions options;
  options.expected_version = index.version;
  options.known_size = index.pages->file_size();
  ASSIGN_OR_RETURN(auto opened, at.storage->open_read(at.key, options));
  if (opened->size() != index.pages->file_size()) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading", at.url);
  }
  ReaderPtr reader = std::move(opened);
  MutexLock lock(mutex_);
  readers_.insert(shard, reader, 1);
  return reader;
}

// Pages on their way, and what they are read into.
struct IndexCache::Fetch {
  struct Target {
    PageKey key;
    const OpenIndex* index;
    ReaderPtr reader;
    std::vector<std::byte> bytes;
  };
  std::vector<Target> targets;
  std::map<Storage*, std::vector<Operation>> operations;

  void add(const PageKey& key, const OpenIndex& index, ReaderPtr reader) {
    int64_t size = 0;
    for (const IndexPages::Range& range : index.pages->ranges(key.second)) size += range.size;
    targets.push_back({key, &index, std::move(reader), std::vector<std::byte>(static_cast<size_t>(size))});
  }

  // Reads all of it; behind an error nothing is still being written.
  [[nodiscard]] Status run(const std::vector<Shard>& shards, const std::stop_token& stop) {
    for (Target& target : targets) {
      size_t at = 0;
      for (const IndexPages::Range& range : target.index->pages->ranges(target.key.second)) {
        const auto size = static_cast<size_t>(range.size);
        operations[shards[static_cast<size_t>(target.key.first)].location.storage.get()].push_back(
            {.what = Operation::Read{target.reader.get(), range.offset, std::span(target.bytes).subspan(at, size)},
             .stop = stop});
        at += size;
      }
    }
    CompletionQueue queue;
    size_t under_way = 0;
    for (const auto& [storage, asked] : operations) {
      storage->submit(asked, queue);
      under_way += asked.size();
    }
    Status status;
    for (; under_way > 0; --under_way) {
      Completion done = queue.wait();
      if (status && !done.status) status = std::move(done.status);
    }
    return status;
  }
};

Status IndexCache::fetch(std::map<PageKey, Page>& pages, const std::stop_token& stop) {
  Fetch fetch;
  for (const auto& [key, page] : pages) {
    if (page) continue;
    ASSIGN_OR_RETURN(const OpenIndex* index, open(key.first));
    ASSIGN_OR_RETURN(ReaderPtr file, reader(key.first, *index));
    fetch.add(key, *index, std::move(file));
  }
  if (fetch.targets.empty()) return {};
  RETURN_IF_ERROR(fetch.run(shards_, stop));
  for (const Fetch::Target& target : fetch.targets) {
    ASSIGN_OR_RETURN(ShardRows rows,
                     target.index->pages->parse(target.key.second, target.bytes, target.reader->name()));
    pages[target.key] = std::make_shared<const ShardRows>(std::move(rows));
    MutexLock lock(mutex_);
    pages_.insert(first_page_[static_cast<size_t>(target.key.first)] + target.key.second, pages[target.key],
                  weight_of(*pages[target.key]));
  }
  return {};
}

Result<std::map<IndexCache::PageKey, IndexCache::Page>> IndexCache::pages_of(std::span<const order::Window> windows,
                                                                             const std::stop_token& stop) {
  std::map<PageKey, Page> pages;
  for (const order::Window& window : windows) {
    ASSIGN_OR_RETURN(const OpenIndex* index, open(window.shard));
    if (!index->pages) continue;
    MutexLock lock(mutex_);
    for (int64_t page = window.first / IndexPages::kPageSamples; page <= last_page(window); ++page) {
      pages[{window.shard, page}] = pages_.find(first_page_[static_cast<size_t>(window.shard)] + page);
    }
  }
  RETURN_IF_ERROR(fetch(pages, stop));
  return pages;
}

Result<std::vector<ShardRows>> IndexCache::rows(std::span<const order::Window> windows, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto pages, pages_of(windows, stop));
  std::vector<ShardRows> all;
  for (const order::Window& window : windows) {
    ASSIGN_OR_RETURN(const OpenIndex* index, open(window.shard));
    ShardRows& rows = all.emplace_back();
    const int64_t end = window.first + window.samples;
    if (index->built) append_rows(*index->built, window.first, end, rows);
    for (int64_t at = window.first; at < end && index->pages;) {
      const int64_t page = at / IndexPages::kPageSamples, begin = page * IndexPages::kPageSamples;
      const int64_t stop_at = std::min(end, begin + IndexPages::kPageSamples);
      append_rows(*pages.at({window.shard, page}), at - begin, stop_at - begin, rows);
      at = stop_at;
    }
    const Location file = index_location(shards_[static_cast<size_t>(window.shard)]);
    RETURN_IF_ERROR(formats::check_rows(index->facts(), rows, window.first, file.url));
  }
  return all;
}

// All pages of a shard, or none when one of them is missing.
std::vector<IndexCache::Page> IndexCache::kept_pages(int64_t shard, const OpenIndex& index) {
  std::vector<Page> kept;
  MutexLock lock(mutex_);
  for (int64_t page = 0; page < index.pages->pages(); ++page) {
    kept.push_back(pages_.find(first_page_[static_cast<size_t>(shard)] + page));
    if (kept.back() == nullptr) return {};
  }
  return kept;
}

Status IndexCache::visit_tokens(int64_t shard, const std::function<Status(std::span<const uint32_t>)>& visit) {
  ASSIGN_OR_RETURN(const OpenIndex* index, open(shard));
  if (index->built) return visit(index->built->tokens);
  const std::vector<Page> kept = kept_pages(shard, *index);
  for (const Page& page : kept) RETURN_IF_ERROR(visit(page->tokens));
  if (!kept.empty() || index->samples() == 0) return {};
  ASSIGN_OR_RETURN(const ReaderPtr file, reader(shard, *index));
  return index->pages->visit_tokens(*file, visit);
}

}  // namespace millrace::loader
