// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/shard_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "millrace/base/executor.h"
#include "millrace/base/hash.h"
#include "millrace/base/log.h"
#include "millrace/base/units.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/loader/shard_set.h"

namespace millrace::loader {

namespace {

constexpr int64_t kReadBytes = 8 << 20;  // one read covers at most this much, or one sample that is larger
constexpr size_t kOpenReaders = 128;     // file handles kept per source

// A small map that forgets what was used longest ago once its total weight is over a limit. Not thread-safe.
template <class Value>
class RecentMap {
 public:
  explicit RecentMap(int64_t limit) : limit_(limit) {}

  Value find(int64_t key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return {};
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->value;
  }
  void insert(int64_t key, Value value, int64_t weight) {
    if (places_.contains(key)) return;
    entries_.push_front({key, std::move(value), weight});
    places_[key] = entries_.begin();
    total_ += weight;
    while (total_ > limit_ && entries_.size() > 1) {
      total_ -= entries_.back().weight;
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    int64_t key;
    Value value;
    int64_t weight;
  };
  int64_t limit_;
  int64_t total_ = 0;
  std::list<Entry> entries_;
  std::map<int64_t, typename std::list<Entry>::iterator> places_;
};

using IndexPtr = std::shared_ptr<const formats::ShardIndex>;
using ReaderPtr = std::shared_ptr<const RandomReader>;

class OpenShards final : public ShardSource {
 public:
  OpenShards(std::vector<Shard> shards, const ShardSourceOptions& options, Metrics& metrics)
      : shards_(std::move(shards)),
        name_(options.urls.size() == 1 ? options.urls[0] : fmt::format("{} and others", options.urls[0])),
        field_(options.ids_field),
        tokenizer_hash_(options.tokenizer_hash),
        vocab_size_(options.vocab_size),
        metrics_(metrics),
        indexes_(options.index_cache_bytes),
        readers_(kOpenReaders),
        built_(shards_.size()),
        versions_(shards_.size()) {}

  std::string_view name() const override { return name_; }
  std::string shard_name(int64_t shard) const override { return shards_[static_cast<size_t>(shard)].location.url; }
  std::string_view identity() const override { return identity_; }
  std::span<const int64_t> shard_samples() const override { return samples_; }
  std::string_view ids_field() const override { return field_; }

  Status open(int threads) {
    std::vector<Hash128> hashes(shards_.size());
    std::vector<Hash128> tokenizers(shards_.size());
    std::vector<std::optional<Error>> errors(shards_.size());
    samples_.resize(shards_.size());
    Executor executor(threads, "mr-open");
    parallel_for(executor, static_cast<int64_t>(shards_.size()), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      if (shards_[at].entry) {
        samples_[at] = shards_[at].entry->samples;
        hashes[at] = shards_[at].entry->hash;
        tokenizers[at] = shards_[at].tokenizer_hash;
        return;
      }
      const auto found = index(i);
      if (!found) {
        errors[at] = found.error();
        return;
      }
      samples_[at] = (*found)->samples();
      hashes[at] = (*found)->shard_hash;
      tokenizers[at] = (*found)->tokenizer_hash;
    });
    std::string lines;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (errors[i]) return tl::unexpected(*errors[i]);
      const std::string& key = shards_[i].location.key;
      lines += fmt::format("{} {} {}\n", key.substr(key.rfind('/') + 1), samples_[i], to_hex(hashes[i]));
    }
    RETURN_IF_ERROR(check_tokenizers(tokenizers));
    identity_ = to_hex(xxh3_128(lines));
    if (field_.empty() && !shards_.empty()) {
      ASSIGN_OR_RETURN(const IndexPtr first, index(0));
      field_ = first->ids_field;
    }
    return {};
  }

  Result<std::vector<uint32_t>> lengths(int64_t shard, int64_t first, int64_t count) override {
    ASSIGN_OR_RETURN(const IndexPtr index, this->index(shard));
    if (!index->tokens_known()) {
      return fail(ErrorCode::kUnsupported, "{}: its samples hold no token ids (a field such as token_ids.npy or .json)",
                  shards_[static_cast<size_t>(shard)].location.url);
    }
    const auto begin = index->tokens.begin() + first;
    return std::vector<uint32_t>(begin, begin + count);
  }

  Status read(int64_t shard, int64_t first, int64_t count, std::stop_token stop,
              const std::function<Status(int64_t, const order::Sample&)>& visit) override {
    ASSIGN_OR_RETURN(const IndexPtr index, this->index(shard));
    ASSIGN_OR_RETURN(const ReaderPtr reader, this->reader(shard, index->shard_size));
    std::vector<std::byte> bytes;
    SampleParts parts;
    for (int64_t at = first; at < first + count;) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", reader->name());
      const auto begin = index->offset[static_cast<size_t>(at)];
      int64_t last = at + 1;
      const auto end_of = [&](int64_t i) {
        return index->offset[static_cast<size_t>(i)] + index->size[static_cast<size_t>(i)];
      };
      while (last < first + count && end_of(last) - begin <= static_cast<uint64_t>(kReadBytes)) ++last;
      bytes.resize(end_of(last - 1) - begin);
      {
        MetricTimer timer(metrics_, Metric::kReadSeconds);
        RETURN_IF_ERROR(reader->read_at(static_cast<int64_t>(begin), bytes));
      }
      metrics_.add(Metric::kReadBytes, static_cast<int64_t>(bytes.size()));
      for (; at < last; ++at) {
        const auto extent = std::span(bytes).subspan(index->offset[static_cast<size_t>(at)] - begin,
                                                     index->size[static_cast<size_t>(at)]);
        RETURN_IF_ERROR(take_apart(*index, *reader, at, extent, parts));
        RETURN_IF_ERROR(visit(at - first, {parts.key, parts.fields}));
      }
    }
    return {};
  }

 private:
  // Ids of two tokenizers are no text of any. Shards that do not say theirs (foreign ones) pass.
  Status check_tokenizers(std::span<const Hash128> tokenizers) const {
    const auto url = [&](size_t i) -> const std::string& { return shards_[i].location.url; };
    size_t first = shards_.size();
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (const int64_t limit = shards_[i].id_limit; vocab_size_ > 0 && limit > vocab_size_) {
        return fail(ErrorCode::kInvalidArgument, "{}: its tokenizer has ids up to {}, vocab_size is {}", url(i),
                    limit - 1, vocab_size_);
      }
      if (tokenizers[i] == Hash128{}) continue;
      if (tokenizer_hash_ && tokenizers[i] != *tokenizer_hash_) {
        return fail(ErrorCode::kInvalidArgument, "{}: made with the tokenizer {}, the loader was given {}", url(i),
                    to_hex(tokenizers[i]), to_hex(*tokenizer_hash_));
      }
      if (first == shards_.size()) first = i;
      if (tokenizers[i] != tokenizers[first]) {
        return fail(
            ErrorCode::kInvalidArgument,
            "{} was made with the tokenizer {} and {} with {}: their ids do not mean the same. Prepare them with "
            "one tokenizer, or give each its own loader",
            url(first), to_hex(tokenizers[first]), url(i), to_hex(tokenizers[i]));
      }
    }
    if (tokenizer_hash_ && first == shards_.size()) {
      log(LogLevel::kWarning,
          "{}: no shard says which tokenizer made it, so that it cannot be held against the one given", name_);
    }
    return {};
  }

  // Storage of one sample's names and views, used again for the next.
  struct SampleParts {
    std::string key;
    std::string long_name;
    std::deque<std::string> names;  // stays in place while it grows: fields point into it
    std::vector<order::Field> fields;
  };

  static Status take_apart(const formats::ShardIndex& index, const RandomReader& reader, int64_t number,
                           std::span<const std::byte> extent, SampleParts& parts) {
    const auto n = static_cast<size_t>(number);
    if (xxh3_64(extent) != index.hash[n]) {
      return fail(
          ErrorCode::kCorruption,
          "{}: sample {} at byte {} does not match its hash in the index; `millrace shards check` lists all damage",
          reader.name(), number, index.offset[n]);
    }
    parts.fields.clear();
    if (index.kind == formats::SampleExtentKind::kIds) {
      parts.key = fmt::format("{}", number);
      parts.fields.push_back({index.ids_field, extent});
      return {};
    }
    for (size_t at = 0; at < extent.size();) {
      ASSIGN_OR_RETURN(const formats::TarView view, formats::next_tar_view(extent, at, parts.long_name, reader.name(),
                                                                           static_cast<int64_t>(index.offset[n])));
      auto split = formats::split_sample_name(view.name);
      if (!split) continue;
      if (parts.fields.empty()) parts.key.assign(split->key);
      if (parts.names.size() == parts.fields.size()) parts.names.emplace_back();
      std::string& name = parts.names[parts.fields.size()];
      name = std::move(split->field);
      parts.fields.push_back({name, view.data});
    }
    return {};
  }

  Result<ReaderPtr> reader(int64_t shard, int64_t expected_size) {
    {
      MutexLock lock(mutex_);
      if (auto found = readers_.find(shard)) return found;
    }
    const Shard& s = shards_[static_cast<size_t>(shard)];
    OpenOptions options;
    {
      MutexLock lock(mutex_);
      options.expected_version = versions_[static_cast<size_t>(shard)];
    }
    ASSIGN_OR_RETURN(auto opened, s.location.storage->open_read(s.location.key, options));
    if (expected_size >= 0 && opened->size() != expected_size) {
      return fail(ErrorCode::kCorruption, "{}: {} bytes long, its index says {}", s.location.url, opened->size(),
                  expected_size);
    }
    ReaderPtr reader = std::move(opened);
    MutexLock lock(mutex_);
    versions_[static_cast<size_t>(shard)] = std::string(reader->version());
    readers_.insert(shard, reader, 1);
    return reader;
  }

  Result<IndexPtr> index(int64_t shard) {
    const auto at = static_cast<size_t>(shard);
    {
      MutexLock lock(mutex_);
      if (built_[at]) return built_[at];
      if (auto found = indexes_.find(shard)) return found;
    }
    const Shard& s = shards_[at];
    ASSIGN_OR_RETURN(auto stored, read_index(s));
    if (!stored) {
      if (!s.entry) return build_index(shard);
      return fail(ErrorCode::kNotFound, "{}: missing, though the manifest names it", index_location(s).url);
    }
    if (s.entry && stored->hash != s.entry->index_hash) {
      return fail(ErrorCode::kCorruption, "{}: not the index that the manifest names", index_location(s).url);
    }
    IndexPtr index = std::make_shared<const formats::ShardIndex>(std::move(stored->index));
    MutexLock lock(mutex_);
    indexes_.insert(shard, index, stored->size_bytes);
    return index;
  }

  // A foreign shard: its index is kept in memory for as long as the source lives, since building it reads every byte.
  Result<IndexPtr> build_index(int64_t shard) {
    ASSIGN_OR_RETURN(const ReaderPtr reader, this->reader(shard, -1));
    if (!reader->name().ends_with(".tar")) {
      return fail(ErrorCode::kNotFound, "{}: there is no index beside it, and only that tells its samples apart",
                  reader->name());
    }
    log(LogLevel::kWarning, "{}: no index beside it; reading its {} to build one (`millrace shards index` keeps it)",
        reader->name(), format_bytes(reader->size()));
    ASSIGN_OR_RETURN(auto built, formats::index_shard(*reader, field_));
    IndexPtr index = std::make_shared<const formats::ShardIndex>(std::move(built));
    MutexLock lock(mutex_);
    built_[static_cast<size_t>(shard)] = index;
    return index;
  }

  const std::vector<Shard> shards_;
  const std::string name_;
  std::string field_;
  const std::optional<Hash128> tokenizer_hash_;
  const int64_t vocab_size_;
  std::string identity_;
  std::vector<int64_t> samples_;
  Metrics& metrics_;
  Mutex mutex_;
  RecentMap<IndexPtr> indexes_ GUARDED_BY(mutex_);
  RecentMap<ReaderPtr> readers_ GUARDED_BY(mutex_);
  std::vector<IndexPtr> built_ GUARDED_BY(mutex_);
  std::vector<std::string> versions_ GUARDED_BY(mutex_);  // of each shard's first open
};

}  // namespace

Result<std::unique_ptr<ShardSource>> open_shard_source(const ShardSourceOptions& options, Metrics& metrics) {
  if (options.urls.empty()) return fail(ErrorCode::kInvalidArgument, "no shards were named");
  ASSIGN_OR_RETURN(std::vector<Shard> shards, find_shards(options.urls));
  auto source = std::make_unique<OpenShards>(std::move(shards), options, metrics);
  RETURN_IF_ERROR(source->open(options.threads));
  return source;
}

}  // namespace millrace::loader
