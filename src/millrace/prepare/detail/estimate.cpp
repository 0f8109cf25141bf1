// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/estimate.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text/units.h"
#include "millrace/formats/megatron.h"
#include "millrace/formats/shard_index.h"
#include "millrace/prepare/detail/layout.h"

namespace millrace::prepare {

namespace {

// Choices: sampling takes less than a second on a disk.
constexpr size_t kSampledInputs = 16;
constexpr int64_t kSampledTextBytes = 4 << 20;  // of all inputs together
constexpr int64_t kSampleChunkBytes = 64 << 10;
constexpr double kMuchLarger = 4;        // shards than text. A choice: more than documents of 4 kB give
constexpr int64_t kAdvisedBlock = 1024;  // A choice: a block's headers are below 1 % of it, even with short lines

// The samples of the sampled documents, and the part of their files that these took.
class Sampler {
 public:
  Sampler(const SampleFormat& format, std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
      : format_(format), encoder_(format, std::move(tokenizer), /*hashes_only=*/false), layout_(make_layout(format)) {}

  // About `text_bytes` from the front of `input`, but at least a chunk.
  Status add(const Input& input, formats::DocumentOptions documents, int64_t text_bytes, const std::stop_token& stop) {
    documents.chunk_bytes = std::min(text_bytes, kSampleChunkBytes);
    ASSIGN_OR_RETURN(const auto reader, open_input(input, stop));
    ASSIGN_OR_RETURN(const auto source, formats::open_documents(*reader, documents));
    int64_t file_bytes = 0;
    for (int64_t read = 0; read < text_bytes;) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      ASSIGN_OR_RETURN(auto chunk, source->next());
      if (!chunk) {
        file_bytes = input.size;
        break;
      }
      read += std::ssize(chunk->text);
      file_bytes = chunk->file_bytes;
      RETURN_IF_ERROR(encode(std::make_shared<const formats::DocumentChunk>(std::move(*chunk)), input));
    }
    file_bytes_ += file_bytes;
    return {};
  }

  // Scaled to inputs of `input_bytes` in all.
  Result<Estimate> scaled(int64_t input_bytes) {
    ASSIGN_OR_RETURN(const std::string end, layout_->end(seen_.tokens));
    int64_t written = at_ + std::ssize(end) + formats::shard_index_bytes(seen_.documents);
    if (format_.options.format == OutputFormat::kMegatron) written += formats::megatron_index_bytes(seen_.documents);
    const double factor = file_bytes_ > 0 ? static_cast<double>(input_bytes) / static_cast<double>(file_bytes_) : 0;
    const auto times = [&](int64_t value) { return static_cast<int64_t>(factor * static_cast<double>(value) + 0.5); };
    return Estimate{.sampled_bytes = file_bytes_,
                    .documents = times(seen_.documents),
                    .tokens = times(seen_.tokens),
                    .output_bytes = times(written),
                    .advice = size_advice(format_, seen_)};
  }

 private:
  Status encode(const std::shared_ptr<const formats::DocumentChunk>& chunk, const Input& input) {
    Batch batch;
    batch.slice = {chunk, input.location.url, 0, 0, chunk->documents.size(), seen_.documents};
    RETURN_IF_ERROR(encoder_.encode(batch));
    ASSIGN_OR_RETURN(const Placement placement, layout_->add(batch.bytes, batch.samples, static_cast<uint64_t>(at_)));
    at_ += std::ssize(placement.bytes);
    for (const Sample& sample : batch.samples) seen_.tokens += sample.tokens;
    seen_.documents += std::ssize(batch.samples);
    seen_.text_bytes += batch.slice.bytes();
    seen_.sample_bytes += std::ssize(batch.bytes);
    return {};
  }

  const SampleFormat format_;
  SampleEncoder encoder_;
  const std::unique_ptr<ShardLayout> layout_;
  SizeSeen seen_;
  int64_t at_ = 0;  // bytes of the shard
  int64_t file_bytes_ = 0;
};

}  // namespace

Result<Estimate> estimate_task(std::span<const Input> inputs, const SampleFormat& format,
                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer, const std::stop_token& stop) {
  const formats::DocumentOptions documents = document_options(format.options);
  Sampler sampler(format, std::move(tokenizer));
  const size_t count = std::min(kSampledInputs, inputs.size());
  for (size_t i = 0; i < count; ++i) {
    const int64_t share = kSampledTextBytes / static_cast<int64_t>(count);
    RETURN_IF_ERROR(sampler.add(inputs[i * inputs.size() / count], documents, share, stop));
  }
  return sampler.scaled(total_bytes(inputs));
}

std::string size_advice(const SampleFormat& format, const SizeSeen& seen) {
  if (format.raw_ids() || format.chat || seen.documents == 0 || seen.text_bytes == 0) return {};
  const auto text = static_cast<double>(seen.text_bytes);
  const double times = static_cast<double>(seen.sample_bytes) / text;
  if (times < kMuchLarger) return {};
  const double ids = static_cast<double>(seen.tokens * static_cast<int64_t>(format.id_width)) / text;
  return fmt::format(
      "the shards are {:.0f} times their text, as a document of {} takes {} in tar: each member has a header and is "
      "padded to 512 bytes; --block {} (block_documents) and the formats tokens and megatron take {:.1f} times{}",
      times, format_bytes(seen.text_bytes / seen.documents), format_bytes(seen.sample_bytes / seen.documents),
      kAdvisedBlock, ids, format.has_text() ? ", and --no-text (text=False) about half of what it is" : "");
}

}  // namespace millrace::prepare
