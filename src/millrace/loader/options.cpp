// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "millrace/base/thread/numa.h"
#include "millrace/base/thread/sync.h"

namespace millrace::loader {

namespace {

constexpr int kMostThreads = 8;                        // of one rank: eight decode more than a training loop takes
constexpr std::chrono::hours kLongestStall{24 * 365};  // so that no point in time overflows
constexpr int64_t kMaxEpochs = 1'000'000;              // so that no product of passes and epochs overflows

tl::unexpected<Error> refuse(std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, "loader: {}", what);
}

Status check_batch_sizes(const LoaderOptions& options) {
  if ((options.batch_size > 0) == (options.global_batch_size > 0)) {
    return refuse(
        "give batch_size (samples a rank) or global_batch_size (over all ranks), above 0, and only one of them");
  }
  if (options.global_batch_size % options.world_size == 0 || options.uneven_ranks) return {};
  const int64_t below = options.global_batch_size / options.world_size;
  return refuse(
      fmt::format("global_batch_size {} is no multiple of the {} ranks, so that some would train on more rows than "
                  "others; choose {} or {}, or ask for it with uneven_ranks",
                  options.global_batch_size, options.world_size, std::max<int64_t>(below, 1) * options.world_size,
                  (below + 1) * options.world_size));
}

Status check_documents(const LoaderOptions& options) {
  if (!options.documents) return {};
  if (options.collate == Collate::kPad) {
    return refuse("only packed rows hold several documents; a padded row has its attention_mask");
  }
  const int64_t rows = options.all_ranks_batch() / options.world_size + 1;
  if (options.seq_len <= std::numeric_limits<int32_t>::max() / rows) return {};
  return refuse(fmt::format("cu_seqlens counts tokens in 32 bits, too few for {} rows of {}", rows, options.seq_len));
}

Status check_mixture(const LoaderOptions& options) {
  if (!options.is_mixture()) return {};
  if (options.epochs > 0) return refuse("a mixture ends by its stop rule, not by epochs");
  if (!options.drop_last && options.mix_end == order::MixEnd::kEndless) {
    return refuse(
        "an endless mixture has no last batch; give stop='first_empty' or 'all_empty', or leave drop_last and "
        "fill_last "
        "out");
  }
  auto started = order::Mixture::start(options.weights, options.mix_end);
  if (!started) return tl::unexpected(std::move(started).error());
  return {};
}

Status check_full(const LoaderOptions& options) {
  if (!options.order.full) return {};
  if (!options.order.shuffle) return refuse("a full permutation is a shuffle");
  if (options.has_fields() || options.collate == Collate::kPad) return {};
  return refuse(
      "shuffle='full' is for padded rows and for samples of any kind: packed rows are laid out of neighbouring "
      "samples, "
      "so that a place is found without reading what comes before it; use shuffle=True");
}

Status check_fill(const LoaderOptions& options) {
  if (options.fill_last == FillLast::kNothing) return {};
  if (options.all_ranks_batch() % options.world_size == 0) return {};
  return refuse(
      "fill_last gives all ranks equally many rows, which a global_batch_size that is no multiple of them cannot");
}

}  // namespace

Result<FillLast> parse_fill_last(std::string_view name) {
  for (const FillLast fill : {FillLast::kNothing, FillLast::kPadding, FillLast::kRepeats}) {
    if (name == fill_last_name(fill)) return fill;
  }
  return fail(ErrorCode::kInvalidArgument, "fill_last is 'pad', 'repeat' or None, not '{}'", name);
}

Result<OnBad> parse_on_bad(std::string_view name) {
  if (name == "raise") return OnBad::kRaise;
  if (name == "quarantine") return OnBad::kQuarantine;
  return fail(ErrorCode::kInvalidArgument, "on_bad is 'raise' or 'quarantine', not '{}'", name);
}

std::string_view on_bad_name(OnBad on_bad) {
  return on_bad == OnBad::kRaise ? "raise" : "quarantine";
}

Result<OnStall> parse_on_stall(std::string_view name) {
  if (name == "warn") return OnStall::kWarn;
  if (name == "raise") return OnStall::kRaise;
  return fail(ErrorCode::kInvalidArgument, "on_stall is 'warn' or 'raise', not '{}'", name);
}

std::string_view on_stall_name(OnStall on_stall) {
  return on_stall == OnStall::kWarn ? "warn" : "raise";
}

std::string_view fill_last_name(FillLast fill) {
  if (fill == FillLast::kNothing) return "";
  return fill == FillLast::kPadding ? "pad" : "repeat";
}

Result<LoaderOptions> resolve(LoaderOptions options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return refuse(fmt::format("rank {} of {} does not exist", options.rank, options.world_size));
  }
  RETURN_IF_ERROR(check_batch_sizes(options));
  RETURN_IF_ERROR(check_fill(options));
  if (options.fill_last != FillLast::kNothing) options.drop_last = false;
  RETURN_IF_ERROR(check_mixture(options));
  RETURN_IF_ERROR(check_documents(options));
  RETURN_IF_ERROR(check_full(options));
  if (options.has_fields()) {
    RETURN_IF_ERROR(check_fields(*options.fields));
    options.seq_len = 1;
    options.collate = Collate::kPad;
  }
  if (options.seq_len < 1) return refuse("seq_len must be at least 1");
  if (options.epochs > kMaxEpochs) return refuse(fmt::format("a pass has at most {} epochs", kMaxEpochs));
  if (options.max_bad < 0 || options.epochs < 0 || options.threads < 0 || options.memory_bytes < 0 ||
      options.vocab_size < 0 || options.cache_bytes < 0) {
    return refuse("a count is negative");
  }
  if (options.stall.count() < 0 || options.stall > kLongestStall) return refuse("stall_seconds is 0 (off) to a year");
  if (options.cache.empty() && options.cache_bytes > 0) return refuse("cache_bytes is of a cache; name its folder");
  if (options.step_stride < 1 || options.first_step < 0) return refuse("step_stride is at least 1, first_step 0");
  options.cpus = options.numa ? near_cpus(local_rank(), allowed_cpus()) : std::vector<int>();
  if (options.threads == 0) {
    options.threads = std::clamp(available_cpus() / local_ranks(), 1, kMostThreads);
    // More threads than processors to stay on would take turns.
    if (!options.cpus.empty()) options.threads = std::min(options.threads, static_cast<int>(options.cpus.size()));
  }
  return options;
}

}  // namespace millrace::loader
