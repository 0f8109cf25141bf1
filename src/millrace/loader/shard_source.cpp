// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/shard_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "millrace/base/io/stoppable_reader.h"
#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/executor.h"
#include "millrace/formats/sound_part.h"
#include "millrace/loader/detail/heap_bytes.h"
#include "millrace/loader/detail/index_cache.h"
#include "millrace/loader/detail/index_folder.h"
#include "millrace/loader/detail/recent_map.h"
#include "millrace/loader/detail/shard_run.h"

// A shard costs nothing before it is needed. What is needed of it comes from the first of these that has it: the
// manifest (samples, tokens, hashes of the whole), the page cache of its index, the index, the shard itself. Indexes
// and shards are opened many at once, because on a remote storage each opening is a request that waits for a round
// trip.

namespace millrace::loader {

namespace {

constexpr size_t kOpenReaders = 128;  // kept per source; with 1,024 descriptors (ulimit -n) several sources fit
// Indexes and shards that are opened at once on a remote storage, by threads that mostly wait. More would hold too much
// memory: each reads an index of up to 4 MiB.
constexpr int kRemoteOpens = 32;

using ReaderPtr = std::shared_ptr<const RandomReader>;

int open_threads(const std::vector<Shard>& shards, int local_threads) {
  const auto is_local = [](const Shard& shard) { return shard.location.storage->capabilities().is_local(); };
  const int threads = std::ranges::all_of(shards, is_local) ? local_threads : kRemoteOpens;
  return static_cast<int>(std::clamp<int64_t>(std::ssize(shards) - 1, 1, threads));
}

// Whether the version of a shard means the same to the next process; that of one in memory does not.
bool outlives_process(std::string_view url) {
  const size_t scheme = url.find("://");
  return scheme == std::string_view::npos || url.starts_with("s3://") || url.starts_with("http") ||
         url.starts_with("hf://");
}

class ShardSource final : public order::SampleSource, order::SampleLengths {
 public:
  ShardSource(std::vector<Shard> shards, const ShardSourceOptions& options, Metrics& metrics, std::stop_token stop)
      : shards_(std::move(shards)),
        options_(options),
        name_(options.name),
        stop_(std::move(stop)),
        field_(formats::field_name(options.ids_field)),
        samples_(shards_.size()),
        metrics_(metrics),
        openers_(open_threads(shards_, options.threads), "mr-open"),
        indexes_(shards_, options.index_cache_bytes, [this](int64_t shard) { return build_index(shard); }),
        readers_(kOpenReaders),
        versions_(shards_.size()) {}

  std::string_view name() const override { return name_; }
  std::string_view identity() const override { return identity_; }
  std::span<const int64_t> shard_samples() const override { return samples_; }
  std::string_view shard_name(int64_t shard) const override { return shards_[static_cast<size_t>(shard)].location.url; }
  std::optional<order::TokenIds> token_ids() const override {
    if (field_.empty()) return std::nullopt;
    return order::TokenIds{field_, tokenizer_};
  }
  order::SampleLengths* lengths() override { return options_.needs_ids ? this : nullptr; }

  std::vector<order::DamagedShard> damaged_shards() override {
    MutexLock lock(mutex_);
    std::vector<order::DamagedShard> damaged;
    for (const auto& [number, shard] : damaged_) damaged.push_back(shard);
    return damaged;
  }

  Status open() {
    std::vector<Hash128> hashes(shards_.size());
    std::vector<Hash128> tokenizers(shards_.size());
    RETURN_IF_ERROR(for_each_at_once(std::ssize(shards_), stop_, [&](int64_t i) -> Status {
      const auto at = static_cast<size_t>(i);
      if (const auto& entry = shards_[at].entry) {
        samples_[at] = entry->samples;
        hashes[at] = entry->hash;
        tokenizers[at] = shards_[at].tokenizer_hash;
        return {};
      }
      ASSIGN_OR_RETURN(const OpenIndex* index, open_index(i));
      samples_[at] = index->samples();
      hashes[at] = index->facts().shard_hash;
      tokenizers[at] = index->facts().tokenizer_hash;
      return {};
    }));
    std::string lines;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const std::string& key = shards_[i].location.key;
      lines += fmt::format("{} {} {}\n", key.substr(key.rfind('/') + 1), samples_[i], to_hex(hashes[i]));
    }
    identity_ = to_hex(xxh3_128(lines));
    RETURN_IF_ERROR(check_something_is_left());
    RETURN_IF_ERROR(check_tokenizers(tokenizers));
    return find_field();
  }

  // Sizes of shards as a manifest or the indexes have them.
  int64_t total_bytes() override {
    int64_t bytes = 0;
    for (size_t shard = 0; shard < shards_.size(); ++shard) {
      if (const auto& entry = shards_[shard].entry) {
        bytes += entry->size;
      } else if (const auto index = open_index(static_cast<int64_t>(shard))) {  // open() has read it
        bytes += (*index)->facts().shard_size;
      }
    }
    return bytes;
  }

  int64_t held_bytes() override {
    int64_t bytes = options_.index_cache_bytes;
    for (size_t i = 0; i < shards_.size(); ++i) {
      constexpr int64_t kVersion = 64;  // of a shard that was opened
      const Shard& shard = shards_[i];
      bytes += static_cast<int64_t>(sizeof(Shard) + sizeof(int64_t) + sizeof(std::string)) + kVersion;
      bytes += heap_bytes(shard.location.key) + heap_bytes(shard.location.url) + heap_bytes(shard.ids_field);
      if (shard.entry) bytes += heap_bytes(shard.entry->name);
      bytes += indexes_.held_bytes(static_cast<int64_t>(i), samples_[i]);
    }
    return bytes;
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

  Status window_tokens(int64_t window_samples, const TokensOf& tokens_of) override {
    return for_each_at_once(std::ssize(shards_), stop_, [&](int64_t shard) {
      return shard_window_tokens(shard, window_samples, tokens_of(shard));
    });
  }

  Status sample_tokens(const VisitLengths& visit) override {
    return for_each_at_once(std::ssize(shards_), stop_, [&](int64_t shard) -> Status {
      RETURN_IF_ERROR(counted_index(shard).map([](const OpenIndex*) {}));
      const Activities::Scope reading(options_.activities, index_request(shard));
      std::vector<uint32_t> lengths;
      RETURN_IF_ERROR(indexes_.visit_tokens(shard, [&](std::span<const uint32_t> run) -> Status {
        lengths.insert(lengths.end(), run.begin(), run.end());
        return {};
      }));
      visit(shard, lengths);
      return {};
    });
  }

  Result<order::SamplePlan> plan(std::span<const order::Window> windows, const std::stop_token& stop) override {
    ASSIGN_OR_RETURN(const auto readers, open_shards(windows, stop));
    ASSIGN_OR_RETURN(auto rows, index_rows(windows, stop));
    order::SamplePlan plan;
    for (size_t i = 0; i < windows.size(); ++i) {
      const order::Window& window = windows[i];
      const Shard& shard = shards_[static_cast<size_t>(window.shard)];
      if (options_.needs_ids) {
        plan.tokens.insert(plan.tokens.end(), rows[i].tokens.begin(), rows[i].tokens.end());
      } else {
        add_record_bytes(rows[i], plan.bytes);
      }
      const Result<ReaderPtr>& reader = readers.at(window.shard);
      if (!reader) {
        plan.runs.push_back(std::make_unique<UnreadableRun>(shard.location.url, window.samples, reader.error()));
        continue;
      }
      ASSIGN_OR_RETURN(const OpenIndex* index, planned_index(window.shard));
      append_runs({shard.location.storage, *reader}, index->facts(),
                  std::make_shared<const formats::ShardRows>(std::move(rows[i])), window.first, options_.run_bytes,
                  metrics_, plan.runs);
    }
    return plan;
  }

 private:
  // Calls body(i) for i in [0, count), many at once. Answers the error of the lowest i.
  Status for_each_at_once(int64_t count, const std::stop_token& stop, const std::function<Status(int64_t)>& body) {
    return parallel_try(openers_, count, [&](int64_t i) -> Status {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "open {}: stopped", name_);
      return body(i);
    });
  }

  // A member has a header of 512 bytes, which is more than a record needs beside name and data. Bare ids have none.
  static void add_record_bytes(const formats::ShardRows& rows, std::vector<int64_t>& bytes) {
    constexpr int64_t kBareIds = order::kRecordBytes + order::kRecordFieldBytes + 32;
    for (const uint64_t size : rows.size) bytes.push_back(static_cast<int64_t>(size) + kBareIds);
  }

  Status shard_window_tokens(int64_t shard, int64_t window_samples, std::span<int64_t> tokens) {
    const auto& entry = shards_[static_cast<size_t>(shard)].entry;
    if (entry && entry->samples <= window_samples) {  // the shard is one window
      std::ranges::fill(tokens, entry->tokens);
      return {};
    }
    RETURN_IF_ERROR(counted_index(shard).map([](const OpenIndex*) {}));
    const Activities::Scope reading(options_.activities, index_request(shard));
    std::ranges::fill(tokens, 0);
    int64_t at = 0;
    return indexes_.visit_tokens(shard, [&](std::span<const uint32_t> run) -> Status {
      for (const uint32_t count : run) tokens[static_cast<size_t>(at++ / window_samples)] += count;
      return {};
    });
  }

  Status find_field() {
    if (shards_.empty()) return {};
    if (field_.empty()) field_ = shards_.front().ids_field;
    if (!field_.empty()) return {};
    const auto first = std::ranges::find_if(samples_, [](int64_t samples) { return samples > 0; });
    if (first == samples_.end()) return {};
    ASSIGN_OR_RETURN(const OpenIndex* index, open_index(first - samples_.begin()));
    field_ = index->facts().ids_field;
    return {};
  }

  // Errors: corruption (every shard that could have samples is damaged).
  Status check_something_is_left() {
    const bool has_samples = std::ranges::any_of(samples_, [](int64_t samples) { return samples > 0; });
    const auto damaged = damaged_shards();
    if (has_samples || damaged.empty()) return {};
    return fail(ErrorCode::kCorruption, "{}: no sample can be read; {} of {} shards are damaged, the first: {}", name_,
                damaged.size(), shards_.size(), damaged.front().reason);
  }

  // The shards of `windows`, with their indexes. An index that cannot be read is an error of the whole; a shard is not.
  Result<std::map<int64_t, Result<ReaderPtr>>> open_shards(std::span<const order::Window> windows,
                                                           const std::stop_token& stop) {
    std::map<int64_t, Result<ReaderPtr>> readers;
    for (const order::Window& window : windows) readers.try_emplace(window.shard, nullptr);
    std::vector<std::pair<const int64_t, Result<ReaderPtr>>*> wanted;
    for (auto& entry : readers) {
      entry.second = kept_reader(entry.first);
      if (*entry.second == nullptr || !indexes_.is_open(entry.first)) wanted.push_back(&entry);
    }
    RETURN_IF_ERROR(for_each_at_once(std::ssize(wanted), stop, [&](int64_t i) -> Status {
      auto& [shard, reader] = *wanted[static_cast<size_t>(i)];
      ASSIGN_OR_RETURN(const OpenIndex* index, planned_index(shard));
      reader = this->reader(shard, index->facts().shard_size);
      return {};
    }));
    return readers;
  }

  // Ids of two tokenizers are no text of any. Shards that do not say theirs (foreign ones) pass.
  Status check_tokenizers(std::span<const Hash128> tokenizers) {
    const auto url = [&](size_t i) -> const std::string& { return shards_[i].location.url; };
    size_t first = shards_.size();
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (const int64_t limit = shards_[i].id_limit; options_.vocab_size > 0 && limit > options_.vocab_size) {
        return fail(ErrorCode::kInvalidArgument, "{}: its tokenizer has ids up to {}, vocab_size is {}", url(i),
                    limit - 1, options_.vocab_size);
      }
      if (tokenizers[i] == Hash128{}) continue;
      if (options_.tokenizer_hash && tokenizers[i] != *options_.tokenizer_hash) {
        return fail(ErrorCode::kInvalidArgument, "{}: made with the tokenizer {}, the loader was given {}", url(i),
                    to_hex(tokenizers[i]), to_hex(*options_.tokenizer_hash));
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
    if (first < shards_.size()) tokenizer_ = to_hex(tokenizers[first]);
    if (options_.tokenizer_hash && first == shards_.size()) {
      log(LogLevel::kWarning,
          "{}: no shard says which tokenizer made it, so that it cannot be held against the one given", name_);
    }
    return {};
  }

  std::string index_request(int64_t shard) const {
    return fmt::format("read the index of {}", shards_[static_cast<size_t>(shard)].location.url);
  }

  Result<const OpenIndex*> open_index(int64_t shard) {
    if (indexes_.is_open(shard)) return indexes_.open(shard);
    const Activities::Scope reading(options_.activities, index_request(shard));
    return indexes_.open(shard);
  }

  Result<std::vector<formats::ShardRows>> index_rows(std::span<const order::Window> windows,
                                                     const std::stop_token& stop) {
    if (windows.empty()) return std::vector<formats::ShardRows>();
    const Activities::Scope reading(
        options_.activities, fmt::format("{} and others, {} windows", index_request(windows[0].shard), windows.size()));
    return indexes_.rows(windows, stop);
  }

  ReaderPtr kept_reader(int64_t shard) {
    MutexLock lock(mutex_);
    return readers_.find(shard);
  }

  // `expected_size`: -1 when it is not known. A shard that was open before is opened without a request.
  Result<ReaderPtr> reader(int64_t shard, int64_t expected_size) {
    if (ReaderPtr kept = kept_reader(shard)) return kept;
    const Shard& s = shards_[static_cast<size_t>(shard)];
    OpenOptions options;
    {
      MutexLock lock(mutex_);
      options.expected_version = versions_[static_cast<size_t>(shard)];
    }
    if (!options.expected_version.empty() && expected_size >= 0) options.known_size = expected_size;
    const Activities::Scope opening(options_.activities, fmt::format("open {}", s.location.url));
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

  Result<const OpenIndex*> planned_index(int64_t shard) {
    return options_.needs_ids ? counted_index(shard) : checked_index(shard);
  }

  // Errors: unsupported when its tokens were not counted; those of checked_index.
  Result<const OpenIndex*> counted_index(int64_t shard) {
    ASSIGN_OR_RETURN(const OpenIndex* index, checked_index(shard));
    if (index->tokens_known() || index->samples() == 0) return index;
    return fail(ErrorCode::kUnsupported, "{}: its samples hold no token ids (a field such as token_ids.npy or .json)",
                shards_[static_cast<size_t>(shard)].location.url);
  }

  // Errors: corruption when a manifest counted other samples.
  Result<const OpenIndex*> checked_index(int64_t shard) {
    ASSIGN_OR_RETURN(const OpenIndex* index, open_index(shard));
    const Shard& s = shards_[static_cast<size_t>(shard)];
    if (s.entry && (index->samples() != s.entry->samples || index->total_tokens() != s.entry->tokens)) {
      return fail(ErrorCode::kCorruption, "{}: {} samples of {} tokens, and the manifest counts {} of {}",
                  index_location(s).url, index->samples(), index->total_tokens(), s.entry->samples, s.entry->tokens);
    }
    return index;
  }

  // A foreign shard: its index is kept in memory for as long as the source lives, since building it reads every byte.
  Result<formats::ShardIndex> build_index(int64_t shard) {
    ASSIGN_OR_RETURN(const ReaderPtr reader, this->reader(shard, -1));
    if (!reader->name().ends_with(".tar")) {
      return fail(ErrorCode::kNotFound,
                  "{}: there is no index beside it, and only that tells its samples apart; `millrace shards "
                  "index` builds it of token files, and where a Megatron .idx lies beside the .bin",
                  reader->name());
    }
    formats::SoundPart part;
    const auto build = [&]() -> Result<formats::ShardIndex> {
      tell_of_building(*reader);
      const StoppableReader stoppable(reader, stop_);
      if (!options_.keeps_sound_parts) {
        formats::TarSkipped skipped;
        ASSIGN_OR_RETURN(formats::ShardIndex index, options_.needs_ids
                                                        ? formats::index_shard(stoppable, field_, &skipped)
                                                        : formats::index_any_shard(stoppable, &skipped));
        tell_of_unnamed(*reader, skipped);
        return index;
      }
      ASSIGN_OR_RETURN(part, formats::index_sound_part(stoppable, options_.needs_ids, field_));
      tell_of_unnamed(*reader, part.skipped);
      if (part.damage) return tl::unexpected(*part.damage);  // so that nobody takes it for the index of the whole
      return std::move(part.index);
    };
    const Activities::Scope building(options_.activities,
                                     fmt::format("read all of {} to build its index", reader->name()));
    Result<formats::ShardIndex> built = get_index(*reader, build);
    if (built || !part.damage) return built;
    keep_damage(shard, part);
    return std::move(part.index);
  }

  Result<formats::ShardIndex> get_index(const RandomReader& shard, const IndexFolder::Build& build) const {
    if (!index_folder_ || shard.version().empty() || !outlives_process(shard.name())) return build();
    const std::string key = fmt::format("{}\n{}\n{}\n{}", shard.name(), shard.size(), shard.version(),
                                        options_.needs_ids ? "ids " + field_ : "any");
    return index_folder_->get(key, shard.size(), stop_, build);
  }

  // Logs it where it is new.
  void keep_damage(int64_t shard, const formats::SoundPart& part) {
    constexpr size_t kLogged = 10;
    const int64_t left = part.index.samples();
    const std::string reason = part.damage->to_string();
    size_t count = 0;
    {
      MutexLock lock(mutex_);
      order::DamagedShard damaged{.shard = std::string(shard_name(shard)), .samples = left, .reason = reason};
      if (!damaged_.emplace(shard, std::move(damaged)).second) return;
      count = damaged_.size();
    }
    if (count <= kLogged) {
      log(LogLevel::kWarning, "quarantined, {} of this shard: {}",
          left == 0 ? std::string("nothing is read") : fmt::format("only the first {} samples are read", left), reason);
    }
    if (count == kLogged) log(LogLevel::kWarning, "further quarantined shards are in the loader's state only");
  }

  // One line for the set, whatever it has of them.
  void tell_of_unnamed(const RandomReader& shard, const formats::TarSkipped& skipped) {
    if (skipped.unnamed == 0 || is_unnamed_told_.exchange(true)) return;
    log(LogLevel::kWarning,
        "{}: {} files have no dot in their names, so they belong to no sample and are passed over; the first is {} "
        "(`millrace shards check` counts those of all shards)",
        shard.name(), skipped.unnamed, skipped.first_unnamed);
  }
  void tell_of_building(const RandomReader& shard) {
    if (is_building_told_.exchange(true)) return;
    log(LogLevel::kWarning, "{}: no index beside it; reading its {} to build one{} (`millrace shards index` keeps it)",
        shard.name(), format_bytes(shard.size()),
        shards_.size() == 1 ? "" : fmt::format(", and so for others of the {} shards", shards_.size()));
  }

  const std::vector<Shard> shards_;
  const ShardSourceOptions options_;
  const std::string name_;
  const std::stop_token stop_;
  std::string field_;
  std::string identity_;
  std::string tokenizer_;
  std::vector<int64_t> samples_;
  Metrics& metrics_;
  const std::optional<IndexFolder> index_folder_ = IndexFolder::of_user();
  std::atomic<bool> is_building_told_{false};
  std::atomic<bool> is_unnamed_told_{false};
  Executor openers_;
  IndexCache indexes_;
  Mutex mutex_;
  RecentMap<ReaderPtr> readers_ GUARDED_BY(mutex_);
  std::vector<std::string> versions_ GUARDED_BY(mutex_);               // of each shard's first open
  std::map<int64_t, order::DamagedShard> damaged_ GUARDED_BY(mutex_);  // by number
};

}  // namespace

Result<std::unique_ptr<order::SampleSource>> open_shard_source(std::vector<Shard> shards,
                                                               const ShardSourceOptions& options, Metrics& metrics,
                                                               const std::stop_token& stop) {
  auto source = std::make_unique<ShardSource>(std::move(shards), options, metrics, stop);
  RETURN_IF_ERROR(source->open());
  return source;
}

}  // namespace millrace::loader
