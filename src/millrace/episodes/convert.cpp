// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/thread/executor.h"
#include "millrace/episodes/convert_run.h"
#include "millrace/episodes/episodes.h"
#include "millrace/episodes/npz_file.h"
#include "millrace/storage/url.h"

namespace millrace::episodes {
namespace {

// Equal outputs of two versions of this code have equal numbers here.
constexpr int kOutputVersion = 1;

std::string options_text(const ConvertOptions& options) {
  const formats::CsvOptions& csv = options.csv;
  std::string text = fmt::format("{} {} {} {} {} {} {} {}", kOutputVersion, static_cast<int>(options.to),
                                 options.compress, options.is_float64, static_cast<int>(csv.delimiter),
                                 static_cast<int>(csv.decimal), static_cast<int>(csv.header), csv.empty_is_nan);
  for (const std::string& column : csv.text_columns) text += fmt::format("\n{}:{}", column.size(), column);
  return text;
}

// Converts files to NPZ files of their own.
class NpzConversion {
 public:
  NpzConversion(ConvertRun& run, std::string root) : run_(run), root_(std::move(root)) {}

  // All files with the columns of the first; the others come back.
  Status convert(const std::vector<size_t>& files) {
    ASSIGN_OR_RETURN(const auto schema, run_.decide(files));
    if (!schema) return {};
    Status done = parallel_try(static_cast<int64_t>(files.size()), run_.threads(), "mr-episodes",
                               [&](int64_t i) { return convert_one(files[static_cast<size_t>(i)], *schema); });
    // What was finished stays, after an error too.
    const Status durable = make_durable();
    RETURN_IF_ERROR(std::move(done));
    return durable;
  }

 private:
  // Errors: those that end the run.
  Status convert_one(size_t i, const CsvSchema& schema) {
    if (run_.options().stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (run_.has_failed(i)) return {};
    const auto target = open_url(root_ + "/" + run_.file(i).name + ".npz");
    if (!target) return tl::unexpected(target.error());
    const Hash128 identity = run_.identity({i}, schema);
    const auto before = identity_of(*target);
    if (!before) {
      run_.fail_file(i, before.error());
      return {};
    }
    if (*before == identity) {
      run_.count_kept(i, schema);
      return {};
    }
    ASSIGN_OR_RETURN(const auto episode, run_.read(i, schema));
    if (!episode) return {};
    Status written = write(*target, *episode, schema, identity);
    if (written) return {};
    if (ends_run(written.error())) return written;
    run_.fail_file(i, std::move(written).error());
    return {};
  }
  // The identity of the NPZ file that is there, if any. Errors: already_exists (it is another program's).
  static Result<std::optional<Hash128>> identity_of(const Location& target) {
    const auto file = target.storage->open_read(target.key);
    if (!file && file.error().code() == ErrorCode::kNotFound) return std::nullopt;
    if (!file) return tl::unexpected(file.error());
    std::string tail(std::min<size_t>(kNpzTailBytes, static_cast<size_t>((*file)->size())), '\0');
    RETURN_IF_ERROR((*file)->read_at((*file)->size() - static_cast<int64_t>(tail.size()),
                                     std::as_writable_bytes(std::span<char>(tail))));
    if (const auto identity = npz_identity(tail)) return identity;
    return fail(ErrorCode::kAlreadyExists,
                "{} is there already, and another program wrote it: remove it, or choose another folder (--out)",
                target.url);
  }
  Status write(const Location& target, const CsvEpisode& episode, const CsvSchema& schema, Hash128 identity) {
    const ConvertOptions& options = run_.options();
    ASSIGN_OR_RETURN(const std::string npz, with_context(npz_of_episode(episode, schema.columns(options.is_float64),
                                                                        identity, options.compress),
                                                         target.url));
    if (!options.dry_run) {
      const auto written = write_object(*target.storage, target.key, npz, {.brief = true}, Durability::kVisible);
      if (!written) return tl::unexpected(written.error());
      MutexLock lock(mutex_);
      written_.push_back(target.key);
      storage_ = target.storage;
    }
    run_.count_output(static_cast<int64_t>(npz.size()));
    return {};
  }
  Status make_durable() {
    MutexLock lock(mutex_);
    if (written_.empty()) return {};
    Status durable = storage_->make_durable(written_);
    written_.clear();
    return durable;
  }

  ConvertRun& run_;
  const std::string root_;
  Mutex mutex_;
  std::vector<std::string> written_ GUARDED_BY(mutex_);
  std::shared_ptr<Storage> storage_ GUARDED_BY(mutex_);
};

Result<std::string> convert_to_npz(ConvertRun& run) {
  const std::string root = run.options().output.empty() ? run.sources().root : run.options().output;
  NpzConversion conversion(run, root);
  std::vector<size_t> all(run.sources().files.size());
  std::iota(all.begin(), all.end(), size_t{0});
  RETURN_IF_ERROR(conversion.convert(all));
  for (const auto& [_, files] : run.take_others()) RETURN_IF_ERROR(conversion.convert(files));
  // Only a file that changed meanwhile is of another kind now.
  for (const auto& [_, files] : run.take_others()) {
    for (const size_t i : files) {
      run.fail_file(i, Error(ErrorCode::kCorruption, run.file(i).url + ": it changed while it was read"));
    }
  }
  return root;
}

}  // namespace

bool ends_run(const Error& error) {
  return error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kResourceExhausted;
}

ConvertRun::ConvertRun(const ConvertOptions& options, SourceFiles sources)
    : options_(options), sources_(std::move(sources)) {
  report_.files = static_cast<int64_t>(sources_.files.size());
  for (const SourceFile& file : sources_.files) report_.input_bytes += file.size;
  if (options_.progress != nullptr) options_.progress->set_totals(report_.input_bytes, report_.files);
}

int ConvertRun::threads() const {
  return options_.threads > 0 ? options_.threads : available_cpus();
}

Result<std::optional<CsvSchema>> ConvertRun::decide(const std::vector<size_t>& files) {
  std::optional<CsvSchema> schema;
  for (const size_t i : files) {
    if (options_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (schema && schema->is_decided()) break;
    const SourceFile& source = file(i);
    const auto decided = [&]() -> Status {
      ASSIGN_OR_RETURN(const CsvText file_text, CsvText::read(source.url));
      const std::string_view text = file_text.text();
      ASSIGN_OR_RETURN(const formats::CsvHead head, formats::read_csv_head(text, source.url, options_.csv));
      if (schema && head.names != schema->names) return {};
      CsvSchema found = schema.value_or(CsvSchema{head.names, std::vector<formats::CsvType>(head.names.size())});
      RETURN_IF_ERROR(formats::infer_csv_types(text, source.url, head, options_.csv, found.types));
      schema = std::move(found);
      return {};
    }();
    if (!decided) fail_file(i, decided.error());
  }
  return schema;
}

Result<std::optional<CsvEpisode>> ConvertRun::read(size_t i, const CsvSchema& schema) {
  if (options_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  if (has_failed(i)) return std::nullopt;
  const SourceFile& source = file(i);
  auto parsed = [&]() -> Result<std::optional<CsvEpisode>> {
    ASSIGN_OR_RETURN(const CsvText file_text, CsvText::read(source.url));
    const std::string_view text = file_text.text();
    ASSIGN_OR_RETURN(const formats::CsvHead head, formats::read_csv_head(text, source.url, options_.csv));
    if (head.names != schema.names) {
      MutexLock lock(mutex_);
      others_[head.names].push_back(i);
      return std::nullopt;
    }
    ASSIGN_OR_RETURN(CsvEpisode episode,
                     parse_csv_episode(text, source.url, head, schema, options_.is_float64, options_.csv));
    return episode;
  }();
  if (!parsed) {
    if (ends_run(parsed.error())) return parsed;
    fail_file(i, std::move(parsed).error());
    return std::nullopt;
  }
  if (!*parsed) return std::nullopt;
  MutexLock lock(mutex_);
  ++report_.converted;
  report_.rows += (*parsed)->rows;
  count_kind(i, schema);
  note_rounded(i, schema, **parsed);
  if (options_.progress != nullptr) options_.progress->add(source.size, 1);
  return parsed;
}

void ConvertRun::note_rounded(size_t i, const CsvSchema& schema, const CsvEpisode& episode) {
  const auto names = schema.columns(options_.is_float64).numbers;
  for (size_t column = 0; column < names.size(); ++column) {
    if (episode.rounded[column] < 0) continue;
    auto& [first, note] = rounded_.try_emplace(names[column], i, RoundedColumn{.column = names[column]}).first->second;
    if (note.files == 0 || i < first) {
      first = i;
      note.url = file(i).url;
      note.row = episode.rounded[column];
    }
    ++note.files;
  }
}

std::map<std::vector<std::string>, std::vector<size_t>> ConvertRun::take_others() {
  MutexLock lock(mutex_);
  auto others = std::exchange(others_, {});
  for (auto& [_, files] : others) std::ranges::sort(files);
  return others;
}

Hash128 ConvertRun::identity(const std::vector<size_t>& files, const CsvSchema& schema) const {
  std::string text = options_text(options_);
  for (size_t i = 0; i < schema.names.size(); ++i) {
    text += fmt::format("\n{}:{} {}", schema.names[i].size(), schema.names[i], static_cast<int>(schema.types[i]));
  }
  for (const size_t i : files) {
    const SourceFile& source = file(i);
    text += fmt::format("\n{}:{} {} {}", source.name.size(), source.name, source.size, source.modified.ns_text());
  }
  return xxh3_128(text);
}

void ConvertRun::fail_file(size_t i, Error error) {
  MutexLock lock(mutex_);
  failed_.try_emplace(i, std::move(error));
  if (options_.progress != nullptr) options_.progress->add_failed();
}

bool ConvertRun::has_failed(size_t i) const {
  MutexLock lock(mutex_);
  return failed_.contains(i);
}

bool ConvertRun::has_any_failed() const {
  MutexLock lock(mutex_);
  return !failed_.empty();
}

bool ConvertRun::have_all_failed() const {
  MutexLock lock(mutex_);
  return failed_.size() == sources_.files.size();
}

void ConvertRun::count_kept(size_t i, const CsvSchema& schema) {
  MutexLock lock(mutex_);
  ++report_.kept;
  count_kind(i, schema);
  if (options_.progress != nullptr) options_.progress->add(file(i).size, 1);
}

void ConvertRun::count_output(int64_t bytes) {
  MutexLock lock(mutex_);
  report_.output_bytes += bytes;
}

void ConvertRun::count_kind(size_t i, const CsvSchema& schema) {
  auto [found, is_new] = kinds_.try_emplace(schema.names, i, ConvertedKind());
  auto& [first, kind] = found->second;
  if (is_new) {
    formats::EpisodeColumns columns = schema.columns(options_.is_float64);
    kind.numbers = std::move(columns.numbers);
    kind.texts = std::move(columns.texts);
  }
  first = std::min(first, i);
  ++kind.files;
}

ConvertReport ConvertRun::take_report(std::string output) {
  MutexLock lock(mutex_);
  report_.output = std::move(output);
  for (auto& [i, error] : failed_) report_.failed.push_back({file(i).url, std::move(error)});
  for (auto& [_, counted] : kinds_) {
    auto& [first, kind] = counted;
    kind.first = file(first).url;
    report_.kinds.push_back(std::move(kind));
  }
  std::ranges::stable_sort(report_.kinds, std::greater(), &ConvertedKind::files);
  for (auto& [_, note] : rounded_) report_.rounded.push_back(std::move(note.second));
  return std::move(report_);
}

Result<ConvertReport> convert_episodes(const std::string& source, const ConvertOptions& options) {
  if (options.compress && options.to == ConvertTo::kPacked) {
    return fail(ErrorCode::kInvalidArgument, "packed files are not compressed: they are mapped");
  }
  ASSIGN_OR_RETURN(SourceFiles files, find_source_files(source, ".csv"));
  ConvertRun run(options, std::move(files));
  ASSIGN_OR_RETURN(std::string output, options.to == ConvertTo::kNpz ? convert_to_npz(run) : convert_to_pack(run));
  return run.take_report(std::move(output));
}

}  // namespace millrace::episodes
