// SPDX-License-Identifier: Apache-2.0

// The writer of `prepare` alone: texts and ids that are in memory become members, hashes, a shard and its index, as
// they do in a task, on one thread. Beside it the same number of bytes that are in memory too, 1 MiB at a time into a
// plain file, through the same storage and as durably. Both take turns.
//
//   millrace_prepare_writer TOKENIZER FOLDER RUNS INPUT...
//
// A paragraph is a document. Prints a JSON object a run.

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/prepare/detail/samples.h"
#include "millrace/prepare/detail/shard.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {
namespace {

constexpr size_t kBatch = 1 << 20;  // about what a slice becomes

struct Document {
  std::string_view text;
  std::span<const uint32_t> ids;
};

struct Documents {
  std::vector<formats::DocumentChunk> chunks;
  std::vector<uint32_t> ids;
  std::vector<Document> documents;
};

struct Cost {
  double seconds = 0, cpu_seconds = 0;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class Work>
Result<Cost> measure(Work work) {
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(work());
  return Cost{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), cpu_seconds() - cpu};
}

Status read_file(const std::string& url, Documents& all) {
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  ASSIGN_OR_RETURN(const auto source, formats::open_documents(*file, {.mode = formats::DocumentMode::kParagraph}));
  for (;;) {
    ASSIGN_OR_RETURN(auto chunk, source->next());
    if (!chunk) return {};
    all.chunks.push_back(std::move(*chunk));
  }
}

Status encode(const std::string& tokenizer_file, Documents& all) {
  ASSIGN_OR_RETURN(const Location at, open_url(tokenizer_file));
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  ASSIGN_OR_RETURN(auto tokenizer, tokenizer::Tokenizer::from_file(*file, tokenizer_file));
  tokenizer::Encoder encoder(std::move(tokenizer));
  std::vector<size_t> ends;
  for (const formats::DocumentChunk& chunk : all.chunks) {
    for (const formats::DocumentSpan span : chunk.documents) {
      all.documents.push_back({std::string_view(chunk.text).substr(span.begin, span.end - span.begin), {}});
      RETURN_IF_ERROR(encoder.encode(all.documents.back().text, {}, all.ids));
      ends.push_back(all.ids.size());
    }
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    all.documents[i].ids = std::span(all.ids).subspan(begin, ends[i] - begin);
  }
  return {};
}

Result<int64_t> write_shard(const Location& folder, const std::vector<Document>& documents) {
  const SampleFormat format{.ids_field = "token_ids.npy"};
  Metrics metrics;
  ASSIGN_OR_RETURN(const auto shard, ShardWriter::open(folder, "00000.tar", format, metrics));
  MemberWriter members(format);
  std::string bytes;
  std::vector<Sample> samples;
  for (size_t i = 0; i < documents.size(); ++i) {
    const size_t begin = bytes.size();
    Sample sample{.document = static_cast<int64_t>(i), .tokens = static_cast<uint32_t>(documents[i].ids.size())};
    RETURN_IF_ERROR(members.append(sample.document, documents[i].text, documents[i].ids, {}, bytes));
    sample.size = bytes.size() - begin;
    sample.hash = xxh3_64(std::string_view(bytes).substr(begin));
    samples.push_back(sample);
    if (bytes.size() < kBatch && i + 1 < documents.size()) continue;
    RETURN_IF_ERROR(shard->append(bytes, samples));
    bytes.clear();
    samples.clear();
  }
  ASSIGN_OR_RETURN(const FinishedShard finished, shard->finish({.run = "benchmark"}, {}, format.ids_field));
  return finished.entry.size;
}

Status write_raw(const Location& folder, std::string_view bytes) {
  ASSIGN_OR_RETURN(const auto writer, folder.storage->open_write(folder.child("raw").key));
  for (size_t at = 0; at < bytes.size(); at += kBatch) {
    RETURN_IF_ERROR(writer->write_at(static_cast<int64_t>(at), as_bytes(bytes.substr(at, kBatch))));
  }
  RETURN_IF_ERROR(writer->commit());
  return {};
}

Status run(const std::vector<std::string>& arguments) {
  Documents all;
  for (size_t i = 3; i < arguments.size(); ++i) RETURN_IF_ERROR(read_file(arguments[i], all));
  RETURN_IF_ERROR(encode(arguments[0], all));
  ASSIGN_OR_RETURN(const Location folder, open_url(arguments[1]));
  const std::vector<std::string> keys = {folder.child("00000.tar").key, folder.child("00000.tar.index").key,
                                         folder.child("raw").key};
  for (int left = std::atoi(arguments[2].c_str()); left > 0; --left) {
    int64_t size = 0;
    RETURN_IF_ERROR(folder.storage->remove(keys));
    ASSIGN_OR_RETURN(const Cost ours, measure([&] {
                       return write_shard(folder, all.documents).map([&size](int64_t bytes) { size = bytes; });
                     }));
    RETURN_IF_ERROR(folder.storage->remove(keys));
    const std::string bytes(static_cast<size_t>(size), 'x');
    ASSIGN_OR_RETURN(const Cost raw, measure([&] { return write_raw(folder, bytes); }));
    const nlohmann::json line = {{"samples", all.documents.size()}, {"bytes", size},
                                 {"seconds", ours.seconds},         {"cpu_seconds", ours.cpu_seconds},
                                 {"raw_seconds", raw.seconds},      {"raw_cpu_seconds", raw.cpu_seconds}};
    std::puts(line.dump().c_str());
  }
  return folder.storage->remove(keys);
}

}  // namespace
}  // namespace millrace::prepare

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4) {
    std::fputs("millrace_prepare_writer TOKENIZER FOLDER RUNS INPUT...\n", stderr);
    return 2;
  }
  const auto done = millrace::prepare::run(arguments);
  if (!done) std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return done ? 0 : 1;
}
