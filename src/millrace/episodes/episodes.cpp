// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/episodes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <filesystem>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/episodes/mapped_file.h"
#include "millrace/episodes/npz_file.h"
#include "millrace/episodes/source_files.h"

namespace millrace::episodes {
namespace {

// A system lets a process map 65,530 files by default.
constexpr size_t kMostOpenFiles = 4096;
constexpr size_t kMostUnpackedBytes = size_t{256} << 20;

class PackedEpisodes final : public Episodes {
 public:
  static Result<std::shared_ptr<const Episodes>> open(const std::string& path) {
    ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
    ASSIGN_OR_RETURN(auto pack, formats::EpisodePack::parse(file->bytes(), path));
    return std::shared_ptr<const Episodes>(new PackedEpisodes(std::move(file), std::move(pack)));
  }

  const formats::EpisodeColumns& columns() const override { return pack_->columns(); }
  const std::vector<std::string>& names() const override { return pack_->names(); }
  const formats::EpisodePack* pack() const override { return pack_.get(); }
  AllRows all_rows() const override { return {pack_->numbers(), file_}; }
  Result<std::vector<uint64_t>> first_rows(Progress* progress, const std::stop_token&) const override {
    if (progress != nullptr) progress->add(0, size());
    return pack_->first_rows();
  }

  Result<Episode> episode(int64_t i) const override {
    const auto at = static_cast<size_t>(i);
    const auto begin = static_cast<int64_t>(pack_->first_rows()[at]),
               end = static_cast<int64_t>(pack_->first_rows()[at + 1]);
    RETURN_IF_ERROR(pack_->check_rows(begin, end));
    const size_t row_bytes = columns().row_bytes();
    Episode episode{names()[at], columns_, end - begin};
    episode.numbers =
        pack_->numbers().subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(end - begin) * row_bytes);
    episode.owner = file_;
    std::vector<formats::CsvTexts> texts(columns().texts.size());
    for (size_t column = 0; column < texts.size(); ++column) {
      ASSIGN_OR_RETURN(texts[column], pack_->texts(column, begin, end));
    }
    episode.texts = std::make_shared<const std::vector<formats::CsvTexts>>(std::move(texts));
    return episode;
  }

 private:
  PackedEpisodes(std::shared_ptr<const MappedFile> file, std::unique_ptr<formats::EpisodePack> pack)
      : file_(std::move(file)),
        pack_(std::move(pack)),
        columns_(std::make_shared<const formats::EpisodeColumns>(pack_->columns())) {}

  const std::shared_ptr<const MappedFile> file_;
  const std::unique_ptr<formats::EpisodePack> pack_;
  const std::shared_ptr<const formats::EpisodeColumns> columns_;
};

// An NPZ file that is open: mapped, or its unpacked numbers.
struct OpenNpz {
  std::shared_ptr<const MappedFile> file;
  NpzEpisode npz;
};

class NpzEpisodes final : public Episodes {
 public:
  static Result<std::shared_ptr<const Episodes>> open(const std::string& path) {
    ASSIGN_OR_RETURN(SourceFiles files, find_source_files(path, ".npz"));
    std::shared_ptr<NpzEpisodes> episodes(new NpzEpisodes(std::move(files)));
    ASSIGN_OR_RETURN(const auto first, open_file(episodes->files_.files.front().url));
    episodes->columns_ = std::make_shared<const formats::EpisodeColumns>(first->npz.columns);
    return std::shared_ptr<const Episodes>(std::move(episodes));
  }

  const formats::EpisodeColumns& columns() const override { return *columns_; }
  const std::vector<std::string>& names() const override { return names_; }

  Result<Episode> episode(int64_t i) const override {
    const auto at = static_cast<size_t>(i);
    ASSIGN_OR_RETURN(const auto opened, opened_file(at));
    const NpzEpisode& npz = opened->npz;
    return Episode{names_[at],  columns_, npz.rows,
                   npz.numbers, opened,   std::shared_ptr<const std::vector<formats::CsvTexts>>(opened, &npz.texts)};
  }

  Result<std::vector<uint64_t>> first_rows(Progress* progress, const std::stop_token& stop) const override {
    std::vector<uint64_t> first(names_.size() + 1);
    RETURN_IF_ERROR(parallel_try(size(), available_cpus(), "mr-episodes", [&](int64_t i) -> Status {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      ASSIGN_OR_RETURN(const auto opened, opened_file(static_cast<size_t>(i)));
      if (progress != nullptr) progress->add(0, 1);
      first[static_cast<size_t>(i) + 1] = static_cast<uint64_t>(opened->npz.rows);
      return {};
    }));
    for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
    return first;
  }

 private:
  explicit NpzEpisodes(SourceFiles files) : files_(std::move(files)), open_(files_.files.size()) {
    for (const SourceFile& file : files_.files) names_.push_back(file.name);
  }

  static Result<std::shared_ptr<const OpenNpz>> open_file(const std::string& url) {
    ASSIGN_OR_RETURN(const std::string path, local_path(url));
    auto opened = std::make_shared<OpenNpz>();
    ASSIGN_OR_RETURN(opened->file, MappedFile::open(path));
    ASSIGN_OR_RETURN(opened->npz, parse_npz_episode(opened->file->bytes(), path));
    return std::shared_ptr<const OpenNpz>(std::move(opened));
  }
  Result<std::shared_ptr<const OpenNpz>> opened_file(size_t at) const {
    {
      MutexLock lock(mutex_);
      if (open_[at] != nullptr) return open_[at];
    }
    const std::string& url = files_.files[at].url;
    ASSIGN_OR_RETURN(auto opened, open_file(url));
    if (opened->npz.columns != *columns_) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: its columns are not those of {}: open the kinds apart, by a folder or a pattern", url,
                  files_.files.front().url);
    }
    MutexLock lock(mutex_);
    if (open_[at] == nullptr) keep(at, opened);
    return opened;
  }
  // Lets go of the files that were opened first, when there are too many.
  void keep(size_t at, const std::shared_ptr<const OpenNpz>& opened) const REQUIRES_LOCK(mutex_) {
    const auto unpacked = [](const OpenNpz& file) { return file.npz.unpacked ? file.npz.unpacked->size() : 0; };
    open_[at] = opened;
    order_.push_back(at);
    unpacked_bytes_ += unpacked(*opened);
    while (order_.size() > 1 && (order_.size() > kMostOpenFiles || unpacked_bytes_ > kMostUnpackedBytes)) {
      unpacked_bytes_ -= unpacked(*open_[order_.front()]);
      open_[order_.front()] = nullptr;
      order_.pop_front();
    }
  }

  const SourceFiles files_;
  std::vector<std::string> names_;
  std::shared_ptr<const formats::EpisodeColumns> columns_;
  mutable Mutex mutex_;
  mutable std::vector<std::shared_ptr<const OpenNpz>> open_ GUARDED_BY(mutex_);
  mutable std::deque<size_t> order_ GUARDED_BY(mutex_);  // in which they were opened
  mutable size_t unpacked_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::shared_ptr<const Episodes>> open_episodes(const std::string& url) {
  namespace fs = std::filesystem;
  ASSIGN_OR_RETURN(const std::string path, local_path(url));
  std::error_code error;
  const std::string inside = (fs::path(path) / kPackName).native();
  if (fs::is_directory(path, error)) {
    return fs::exists(inside, error) ? PackedEpisodes::open(inside) : NpzEpisodes::open(path);
  }
  return path.ends_with(kPackEnding) ? PackedEpisodes::open(path) : NpzEpisodes::open(path);
}

Result<Episode> read_csv_episode(const std::string& url, bool is_float64, const formats::CsvOptions& options) {
  ASSIGN_OR_RETURN(const CsvText file, CsvText::read(url));
  const std::string_view text = file.text();
  ASSIGN_OR_RETURN(const formats::CsvHead head, formats::read_csv_head(text, url, options));
  CsvSchema schema{head.names, std::vector<formats::CsvType>(head.names.size())};
  RETURN_IF_ERROR(formats::infer_csv_types(text, url, head, options, schema.types));
  ASSIGN_OR_RETURN(CsvEpisode csv, parse_csv_episode(text, url, head, schema, is_float64, options));
  auto columns = std::make_shared<const formats::EpisodeColumns>(schema.columns(is_float64));
  auto texts = std::make_shared<const std::vector<formats::CsvTexts>>(std::move(csv.texts));
  return Episode{url, std::move(columns), csv.rows, csv.numbers, std::move(csv.owner), std::move(texts)};
}

}  // namespace millrace::episodes
