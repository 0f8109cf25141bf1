// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/base/thread/executor.h"
#include "millrace/loader/packed_batch.h"
#include "millrace/storage/url.h"

namespace millrace::loader {

namespace {

constexpr int64_t kMaxDepth = 64;       // batches read ahead: more hide no longer delay that a larger batch would not
constexpr int64_t kKeptByUser = 2;      // batches that the user holds at once: the last one and the one before
constexpr int64_t kFewestBatches = 4;   // in the pool, however large they are
constexpr int64_t kRunBytes = 8 << 20;  // of one read: what S3 is fast with, and a disk's queue holds several of
constexpr int64_t kSmallestRun = 64 << 10;  // A choice: below, most of the time is the request, not its bytes
constexpr int64_t kRunsUnderWay = 8;        // that the memory for runs holds at least

int64_t default_memory(const MemoryBudget& budget) {
  return std::min<int64_t>(1 << 30, budget.cap_bytes() / 4);
}

constexpr int kMostOpenedAtOnce = 16;  // datasets of a mixture, each of which waits for a few requests

Result<std::vector<SourcePtr>> open_all(const std::vector<OpenSource>& open_sources, const SourceContext& context) {
  std::vector<SourcePtr> sources(open_sources.size());
  RETURN_IF_ERROR(parallel_try(std::ssize(sources), kMostOpenedAtOnce, "mr-open", [&](int64_t i) -> Status {
    const StopScope scope(context.stop);
    const auto at = static_cast<size_t>(i);
    ASSIGN_OR_RETURN(sources[at], open_sources[at](context));
    return {};
  }));
  return sources;
}

// Ids of two tokenizers do not mean the same. Sources that do not name theirs pass.
Status check_one_tokenizer(std::span<const SourcePtr> sources) {
  std::string_view first, first_source;
  for (const SourcePtr& source : sources) {
    const std::string_view tokenizer = source->token_ids().value_or(order::TokenIds()).tokenizer;
    if (tokenizer.empty()) continue;
    if (first.empty()) std::tie(first, first_source) = std::pair(tokenizer, source->name());
    if (tokenizer != first) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} was made with the tokenizer {} and {} with {}: their ids do not mean the same. Prepare them with "
                  "one tokenizer",
                  first_source, first, source->name(), tokenizer);
    }
  }
  return {};
}

// Errors: corruption (more than max_bad).
Result<std::vector<order::DamagedShard>> damaged_shards(const LoaderOptions& options,
                                                        std::span<const SourcePtr> sources) {
  std::vector<order::DamagedShard> damaged;
  for (size_t number = 0; number < sources.size(); ++number) {
    for (order::DamagedShard& shard : sources[number]->damaged_shards()) {
      shard.source = static_cast<int64_t>(number);
      damaged.push_back(std::move(shard));
    }
  }
  if (std::ssize(damaged) <= options.max_bad) return damaged;
  return fail(ErrorCode::kCorruption, "{} damaged shards, max_bad is {}; the last one: {}", damaged.size(),
              options.max_bad, damaged.back().reason);
}

int64_t memory_bytes_of(const LoaderOptions& options, const MemoryBudget& budget) {
  return options.memory_bytes > 0 ? options.memory_bytes : default_memory(budget);
}

int64_t share_for_indexes(int64_t all, size_t sources) {
  constexpr int64_t kMost = 64 << 20;  // the entries of two million samples. A choice, as is the sixteenth.
  return std::min(kMost, all / 16) / static_cast<int64_t>(sources);
}

// How the cap is shared out.
struct MemoryShares {
  int64_t most_batches = 0, pooled_batches = 0, batch_bytes = 0;
  int64_t batches = 0, runs = 0, blocks = 0;  // bytes
};

// Of `all` bytes, `held` are taken already. Errors: resource_exhausted.
Result<MemoryShares> share_out(const LoaderOptions& options, int64_t all, int64_t held) {
  MemoryShares shares;
  const int64_t left = all - held;
  if (options.has_fields()) {  // how large a batch is shows when it is made (BatchMaker::most_batches)
    shares.most_batches = shares.pooled_batches = kMaxDepth;
    shares.batches = left / 4;
    shares.runs = left / 4;
  } else {
    const int64_t rank_rows = (options.all_ranks_batch() + options.world_size - 1) / options.world_size;
    const int64_t batch_bytes = (packed_bytes(options, rank_rows) + 4095) / 4096 * 4096;
    shares.batch_bytes = batch_bytes;
    shares.most_batches = std::min(kMaxDepth, std::max<int64_t>(left / 4 / batch_bytes, kFewestBatches));
    shares.pooled_batches = shares.most_batches + kKeptByUser;
    shares.batches = shares.pooled_batches * batch_bytes;
    if (shares.batches >= left) {
      return no_memory(
          fmt::format("the loader's memory of {} does not hold its batches ({} each){}; raise memory_bytes to {} or "
                      "more",
                      format_bytes(all), format_bytes(batch_bytes),
                      held > 0 ? fmt::format(" beside {} of shard lists and indexes", format_bytes(held)) : "",
                      format_bytes(shares.batches * 2 + held)));
    }
    // A sample takes at most twice as much in its shard, with its text, as its ids take in a block, and for a shorter
    // time.
    shares.runs = (left - shares.batches) / 4;
  }
  shares.blocks = left - shares.batches - shares.runs;
  return shares;
}

// What the sources hold. Errors: resource_exhausted when that leaves too little for anything else.
Result<int64_t> held_bytes(std::span<const SourcePtr> sources, int64_t all) {
  int64_t held = 0, most = 0;
  const order::SampleSource* largest = nullptr;
  for (const SourcePtr& source : sources) {
    const int64_t bytes = source->held_bytes();
    held += bytes;
    if (bytes > most) largest = source.get();
    most = std::max(most, bytes);
  }
  if (held <= all / 2) return held;
  // The share of indexes grows with the cap, so twice as much might not do.
  return no_memory(fmt::format(
      "{}: the list of its {} shards and their indexes take {} of the loader's memory of {}{}; "
      "raise memory_bytes to {} or more",
      largest->name(), largest->shard_samples().size(), format_bytes(most), format_bytes(all),
      sources.size() == 1 ? "" : fmt::format(", all datasets {}", format_bytes(held)), format_bytes(held / 2 * 5)));
}

Result<LoaderMemory> reserve_memory(MemoryBudget& budget, const MemoryShares& shares, int64_t held,
                                    std::span<const SourcePtr> sources) {
  LoaderMemory memory{
      .most_batches = shares.most_batches, .pooled_batches = shares.pooled_batches, .batch_bytes = shares.batch_bytes};
  const auto reads_to_plan = std::ranges::count_if(sources, [](const SourcePtr& s) { return s->reads_to_plan(); });
  const int64_t rows = shares.runs / std::ssize(sources) * reads_to_plan;
  ASSIGN_OR_RETURN(memory.held, BufferPool::reserve(budget, "loader shards and indexes", held));
  ASSIGN_OR_RETURN(memory.batches, BufferPool::reserve(budget, "loader batches", shares.batches));
  ASSIGN_OR_RETURN(memory.rows, BufferPool::reserve(budget, "loader rows", rows));
  ASSIGN_OR_RETURN(memory.runs, BufferPool::reserve(budget, "loader reads", shares.runs - rows));
  ASSIGN_OR_RETURN(memory.blocks, BufferPool::reserve(budget, "loader read-ahead", shares.blocks));
  return memory;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_dataset(const LoaderOptions& options, const std::vector<OpenSource>& open_sources,
                                              Metrics& metrics, Activities& activities, const std::stop_token& stop) {
  auto dataset = std::make_unique<Dataset>();
  const auto budget = MemoryBudget::process();
  const int64_t all = memory_bytes_of(options, *budget);
  ASSIGN_OR_RETURN(MemoryShares shares, share_out(options, all, 0));  // before anything is read
  const SourceContext context{.metrics = metrics,
                              .stop = stop,
                              .run_bytes = std::clamp(shares.runs / kRunsUnderWay, kSmallestRun, kRunBytes),
                              .activities = &activities,
                              .index_bytes = share_for_indexes(all, open_sources.size())};
  ASSIGN_OR_RETURN(dataset->sources, open_all(open_sources, context));
  for (const SourcePtr& source : dataset->sources) dataset->decoders.push_back(make_decoder(options, *source));
  RETURN_IF_ERROR(check_one_tokenizer(dataset->sources));
  ASSIGN_OR_RETURN(dataset->damaged_shards, damaged_shards(options, dataset->sources));
  ASSIGN_OR_RETURN(const int64_t held, held_bytes(dataset->sources, all));
  ASSIGN_OR_RETURN(shares, share_out(options, all, held));
  ASSIGN_OR_RETURN(dataset->memory, reserve_memory(*budget, shares, held, dataset->sources));
  ASSIGN_OR_RETURN(auto opened, open_order(options, dataset->sources));
  dataset->order = std::move(opened.order);
  dataset->beginning = std::move(opened.beginning);
  return dataset;
}

}  // namespace millrace::loader
