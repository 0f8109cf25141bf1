// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the indexes of a dataset's shards, of any size. The first use of an index reads all of it and checks it
// against its checksum and the manifest. Later uses read the pages that they need, and check each page by a hash that
// the first use took. The most recently used pages stay in memory. The first use keeps all pages of a small index, if
// there is room. Memory: the kept pages, and 32 bytes for every 1,024 samples. Thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/formats/index_pages.h"
#include "millrace/loader/detail/recent_map.h"
#include "millrace/loader/shard_set.h"
#include "millrace/order/order.h"

namespace millrace::loader {

// One index: stored beside its shard, or built and kept whole in memory when the shard has none.
struct OpenIndex {
  std::optional<formats::IndexPages> pages;
  std::optional<formats::ShardIndex> built;
  std::string version;  // version of the stored file

  const formats::ShardFacts& facts() const { return pages ? pages->facts() : *built; }
  int64_t samples() const { return pages ? pages->samples() : built->samples(); }
  bool tokens_known() const { return pages ? pages->tokens_known() : built->tokens_known(); }
  int64_t total_tokens() const { return pages ? pages->total_tokens() : built->total_tokens(); }
};

class IndexCache {
 public:
  // Builds the index of a shard that has none.
  using Build = std::function<Result<formats::ShardIndex>(int64_t shard)>;
  // `shards` must outlive the cache.
  IndexCache(const std::vector<Shard>& shards, int64_t cache_bytes, Build build);

  // Returns the index of a shard, valid as long as the cache. The first call for a shard reads its index. Errors:
  // corruption (damaged, or not the index that the manifest names), not_found (the index that the manifest names is
  // missing), unsupported, those of Build.
  [[nodiscard]] Result<const OpenIndex*> open(int64_t shard);
  // Returns whether the index of a shard was opened. open() then reads nothing.
  bool is_open(int64_t shard);

  // Returns the memory that the index of a shard with `samples` samples takes for the life of the cache, excluding its
  // kept pages. It is an estimate until the index is open.
  int64_t held_bytes(int64_t shard, int64_t samples);

  // Returns the rows of each window, with checked extents. Reads all pages that are not in memory together.
  // Errors: those of open(); corruption (the index has changed since); cancelled.
  [[nodiscard]] Result<std::vector<formats::ShardRows>> rows(std::span<const order::Window> windows,
                                                             const std::stop_token& stop = {});
  // Calls `visit` with the token counts of all samples of a shard, several samples per call.
  [[nodiscard]] Status visit_tokens(int64_t shard,
                                    const std::function<Status(std::span<const uint32_t> tokens)>& visit);

 private:
  using Page = std::shared_ptr<const formats::ShardRows>;
  using PageKey = std::pair<int64_t, int64_t>;  // shard, page
  using ReaderPtr = std::shared_ptr<const RandomReader>;
  struct Fetch;

  struct ReadIndex;

  [[nodiscard]] Result<ReadIndex> read_index(int64_t shard);
  [[nodiscard]] Result<ReadIndex> read_stored(const Shard& shard, const RandomReader& file);
  void keep_pages(int64_t first_page, ReadIndex& read) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Result<ReaderPtr> reader(int64_t shard, const OpenIndex& index);
  std::vector<Page> kept_pages(int64_t shard, const OpenIndex& index);
  [[nodiscard]] Result<std::map<PageKey, Page>> pages_of(std::span<const order::Window> windows,
                                                         const std::stop_token& stop);
  [[nodiscard]] Status fetch(std::map<PageKey, Page>& pages, const std::stop_token& stop);

  const std::vector<Shard>& shards_;
  const Build build_;
  Mutex mutex_;
  std::vector<std::unique_ptr<const OpenIndex>> opened_ GUARDED_BY(mutex_);  // set once
  std::vector<int64_t> first_page_ GUARDED_BY(mutex_);                       // first key of each shard in pages_
  int64_t next_page_ GUARDED_BY(mutex_) = 0;
  RecentMap<Page> pages_ GUARDED_BY(mutex_);
  RecentMap<ReaderPtr> readers_ GUARDED_BY(mutex_);
};

}  // namespace millrace::loader
