// SPDX-License-Identifier: Apache-2.0
#include "millrace/bench/data_bench.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/loader.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::bench {

namespace {

double since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// A batch, waited for in short turns, so that a stop is noticed.
Status take_batch(loader::Loader& loader, const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kTurn{100};
  while (!stop.stop_requested()) {
    const auto batch = loader.next(Clock::now() + kTurn);
    if (batch && !batch->has_value()) return fail(ErrorCode::kOutOfRange, "the data hold no batch of this size");
    if (batch) return {};
    if (batch.error().code() != ErrorCode::kTimeout) return tl::unexpected(batch.error());
  }
  return fail(ErrorCode::kCancelled, "stopped");
}

// The share of a training's time that it would stand for the next batch, if a batch takes it `batch_s`. Its clock is
// computed, so that short batches need no sleep of their own length.
Result<double> wait_share(loader::Loader& loader, double batch_s, const LoaderBenchConfig& config,
                          const std::stop_token& stop) {
  constexpr int kFirst = 5;  // what was read ahead, or was not, before
  constexpr std::chrono::milliseconds kShort{1};
  const auto work = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(batch_s));
  Clock::duration waited{0};
  Clock::time_point begun = Clock::now(), is_free = begun;  // is_free: when it is done with the batch before
  for (int64_t batch = 0; batch <= kFirst || since(begun) < config.seconds.count(); ++batch) {
    if (batch == kFirst) {
      begun = is_free = Clock::now();
      waited = Clock::duration{0};
    }
    if (is_free > Clock::now() + kShort && !sleep_until(is_free, stop)) return fail(ErrorCode::kCancelled, "stopped");
    RETURN_IF_ERROR(take_batch(loader, stop));
    const Clock::time_point got = Clock::now();
    if (got > is_free) waited += got - is_free;
    is_free = std::max(is_free, got) + work;
  }
  return std::chrono::duration<double>(waited).count() / std::chrono::duration<double>(is_free - begun).count();
}

}  // namespace

Result<LoaderBenchResult> bench_loader(const LoaderBenchConfig& config, const std::stop_token& stop) {
  constexpr double kBusy = 0.7;  // of the threads: above it they are the limit
  LoaderBenchResult result;
  Clock::time_point begun = Clock::now();
  ASSIGN_OR_RETURN(const std::unique_ptr<loader::Loader> loader, loader::Loader::create(config.options));
  RETURN_IF_ERROR(take_batch(*loader, stop));
  result.first_batch_s = since(begun);
  const Metrics& metrics = loader->metrics();
  const auto seconds_of = [&](Metric metric) { return metrics.seconds(metric); };
  const double read = seconds_of(Metric::kReadSeconds), decode = seconds_of(Metric::kDecodeSeconds),
               collate = seconds_of(Metric::kCollateSeconds);
  const int64_t tokens = metrics.count(Metric::kTokens), bytes = metrics.count(Metric::kReadBytes);
  begun = Clock::now();
  while (since(begun) < config.seconds.count()) {
    RETURN_IF_ERROR(take_batch(*loader, stop));
    ++result.batches;
  }
  result.seconds = since(begun);
  result.tokens = metrics.count(Metric::kTokens) - tokens;
  result.read_bytes = metrics.count(Metric::kReadBytes) - bytes;
  result.cache_hit_bytes = metrics.count(Metric::kCacheHitBytes);
  result.cache_miss_bytes = metrics.count(Metric::kCacheMissBytes);
  result.read_s = seconds_of(Metric::kReadSeconds) - read;
  result.decode_s = seconds_of(Metric::kDecodeSeconds) - decode;
  result.collate_s = seconds_of(Metric::kCollateSeconds) - collate;
  result.threads = loader->options().threads;
  const double busy = (result.decode_s + result.collate_s) / (std::max(1, result.threads) * result.seconds);
  result.limit = busy < kBusy ? "read" : result.decode_s >= result.collate_s ? "decode" : "collate";
  if (config.train_tokens_per_s > 0 && result.batches > 0) {
    const double batch_s =
        static_cast<double>(result.tokens) / static_cast<double>(result.batches) / config.train_tokens_per_s;
    ASSIGN_OR_RETURN(result.wait_share, wait_share(*loader, batch_s, config, stop));
  }
  loader->close();
  return result;
}

Result<TokenizerBenchResult> bench_tokenizer(const TokenizerBenchConfig& config, const std::stop_token& stop) {
  constexpr size_t kPiece = 64 << 10;
  if (config.text.empty()) return fail(ErrorCode::kInvalidArgument, "there is no text to encode");
  ASSIGN_OR_RETURN(const auto tokenizer, tokenizer::Tokenizer::from_json(config.json, config.name));
  std::vector<std::string_view> pieces;
  for (std::string_view rest = config.text; !rest.empty();) {
    const size_t end = rest.size() <= kPiece ? rest.size() : std::min(rest.find('\n', kPiece), rest.size() - 1) + 1;
    pieces.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
    if (!is_utf8(pieces.back())) return fail(ErrorCode::kInvalidArgument, "the text is no UTF-8");
  }
  std::atomic<size_t> next{0};
  std::atomic<int64_t> bytes{0}, tokens{0};
  const Clock::time_point begun = Clock::now();
  const Clock::time_point end = begun + std::chrono::duration_cast<Clock::duration>(config.seconds);
  const Status done = parallel_try(config.threads, config.threads, "mr-bench", [&](int64_t) -> Status {
    tokenizer::Encoder encoder(tokenizer);
    std::vector<uint32_t> ids;
    do {
      const std::string_view piece = pieces[next.fetch_add(1) % pieces.size()];
      ids.clear();
      RETURN_IF_ERROR(encoder.encode(piece, {}, ids));
      bytes += static_cast<int64_t>(piece.size());
      tokens += static_cast<int64_t>(ids.size());
    } while (Clock::now() < end && !stop.stop_requested());
    return {};
  });
  RETURN_IF_ERROR(done);
  if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  return TokenizerBenchResult{.threads = config.threads, .bytes = bytes, .tokens = tokens, .seconds = since(begun)};
}

}  // namespace millrace::bench
