// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "millrace/prepare/detail/folder.h"
#include "millrace/prepare/detail/inputs.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

namespace {

constexpr int64_t kMaxParts = 100'000;  // part names have five digits

// The parts written so far and the one being written. With no folder, it only counts.
class PartFiles {
 public:
  PartFiles(const Location* folder, const std::vector<std::string>& names, formats::DocumentMode documents)
      : folder_(folder), names_(names), paragraphs_(documents == formats::DocumentMode::kParagraph) {}

  // Ends the parts before `part` and begins it.
  Status move_to(size_t part) {
    while (report_.parts.size() <= part) {
      RETURN_IF_ERROR(end_part());
      const std::string& name = names_[report_.parts.size()];
      report_.parts.push_back({name, 0, 0});
      tail_.clear();
      if (folder_ != nullptr) {
        ASSIGN_OR_RETURN(writer_, folder_->storage->open_write(folder_->child(name).key));
      }
    }
    return {};
  }

  // Text of the input after the one before: what that ended with must not run into it.
  Status begin_input() {
    if (tail_.empty()) return {};
    if (tail_.back() != '\n') RETURN_IF_ERROR(append("\n", 0));
    if (paragraphs_ && tail_ != "\n\n") RETURN_IF_ERROR(append("\n", 0));
    return {};
  }

  Status append(std::string_view text, int64_t documents) {
    SplitReport::Part& part = report_.parts.back();
    part.bytes += static_cast<int64_t>(text.size());
    part.documents += documents;
    tail_.append(text.substr(text.size() - std::min<size_t>(text.size(), 2)));
    if (tail_.size() > 2) tail_.erase(0, tail_.size() - 2);
    return writer_ && !text.empty() ? writer_->append(as_bytes(text)) : Status();
  }

  // Ends the last part and makes all of them durable.
  Result<SplitReport> finish() {
    RETURN_IF_ERROR(move_to(names_.size() - 1));
    RETURN_IF_ERROR(end_part());
    std::vector<std::string> keys;
    for (const SplitReport::Part& part : report_.parts) {
      report_.bytes += part.bytes;
      report_.documents += part.documents;
      if (folder_ != nullptr) keys.push_back(folder_->child(part.name).key);
    }
    if (folder_ != nullptr) RETURN_IF_ERROR(folder_->storage->make_durable(keys));
    return std::move(report_);
  }

 private:
  Status end_part() {
    if (!writer_) return {};
    RETURN_IF_ERROR(writer_->commit(Durability::kVisible));
    writer_.reset();
    return {};
  }

  const Location* folder_;
  const std::vector<std::string>& names_;
  const bool paragraphs_;
  std::unique_ptr<Writer> writer_;
  std::string tail_;  // the last two bytes of the part
  SplitReport report_;
};

class Splitter {
 public:
  Splitter(const SplitOptions& options, int64_t total, PartFiles& parts, std::stop_token stop, Progress& progress)
      : options_(options), total_(total), parts_(parts), stop_(std::move(stop)), progress_(progress) {}

  Status add(const Input& input) {
    ASSIGN_OR_RETURN(const auto reader, open_input(input, stop_));
    formats::DocumentReader documents(*reader,
                                      {.mode = options_.documents, .max_document_bytes = options_.max_document_bytes});
    RETURN_IF_ERROR(parts_.move_to(part_));
    RETURN_IF_ERROR(parts_.begin_input());
    for (;;) {
      ASSIGN_OR_RETURN(const auto chunk, documents.next());
      if (!chunk) break;
      RETURN_IF_ERROR(add_chunk(*chunk));
      progress_.add(static_cast<int64_t>(chunk->text.size()), static_cast<int64_t>(chunk->documents.size()));
    }
    input_begin_ += input.size;
    return {};
  }

 private:
  // Cuts in front of the first document that begins in another part.
  Status add_chunk(const formats::DocumentChunk& chunk) {
    const std::string_view text = chunk.text;
    size_t begin = 0;
    int64_t documents = 0;
    for (const formats::DocumentSpan& document : chunk.documents) {
      const size_t part = part_of(input_begin_ + chunk.file_offset + static_cast<int64_t>(document.begin));
      if (part != part_) {
        RETURN_IF_ERROR(parts_.append(text.substr(begin, document.begin - begin), documents));
        RETURN_IF_ERROR(parts_.move_to(part));
        part_ = part;
        begin = document.begin;
        documents = 0;
      }
      ++documents;
    }
    return parts_.append(text.substr(begin), documents);
  }

  // Part p has the bytes [total p / N, total (p + 1) / N); `at` never goes back.
  size_t part_of(int64_t at) const {
    const int64_t count = options_.parts;
    const auto begin = [&](int64_t part) { return total_ / count * part + total_ % count * part / count; };
    auto part = static_cast<int64_t>(part_);
    while (part + 1 < count && begin(part + 1) <= at) ++part;
    return static_cast<size_t>(part);
  }

  const SplitOptions& options_;
  const int64_t total_;
  PartFiles& parts_;
  const std::stop_token stop_;
  Progress& progress_;
  int64_t input_begin_ = 0;  // of the inputs laid end to end
  size_t part_ = 0;
};

std::vector<std::string> part_file_names(const SplitOptions& options) {
  const std::string_view ending = options.documents == formats::DocumentMode::kJsonl ? "jsonl" : "txt";
  std::vector<std::string> names;
  for (int64_t i = 0; i < options.parts; ++i) names.push_back(fmt::format("part-{:05}.{}", i, ending));
  return names;
}

bool is_part_file(std::string_view name) {
  constexpr std::string_view kHead = "part-";
  if (!name.starts_with(kHead)) return false;
  const size_t digits_end = name.find_first_not_of("0123456789", kHead.size());
  if (digits_end == std::string_view::npos || digits_end == kHead.size()) return false;
  return name.substr(digits_end) == ".txt" || name.substr(digits_end) == ".jsonl";
}

// A reader of "part-*" must not find parts of two splits, and a part must not replace an input.
Status check_output(const Location& folder, const std::vector<std::string>& names, std::span<const Input> inputs) {
  const std::set<std::string> own(names.begin(), names.end());
  ASSIGN_OR_RETURN(const auto files, folder_files(folder, "part-"));
  std::string strangers;
  int64_t count = 0;
  for (const auto& [name, size] : files) {
    if (!is_part_file(name) || own.contains(name) || ++count > 5) continue;
    strangers += (strangers.empty() ? "" : ", ") + name;
  }
  if (count > 0) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: it holds parts of another split ({}{}); remove them or give another folder", folder.url, strangers,
                count > 5 ? fmt::format(" and {} more", count - 5) : "");
  }
  const std::string base = folder.child("").key;
  for (const Input& input : inputs) {
    const Location& at = input.location;
    if (at.storage->name() == folder.storage->name() && at.key.starts_with(base) &&
        own.contains(at.key.substr(base.size()))) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: it is an input and would be replaced by a part; give another folder", at.url);
    }
  }
  return {};
}

}  // namespace

Result<SplitReport> split(const SplitOptions& options, std::stop_token stop, Progress* progress) {
  if (options.parts < 1 || options.parts > kMaxParts) {
    return fail(ErrorCode::kInvalidArgument, "{} parts: expected 1 to {}", options.parts, kMaxParts);
  }
  if (options.documents == formats::DocumentMode::kFile) {
    return fail(ErrorCode::kInvalidArgument, "split joins files, so a whole file cannot be a document in it");
  }
  ASSIGN_OR_RETURN(const Location folder, open_url(options.output));
  ASSIGN_OR_RETURN(const std::vector<std::string> urls, expand_inputs(options.inputs));
  ASSIGN_OR_RETURN(const std::vector<Input> inputs, pin_inputs(urls));
  const std::vector<std::string> names = part_file_names(options);
  RETURN_IF_ERROR(check_output(folder, names, inputs));
  const int64_t total = total_bytes(inputs);
  if (!options.dry_run) RETURN_IF_ERROR(check_space(folder, total));

  Progress unwatched;
  Progress& watched = progress != nullptr ? *progress : unwatched;
  watched.set_totals(total, 0);
  watched.set_phase("split");
  PartFiles parts(options.dry_run ? nullptr : &folder, names, options.documents);
  Splitter splitter(options, total, parts, std::move(stop), watched);
  for (const Input& input : inputs) RETURN_IF_ERROR(splitter.add(input));
  return parts.finish();
}

}  // namespace millrace::prepare
