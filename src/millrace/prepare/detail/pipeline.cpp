// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/log.h"

namespace millrace::prepare {

namespace {

// Text under way at once that keeps all threads busy. Nine times 6 MiB stay within the 64 MiB a thread of the promise;
// the least is a choice.
constexpr int64_t kMinBytesInFlight = 16 << 20;
constexpr int64_t kThreadBytesInFlight = 6 << 20;
// A byte of text takes up to nine of memory: itself, its ids twice, and the members made of both.
constexpr int64_t kMemoryPerTextByte = 9;
// A batch that large documents made larger than this is freed, instead of being used again.
constexpr size_t kMaxSpareBytes = 4 << 20;

int64_t max_slices(const PipelineOptions& options) {
  return 2 * options.threads + 2;
}

}  // namespace

Result<std::unique_ptr<BufferPool>> reserve_memory(PipelineOptions& options, MemoryBudget& budget) {
  const int64_t least = 2 * options.chunk_bytes;
  const int64_t liked =
      std::max({kMinBytesInFlight, options.threads * kThreadBytesInFlight, max_slices(options) * options.chunk_bytes});
  const int64_t room = (budget.cap_bytes() - budget.reserved_bytes()) / kMemoryPerTextByte;
  options.bytes_in_flight = std::clamp(room, least, liked);
  return BufferPool::reserve(budget, "prepare", kMemoryPerTextByte * options.bytes_in_flight);
}

Pipeline::Pipeline(std::span<const Input> inputs, const Position& begin, const SampleFormat& format,
                   std::shared_ptr<const tokenizer::Tokenizer> tokenizer, const PipelineOptions& options,
                   std::stop_token stop, Metrics& metrics)
    : inputs_(inputs),
      begin_(begin),
      format_(format),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      stop_(std::move(stop)),
      metrics_(metrics) {
  on_stop_.emplace(stop_, [this] { stop_all(); });
  threads_.emplace_back("prepare-read", [this] { read_all_inputs(); });
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back("prepare-encode", [this] { encode_slices(); });
}

Pipeline::~Pipeline() {
  on_stop_.reset();
  stop_all();
  threads_.clear();
}

void Pipeline::stop_all() {
  MutexLock lock(mutex_);
  stopping_ = true;
  room_.notify_all();
  work_.notify_all();
  done_.notify_all();
}

Result<std::optional<Batch>> Pipeline::next() {
  MutexLock lock(mutex_);
  for (;;) {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (const auto found = encoded_.find(slices_taken_); found != encoded_.end()) {
      Result<Batch> batch = std::move(found->second);
      encoded_.erase(found);
      if (!batch) return tl::unexpected(std::move(batch).error());
      ++slices_taken_;
      bytes_in_flight_ -= batch->slice.bytes();
      room_.notify_one();
      return std::optional<Batch>(std::move(*batch));
    }
    if (read_ended_ && slices_taken_ == slices_read_) {
      if (!*read_ended_) return tl::unexpected(read_ended_->error());
      return std::optional<Batch>();
    }
    done_.wait(mutex_);
  }
}

void Pipeline::recycle(Batch&& batch) {
  if (batch.bytes.capacity() > kMaxSpareBytes) return;
  batch.slice.chunk.reset();
  MutexLock lock(mutex_);
  spare_.push_back(std::move(batch));
}

void Pipeline::read_all_inputs() {
  Status status;
  int64_t document = begin_.document;
  for (auto i = static_cast<size_t>(begin_.input); status && i < inputs_.size(); ++i) {
    const bool resumed = static_cast<int64_t>(i) == begin_.input;
    status = read_input(i, resumed ? begin_ : Position{}, document);
  }
  MutexLock lock(mutex_);
  read_ended_ = std::move(status);
  work_.notify_all();
  done_.notify_all();
}

Status Pipeline::read_input(size_t i, const Position& begin, int64_t& document) {
  ASSIGN_OR_RETURN(const auto input, open_input(inputs_[i], stop_));
  formats::DocumentOptions documents = document_options(format_.options);
  documents.chunk_bytes = options_.chunk_bytes;
  ASSIGN_OR_RETURN(const auto source, formats::open_documents(*input, documents, begin.offset, begin.line));
  const int64_t documents_before = document;
  for (;;) {
    ASSIGN_OR_RETURN(auto read, read_chunk(*source));
    if (!read) break;
    const auto chunk = std::make_shared<const formats::DocumentChunk>(std::move(*read));
    const size_t count = chunk->documents.size();
    size_t first = 0;
    do {  // a chunk without documents may still hold one that was left out
      const size_t last = std::min(count, first + options_.slice_documents);
      if (!enqueue({chunk, std::string(input->name()), static_cast<int64_t>(i), first, last, document})) {
        return fail(ErrorCode::kCancelled, "stopped");
      }
      document += static_cast<int64_t>(last - first);
      first = last;
    } while (first < count);
  }
  if (document == documents_before && begin.offset == 0) {
    log(LogLevel::kWarning, "{}: there is no document in it", input->name());
  }
  return {};
}

Result<std::optional<formats::DocumentChunk>> Pipeline::read_chunk(formats::DocumentSource& source) {
  MetricTimer timer(metrics_, Metric::kReadSeconds);
  auto chunk = source.next();
  if (chunk && *chunk) metrics_.add(Metric::kReadBytes, static_cast<int64_t>((*chunk)->text.size()));
  return chunk;
}

bool Pipeline::enqueue(Slice slice) {
  const int64_t bytes = slice.bytes();
  MutexLock lock(mutex_);
  const auto full = [&]() REQUIRES_LOCK(mutex_) {
    const int64_t in_flight = slices_read_ - slices_taken_;
    return in_flight >= max_slices(options_) || (in_flight > 0 && bytes_in_flight_ + bytes > options_.bytes_in_flight);
  };
  while (!stopping_ && full()) room_.wait(mutex_);
  if (stopping_) return false;
  Batch batch;
  if (!spare_.empty()) {
    batch = std::move(spare_.back());
    spare_.pop_back();
  }
  batch.slice = std::move(slice);
  bytes_in_flight_ += bytes;
  waiting_.push_back({slices_read_++, std::move(batch)});
  work_.notify_one();
  return true;
}

void Pipeline::encode_slices() {
  SampleEncoder encoder(format_, tokenizer_, options_.hashes_only);
  for (;;) {
    std::optional<Numbered> taken;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty() && !read_ended_) work_.wait(mutex_);
      if (stopping_ || waiting_.empty()) return;
      taken = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Status status;
    {
      MetricTimer timer(metrics_, Metric::kEncodeSeconds);
      status = encoder.encode(taken->batch);
    }
    MutexLock lock(mutex_);
    encoded_.emplace(taken->number, status ? Result<Batch>(std::move(taken->batch))
                                           : Result<Batch>(tl::unexpected(std::move(status).error())));
    done_.notify_one();
  }
}

}  // namespace millrace::prepare
