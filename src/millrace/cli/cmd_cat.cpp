// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "millrace/cli/command.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

constexpr int64_t kCatPieceBytes = 1 << 20;

Status cat_object(const std::string& url, Context& context) {
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  ASSIGN_OR_RETURN(const auto reader, at.storage->open_read(at.object_key()));
  std::string piece;
  for (int64_t offset = 0; offset < reader->size(); offset += std::ssize(piece)) {
    if (context.stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", at.url);
    piece.resize(static_cast<size_t>(std::min(kCatPieceBytes, reader->size() - offset)));
    RETURN_IF_ERROR(reader->read_at(offset, std::as_writable_bytes(std::span<char>(piece))));
    context.out.print_text(piece);
  }
  context.out.print_json({{"type", "cat"}, {"url", at.url}, {"bytes", reader->size()}});
  return {};
}

Status run_cat(const std::vector<std::string>& urls, Context& context) {
  for (const std::string& url : urls) RETURN_IF_ERROR(cat_object(url, context));
  return {};
}

}  // namespace

void add_cat(Verbs& verbs) {
  auto urls = std::make_shared<std::vector<std::string>>();
  CLI::App& app = verbs.add(verbs.root(), "cat", "Write objects to standard output, one after another",
                            {"millrace cat s3://bucket/run1/config.json",
                             "millrace cat part-0.jsonl part-1.jsonl > all.jsonl", "millrace cat shards/manifest.json"},
                            [urls](Context& context) { return run_cat(*urls, context); });
  app.add_option("URL", *urls, "Objects (with --json they are read, and only their sizes printed)")
      ->required()
      ->option_text(" ");
}

}  // namespace millrace::cli
