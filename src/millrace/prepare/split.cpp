// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "millrace/base/io/stoppable_reader.h"
#include "millrace/prepare/detail/folder.h"
#include "millrace/prepare/detail/inputs.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

namespace {

constexpr int64_t kMaxParts = 100'000;  // part names have five digits
constexpr size_t kCompareBytes = 1 << 20;
constexpr int64_t kExpansionSample = 8 << 20;  // of text, from the front of a packed file
constexpr size_t kExpansionInputs = 32;        // at most this many are sampled

// One file of the split, being written. With no folder, it only counts.
class SplitFile {
 public:
  static Result<SplitFile> open(const Location* folder, std::string name) {
    SplitFile file;
    if (folder != nullptr) {
      ASSIGN_OR_RETURN(file.writer_, folder->storage->open_write(folder->child(name).key));
    }
    file.part_.name = std::move(name);
    file.folder_ = folder;
    return file;
  }

  // Text of input number `input`. What an earlier one ended with must not run into it.
  Status append(std::string_view text, int64_t documents, int64_t input, bool paragraphs) {
    if (text.empty()) return {};
    if (input != input_ && !tail_.empty()) {
      if (tail_.back() != '\n') RETURN_IF_ERROR(write("\n"));
      if (paragraphs && tail_ != "\n\n") RETURN_IF_ERROR(write("\n"));
    }
    input_ = input;
    part_.documents += documents;
    return write(text);
  }

  // A file of this name and content stays as it is. Errors: already_exists (of other content, and not `replace`).
  Result<SplitReport::Part> commit(bool replace, const std::stop_token& stop) {
    if (!writer_) return std::move(part_);
    ASSIGN_OR_RETURN(const Found found, look(stop));
    if (found == Found::kOther && !replace) {
      return fail(ErrorCode::kAlreadyExists,
                  "{}: it is there with other content; give another folder, or --replace to write it again",
                  folder_->child(part_.name).url);
    }
    if (found != Found::kSame) RETURN_IF_ERROR(writer_->commit(Durability::kVisible));
    return std::move(part_);
  }

 private:
  enum class Found { kNone, kSame, kOther };

  // The state of an existing file of this name.
  Result<Found> look(const std::stop_token& stop) {
    const Location at = folder_->child(part_.name);
    auto opened = at.storage->open_read(at.key);
    if (!opened && opened.error().code() == ErrorCode::kNotFound) return Found::kNone;
    if (!opened) return tl::unexpected(std::move(opened).error());
    if ((*opened)->size() != part_.bytes) return Found::kOther;
    const StoppableReader reader(*std::move(opened), stop);
    Xxh3Stream there;
    std::vector<std::byte> piece(kCompareBytes);
    for (int64_t offset = 0; offset < reader.size();) {
      const auto bytes = std::span(piece).first(
          static_cast<size_t>(std::min(reader.size() - offset, static_cast<int64_t>(piece.size()))));
      RETURN_IF_ERROR(reader.read_at(offset, bytes));
      there.update(bytes);
      offset += std::ssize(bytes);
    }
    return there.digest() == hash_.digest() ? Found::kSame : Found::kOther;
  }

  Status write(std::string_view text) {
    part_.bytes += static_cast<int64_t>(text.size());
    tail_.append(text.substr(text.size() - std::min<size_t>(text.size(), 2)));
    if (tail_.size() > 2) tail_.erase(0, tail_.size() - 2);
    hash_.update(as_bytes(text));
    return writer_ ? writer_->append(as_bytes(text)) : Status();
  }

  const Location* folder_ = nullptr;
  std::unique_ptr<Writer> writer_;
  SplitReport::Part part_;
  Xxh3Stream hash_;
  std::string tail_;    // its last two bytes
  int64_t input_ = -1;  // that the last text came from
};

// All files of a split: the parts, one after the other, and beside them the one for validation.
class SplitFiles {
 public:
  SplitFiles(const Location* folder, const SplitOptions& options, const std::vector<std::string>& names,
             std::stop_token stop)
      : folder_(folder),
        options_(options),
        names_(names),
        stop_(std::move(stop)),
        parts_(static_cast<size_t>(options.parts)) {}

  Status begin() {
    if (names_.size() > parts_) {
      ASSIGN_OR_RETURN(validation_, SplitFile::open(folder_, names_.back()));
    }
    return move_to(0);
  }

  // Ends the parts before `part` and begins it.
  Status move_to(size_t part) {
    while (!part_ || part_number_ < part) {
      if (part_) {
        RETURN_IF_ERROR(commit(*part_));
        ++part_number_;
      }
      ASSIGN_OR_RETURN(part_, SplitFile::open(folder_, names_[part_number_]));
    }
    return {};
  }

  bool is_for_validation(std::string_view document) const {
    return validation_ && static_cast<double>(xxh3_64(document, options_.seed)) < std::ldexp(options_.validation, 64);
  }

  // Rows without text.
  void leave_out(int64_t count) { report_.empty += count; }

  Status append(bool validation, std::string_view text, int64_t documents, int64_t input) {
    SplitFile& file = validation ? *validation_ : *part_;
    return file.append(text, documents, input, options_.documents.mode == formats::DocumentMode::kParagraph);
  }

  // Ends the last part and makes all of them durable.
  Result<SplitReport> finish() {
    RETURN_IF_ERROR(move_to(parts_ - 1));
    RETURN_IF_ERROR(commit(*part_));
    if (validation_) RETURN_IF_ERROR(commit(*validation_));
    if (folder_ == nullptr) return std::move(report_);
    std::vector<std::string> keys;
    for (const SplitReport::Part& part : report_.parts) keys.push_back(folder_->child(part.name).key);
    RETURN_IF_ERROR(folder_->storage->make_durable(keys));
    return std::move(report_);
  }

 private:
  Status commit(SplitFile& file) {
    ASSIGN_OR_RETURN(SplitReport::Part part, file.commit(options_.replace, stop_));
    report_.bytes += part.bytes;
    report_.documents += part.documents;
    report_.parts.push_back(std::move(part));
    return {};
  }

  const Location* folder_;
  const SplitOptions& options_;
  const std::vector<std::string>& names_;
  const std::stop_token stop_;
  const size_t parts_;
  size_t part_number_ = 0;
  std::optional<SplitFile> part_, validation_;
  SplitReport report_;
};

class Splitter {
 public:
  // `total`: estimated bytes of text of all inputs (text_sizes).
  Splitter(const SplitOptions& options, int64_t total, SplitFiles& files, std::stop_token stop, Progress& progress)
      : options_(options), total_(total), files_(files), stop_(std::move(stop)), progress_(progress) {}

  // `text_size`: what the input becomes.
  Status add(const Input& input, int64_t text_size) {
    is_table_ = input.table;
    expansion_ = input.size > 0 ? static_cast<double>(text_size) / static_cast<double>(input.size) : 1;
    ASSIGN_OR_RETURN(const auto reader, open_input(input, stop_));
    ASSIGN_OR_RETURN(const auto documents, formats::open_documents(*reader, options_.documents));
    file_bytes_ = 0;
    for (;;) {
      ASSIGN_OR_RETURN(const auto chunk, documents->next());
      if (!chunk) break;
      RETURN_IF_ERROR(add_chunk(*chunk));
      progress_.add(chunk->file_bytes - file_bytes_, static_cast<int64_t>(chunk->documents.size()));
      file_bytes_ = chunk->file_bytes;
    }
    progress_.add(input.size - file_bytes_, 0);
    input_begin_ += text_size;
    ++input_;
    return {};
  }

 private:
  // Runs of documents that go to one file, each with what lies behind it, are written in one piece.
  Status add_chunk(const formats::DocumentChunk& chunk) {
    const std::string_view text = chunk.text;
    bool validation = false;
    size_t begin = 0;
    int64_t documents = 0;
    std::string row;
    for (size_t i = 0; i < chunk.documents.size(); ++i) {
      const formats::DocumentSpan& span = chunk.documents[i];
      const std::string_view document = text.substr(span.begin, span.end - span.begin);
      const bool to_validation = files_.is_for_validation(document);
      const size_t part = part_of(place_of(chunk, i));
      if (part != part_ || to_validation != validation) {
        if (chunk.rows.empty()) {
          RETURN_IF_ERROR(files_.append(validation, text.substr(begin, span.begin - begin), documents, input_));
        }
        RETURN_IF_ERROR(files_.move_to(part));
        part_ = part;
        validation = to_validation;
        begin = span.begin;
        documents = 0;
      }
      ++documents;
      if (chunk.rows.empty()) continue;
      row = nlohmann::json{{"text", document}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
      RETURN_IF_ERROR(files_.append(validation, row, 1, input_));
    }
    if (is_table_) {
      for (const formats::Empties& empties : chunk.empties) files_.leave_out(empties.count);
    }
    if (!chunk.rows.empty()) return {};
    return files_.append(validation, text.substr(begin), documents, input_);
  }

  // The offset of a document in the text of all inputs laid end to end; an estimate, for packed files and tables.
  int64_t place_of(const formats::DocumentChunk& chunk, size_t i) const {
    const auto begin = static_cast<int64_t>(chunk.documents[i].begin);
    if (chunk.rows.empty() && chunk.file_bytes == chunk.end) return input_begin_ + chunk.offset + begin;
    const double share = static_cast<double>(begin) / static_cast<double>(chunk.text.size());
    const double stored =
        static_cast<double>(file_bytes_) + share * static_cast<double>(chunk.file_bytes - file_bytes_);
    return input_begin_ + static_cast<int64_t>(expansion_ * stored);
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
  SplitFiles& files_;
  const std::stop_token stop_;
  Progress& progress_;
  int64_t input_ = 0;  // its number
  bool is_table_ = false;
  int64_t input_begin_ = 0;  // of the texts laid end to end
  int64_t file_bytes_ = 0;   // of the input, before the chunk
  double expansion_ = 1;     // bytes of text per byte of the file
  size_t part_ = 0;
};

// The parts' names, and behind them that of the file for validation, if there is one.
std::vector<std::string> file_names(const SplitOptions& options, bool tables) {
  const std::string_view ending = tables || options.documents.mode == formats::DocumentMode::kJsonl ? "jsonl" : "txt";
  std::vector<std::string> names;
  for (int64_t i = 0; i < options.parts; ++i) names.push_back(fmt::format("part-{:05}.{}", i, ending));
  if (options.validation > 0) names.push_back(fmt::format("validation.{}", ending));
  return names;
}

// A file that some split writes.
bool is_split_file(std::string_view name) {
  constexpr std::string_view kHead = "part-";
  if (name == "validation.txt" || name == "validation.jsonl") return true;
  if (!name.starts_with(kHead)) return false;
  const size_t digits_end = name.find_first_not_of("0123456789", kHead.size());
  if (digits_end == std::string_view::npos || digits_end == kHead.size()) return false;
  return name.substr(digits_end) == ".txt" || name.substr(digits_end) == ".jsonl";
}

// A reader of "part-*" must not find parts of two splits, and a part must not replace an input.
Status check_output(const Location& folder, const std::vector<std::string>& names, std::span<const Input> inputs) {
  const std::set<std::string> own(names.begin(), names.end());
  ASSIGN_OR_RETURN(const auto files, folder_files(folder));
  std::string strangers;
  int64_t count = 0;
  for (const auto& [name, size] : files) {
    if (!is_split_file(name) || own.contains(name) || ++count > 5) continue;
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
    if (!at.storage) continue;  // standard input
    if (at.storage->name() == folder.storage->name() && at.key.starts_with(base) &&
        own.contains(at.key.substr(base.size()))) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: it is an input and would be replaced by a part; give another folder", at.url);
    }
  }
  return {};
}

// Rows of tables become lines of JSON, which other text cannot be joined with.
Result<bool> are_tables(std::span<const Input> inputs) {
  for (const Input& input : inputs) {
    if (input.table == inputs.front().table) continue;
    return fail(ErrorCode::kInvalidArgument, "{}: Parquet tables and other files are split apart; this is {}",
                input.location.url, input.table ? "a table" : "none");
  }
  return !inputs.empty() && inputs.front().table;
}

// The text that the front of a packed file or table becomes, for each byte of the file.
Result<double> expansion_of(const Input& input, const SplitOptions& options, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto reader, open_input(input, stop));
  ASSIGN_OR_RETURN(const auto documents, formats::open_documents(*reader, options.documents));
  int64_t text = 0, file = 0;
  while (text < kExpansionSample) {
    ASSIGN_OR_RETURN(const auto chunk, documents->next());
    if (!chunk) {
      file = input.size;
      break;
    }
    text += std::ssize(chunk->text);
    file = chunk->file_bytes;
  }
  return file > 0 ? static_cast<double>(text) / static_cast<double>(file) : 1;
}

// Bytes of text in each input: the size of plain text; for packed files and tables an estimate from the front of some.
Result<std::vector<int64_t>> text_sizes(std::span<const Input> inputs, const SplitOptions& options, bool tables,
                                        const std::stop_token& stop) {
  std::vector<size_t> packed;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (tables || inputs[i].packed) packed.push_back(i);
  std::vector<int64_t> sizes;
  for (const Input& input : inputs) sizes.push_back(input.size);
  const size_t samples = std::min(packed.size(), kExpansionInputs);
  double expansion = 1;  // of the sampled one at or before each
  for (size_t k = 0, sample = 0; k < packed.size(); ++k) {
    const Input& input = inputs[packed[k]];
    if (k == sample * packed.size() / samples) {
      ASSIGN_OR_RETURN(expansion, expansion_of(input, options, stop));
      ++sample;
    }
    sizes[packed[k]] = static_cast<int64_t>(expansion * static_cast<double>(input.size));
  }
  return sizes;
}

}  // namespace

Result<SplitReport> split(const SplitOptions& options, std::stop_token stop, Progress* progress) {
  if (options.parts < 1 || options.parts > kMaxParts) {
    return fail(ErrorCode::kInvalidArgument, "{} parts: expected 1 to {}", options.parts, kMaxParts);
  }
  if (!(options.validation >= 0 && options.validation < 1)) {
    return fail(ErrorCode::kInvalidArgument, "{} of the documents for validation: expected 0 to less than 1",
                options.validation);
  }
  if (options.documents.mode == formats::DocumentMode::kFile) {
    return fail(ErrorCode::kInvalidArgument, "split joins files, so a whole file cannot be a document in it");
  }
  ASSIGN_OR_RETURN(const Location folder, open_url(options.output));
  ASSIGN_OR_RETURN(const std::vector<FoundInput> found, find_inputs(options.inputs));
  ASSIGN_OR_RETURN(const std::vector<Input> inputs,
                   open_inputs(found, Task{}, options.documents, options.text_rules, stop));
  const int64_t total = total_bytes(inputs);
  if (total == 0) return fail(ErrorCode::kInvalidArgument, "{}: there is no text to split", options.inputs.front());
  ASSIGN_OR_RETURN(const bool tables, are_tables(inputs));
  RETURN_IF_ERROR(check_fronts(inputs));
  const std::vector<std::string> names = file_names(options, tables);
  RETURN_IF_ERROR(check_output(folder, names, inputs));
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, text_sizes(inputs, options, tables, stop));
  const int64_t text = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  // The estimate from the front of packed files may be too high.
  if (!options.dry_run) RETURN_IF_ERROR(check_space(folder, std::max(total, text / 10 * 9)));

  Progress unwatched;
  Progress& watched = progress != nullptr ? *progress : unwatched;
  watched.set_totals(total, 0);
  watched.set_phase("split");
  SplitFiles files(options.dry_run ? nullptr : &folder, options, names, stop);
  RETURN_IF_ERROR(files.begin());
  Splitter splitter(options, text, files, std::move(stop), watched);
  for (size_t i = 0; i < inputs.size(); ++i) RETURN_IF_ERROR(splitter.add(inputs[i], sizes[i]));
  return files.finish();
}

}  // namespace millrace::prepare
