// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/shard_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "millrace/base/executor.h"
#include "millrace/base/hash.h"
#include "millrace/base/log.h"
#include "millrace/base/units.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/loader/index_cache.h"
#include "millrace/loader/recent_map.h"
#include "millrace/loader/shard_set.h"

namespace millrace::loader {

namespace {

constexpr int64_t kReadBytes = 8 << 20;  // one read covers at most this much, or one sample that is larger
constexpr size_t kOpenReaders = 128;     // file handles kept per source

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
        indexes_(shards_, options.index_cache_bytes, [this](int64_t shard) { return build_index(shard); }),
        readers_(kOpenReaders),
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
      const auto found = indexes_.open(i);
      if (!found) {
        errors[at] = found.error();
        return;
      }
      samples_[at] = (*found)->samples();
      hashes[at] = (*found)->facts().shard_hash;
      tokenizers[at] = (*found)->facts().tokenizer_hash;
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
      ASSIGN_OR_RETURN(const OpenIndex* first, indexes_.open(0));
      field_ = first->facts().ids_field;
    }
    return {};
  }

  Result<int64_t> total_tokens() override {
    int64_t tokens = 0;
    for (size_t shard = 0; shard < shards_.size(); ++shard) {
      if (const auto& entry = shards_[shard].entry) {
        tokens += entry->tokens;
        continue;
      }
      ASSIGN_OR_RETURN(const OpenIndex* index, counted_index(static_cast<int64_t>(shard)));
      tokens += index->total_tokens();
    }
    return tokens;
  }

  Status window_tokens(int64_t shard, int64_t window_samples, std::span<int64_t> tokens) override {
    ASSIGN_OR_RETURN(const OpenIndex* index, counted_index(shard));
    RETURN_IF_ERROR(check_samples(shard, *index));
    std::fill(tokens.begin(), tokens.end(), 0);
    int64_t at = 0;
    return indexes_.visit_tokens(shard, [&](std::span<const uint32_t> run) -> Status {
      for (const uint32_t count : run) tokens[static_cast<size_t>(at++ / window_samples)] += count;
      return {};
    });
  }

  Result<std::vector<uint32_t>> lengths(std::span<const order::Window> windows) override {
    for (const order::Window& window : windows) {
      ASSIGN_OR_RETURN(const OpenIndex* index, counted_index(window.shard));
      RETURN_IF_ERROR(check_samples(window.shard, *index));
    }
    ASSIGN_OR_RETURN(const auto rows, indexes_.rows(windows));
    std::vector<uint32_t> lengths;
    for (const formats::ShardRows& part : rows) lengths.insert(lengths.end(), part.tokens.begin(), part.tokens.end());
    return lengths;
  }

  Status read(int64_t shard, int64_t first, int64_t count, std::stop_token stop,
              const std::function<Status(int64_t, const order::Sample&)>& visit) override {
    ASSIGN_OR_RETURN(const OpenIndex* index, indexes_.open(shard));
    RETURN_IF_ERROR(check_samples(shard, *index));
    const order::Window window{.shard = shard, .first = first, .samples = count};
    ASSIGN_OR_RETURN(const auto found, indexes_.rows({&window, 1}, stop));
    const formats::ShardRows& rows = found.front();
    ASSIGN_OR_RETURN(const ReaderPtr reader, this->reader(shard, index->facts().shard_size));
    const auto end_of = [&](size_t i) { return rows.offset[i] + rows.size[i]; };
    const auto samples = static_cast<size_t>(count);
    std::vector<std::byte> bytes;
    SampleParts parts;
    for (size_t at = 0; at < samples;) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", reader->name());
      const uint64_t begin = rows.offset[at];
      size_t last = at + 1;
      while (last < samples && end_of(last) - begin <= static_cast<uint64_t>(kReadBytes)) ++last;
      bytes.resize(end_of(last - 1) - begin);
      {
        MetricTimer timer(metrics_, Metric::kReadSeconds);
        RETURN_IF_ERROR(reader->read_at(static_cast<int64_t>(begin), bytes));
      }
      metrics_.add(Metric::kReadBytes, static_cast<int64_t>(bytes.size()));
      for (; at < last; ++at) {
        const auto extent = std::span(bytes).subspan(rows.offset[at] - begin, rows.size[at]);
        const SamplePlace place{first + static_cast<int64_t>(at), rows.offset[at], rows.hash[at]};
        RETURN_IF_ERROR(take_apart(index->facts(), *reader, place, extent, parts));
        RETURN_IF_ERROR(visit(static_cast<int64_t>(at), {parts.key, parts.fields}));
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

  struct SamplePlace {
    int64_t number;  // in the shard
    uint64_t offset;
    uint64_t hash;
  };

  static Status take_apart(const formats::ShardFacts& facts, const RandomReader& reader, const SamplePlace& place,
                           std::span<const std::byte> extent, SampleParts& parts) {
    if (xxh3_64(extent) != place.hash) {
      return fail(
          ErrorCode::kCorruption,
          "{}: sample {} at byte {} does not match its hash in the index; `millrace shards check` lists all damage",
          reader.name(), place.number, place.offset);
    }
    parts.fields.clear();
    if (facts.kind == formats::SampleExtentKind::kIds) {
      parts.key = fmt::format("{}", place.number);
      parts.fields.push_back({facts.ids_field, extent});
      return {};
    }
    for (size_t at = 0; at < extent.size();) {
      ASSIGN_OR_RETURN(const formats::TarView view, formats::next_tar_view(extent, at, parts.long_name, reader.name(),
                                                                           static_cast<int64_t>(place.offset)));
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

  // Errors: unsupported when its samples were not counted.
  Result<const OpenIndex*> counted_index(int64_t shard) {
    ASSIGN_OR_RETURN(const OpenIndex* index, indexes_.open(shard));
    if (index->tokens_known()) return index;
    return fail(ErrorCode::kUnsupported, "{}: its samples hold no token ids (a field such as token_ids.npy or .json)",
                shard_name(shard));
  }

  // A manifest may count other samples than the index that it names.
  Status check_samples(int64_t shard, const OpenIndex& index) const {
    const int64_t samples = samples_[static_cast<size_t>(shard)];
    if (samples == index.samples()) return {};
    return fail(ErrorCode::kCorruption, "{}: {} samples, and the manifest counts {}",
                index_location(shards_[static_cast<size_t>(shard)]).url, index.samples(), samples);
  }

  // A foreign shard: its index is kept in memory for as long as the source lives, since building it reads every byte.
  Result<formats::ShardIndex> build_index(int64_t shard) {
    ASSIGN_OR_RETURN(const ReaderPtr reader, this->reader(shard, -1));
    if (!reader->name().ends_with(".tar")) {
      return fail(ErrorCode::kNotFound, "{}: there is no index beside it, and only that tells its samples apart",
                  reader->name());
    }
    log(LogLevel::kWarning, "{}: no index beside it; reading its {} to build one (`millrace shards index` keeps it)",
        reader->name(), format_bytes(reader->size()));
    return formats::index_shard(*reader, field_);
  }

  const std::vector<Shard> shards_;
  const std::string name_;
  std::string field_;
  const std::optional<Hash128> tokenizer_hash_;
  const int64_t vocab_size_;
  std::string identity_;
  std::vector<int64_t> samples_;
  Metrics& metrics_;
  IndexCache indexes_;
  Mutex mutex_;
  RecentMap<ReaderPtr> readers_ GUARDED_BY(mutex_);
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
