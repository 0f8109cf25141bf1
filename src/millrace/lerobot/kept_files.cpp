// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/kept_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "millrace/base/hash/hash.h"
#include "millrace/base/log.h"

namespace millrace::lerobot {
namespace {

constexpr std::string_view kMagic = "millrace robot files 1\n";
constexpr std::string_view kMeta = "meta/";
constexpr size_t kHash = 32;
constexpr int64_t kMostBytes = int64_t{4} << 30;
// As long as the node cache trusts what one process saw (CacheOptions::open_age).
constexpr std::chrono::minutes kFresh{1};

bool is_same(const TreeFile& a, const TreeFile& b) {
  return a.path == b.path && a.size == b.size && a.version == b.version;
}

// "SIZE TIME LENGTH LENGTH " and then version and path, whatever characters they hold.
std::string text_of(std::span<const TreeFile> files) {
  std::string text;
  for (const TreeFile& file : files) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {} {}{}", file.size, file.modified.ns_text(),
                   file.version.size(), file.path.size(), file.version, file.path);
  }
  return text;
}

// Takes what stands before the next space.
std::optional<std::string_view> take_word(std::string_view& text) {
  const size_t space = text.find(' ');
  if (space == text.npos) return std::nullopt;
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space + 1);
  return word;
}

template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  const auto word = take_word(text);
  Number number = 0;
  if (!word || std::from_chars(word->data(), word->data() + word->size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

std::optional<TreeFile> take_file(std::string_view& text) {
  const auto size = take_number<int64_t>(text);
  const auto modified = take_word(text);
  const auto version = take_number<size_t>(text), path = take_number<size_t>(text);
  if (!size || !modified || !version || !path || *version > text.size() || *path > text.size() - *version) {
    return std::nullopt;
  }
  TreeFile file{.path = std::string(text.substr(*version, *path)),
                .size = *size,
                .version = std::string(text.substr(0, *version)),
                .modified = FileTime::of_ns_text(*modified)};
  text.remove_prefix(*version + *path);
  return file;
}

// Nothing where a byte is not what was written.
std::optional<std::vector<TreeFile>> files_of(std::string_view text) {
  if (!text.starts_with(kMagic) || text.size() < kMagic.size() + kHash) return std::nullopt;
  const std::string_view hash = text.substr(kMagic.size(), kHash);
  text.remove_prefix(kMagic.size() + kHash);
  if (to_hex(xxh3_128(text)) != hash) return std::nullopt;
  std::vector<TreeFile> files;
  while (!text.empty()) {
    auto file = take_file(text);
    if (!file) return std::nullopt;
    files.push_back(*std::move(file));
  }
  return files;
}

std::string path_in(const std::string& folder, const Location& root) {
  const Hash128 name = xxh3_128(root.storage->identity() + "\n" + root.key);
  return (std::filesystem::path(folder) / fmt::format("robot-{}.files", to_hex(name))).string();
}

}  // namespace

KeptFiles::KeptFiles(const std::string& folder, Location root)
    : root_(std::move(root)), path_(path_in(folder, root_)) {}

Result<Tree> KeptFiles::list() {
  if (auto kept = read()) {
    Tree tree = Tree::of(root_, *std::move(kept));
    ASSIGN_OR_RETURN(const auto meta, Tree::files_below(root_, kMeta));
    if (std::ranges::equal(meta, tree.below(kMeta), is_same)) {
      was_kept_ = true;
      return tree;
    }
  }
  ASSIGN_OR_RETURN(Tree tree, Tree::list(root_));
  keep(tree);
  return tree;
}

std::optional<std::vector<TreeFile>> KeptFiles::read() const {
  const auto place = open_url(path_);
  if (!place) return std::nullopt;
  const auto text = read_object(*place->storage, place->key, kMostBytes);
  return text ? files_of(*text) : std::nullopt;
}

void KeptFiles::keep(const Tree& tree) const {
  // Without versions nobody could tell whether a file was replaced.
  if (std::ranges::any_of(tree.files(), [](const TreeFile& file) { return file.version.empty(); })) return;
  const std::string files = text_of(tree.files());
  const auto place = open_url(path_);
  const auto written =
      place ? write_object(*place->storage, place->key, fmt::format("{}{}{}", kMagic, to_hex(xxh3_128(files)), files))
            : tl::unexpected(place.error());
  if (!written) {
    log(LogLevel::kWarning, "the list of files of {} is not kept for the next start: {}", root_.url,
        written.error().to_string());
  }
}

Result<std::string> KeptFiles::change_since(const Tree& tree, const std::stop_token& stop) const {
  ASSIGN_OR_RETURN(const Tree now, Tree::list(root_.with_stop(stop)));
  for (const TreeFile& file : tree.files()) {
    const TreeFile* const there = now.find(file.path);
    if (there == nullptr) return file.path + " is gone";
    if (!is_same(*there, file)) return file.path + " was replaced";
  }
  return std::string();
}

bool KeptFiles::is_fresh() const {
  std::error_code failed;
  const auto written = std::filesystem::last_write_time(path_, failed);
  if (failed) return false;
  const auto age = std::filesystem::file_time_type::clock::now() - written;
  return age >= age.zero() && age < kFresh;
}

void KeptFiles::note_true() const {
  std::error_code failed;
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type::clock::now(), failed);
}

void KeptFiles::forget() const {
  std::error_code failed;
  std::filesystem::remove(path_, failed);
}

FilesCheck::FilesCheck(const KeptFiles& kept, const Tree& tree)
    : kept_(kept), tree_(tree), thread_("mr-files", [this] { run(); }) {}

FilesCheck::~FilesCheck() {
  stop_.request_stop();
}

void FilesCheck::run() {
  if (kept_.is_fresh()) return;
  const auto change = kept_.change_since(tree_, stop_.get_token());
  if (!change) {
    if (stop_.stop_requested()) return;
    log(LogLevel::kWarning, "{}: whether files were replaced since the last start is not known: {}", kept_.root().url,
        change.error().to_string());
    return;
  }
  if (change->empty()) return kept_.note_true();
  kept_.forget();
  MutexLock lock(mutex_);
  change_ = *change;
}

Status FilesCheck::state() const {
  MutexLock lock(mutex_);
  if (change_.empty()) return {};
  return fail(ErrorCode::kUnavailable,
              "{}: {} since its files were listed for an earlier start, while meta/ stayed as it was; open the dataset "
              "again, and its files are listed anew",
              kept_.root().url, change_);
}

}  // namespace millrace::lerobot
