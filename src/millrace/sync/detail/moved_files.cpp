// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/moved_files.h"

#include <functional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/sync/removal.h"

namespace millrace::sync {
namespace {

constexpr size_t kBatch = 1000;  // the keys that S3 removes with one request

// The items of a spool in the order in which they were added.
class Items {
 public:
  explicit Items(PathSpool& spool) : spool_(spool) {}
  Result<const PathSpool::Item*> front() {
    if (at_ == batch_.size()) {
      ASSIGN_OR_RETURN(batch_, spool_.take(kBatch));
      at_ = 0;
    }
    return at_ == batch_.size() ? nullptr : &batch_[at_];
  }
  void pop() { ++at_; }

 private:
  PathSpool& spool_;
  std::vector<PathSpool::Item> batch_;
  size_t at_ = 0;
};

// Adds the folders above `path`, up to but not including the source: "a/", "a/b/".
void add_folders_of(std::string_view path, std::set<std::string, std::less<>>& folders) {
  for (size_t slash = path.rfind('/'); slash != path.npos && slash > 0; slash = path.rfind('/', slash - 1)) {
    if (!folders.emplace(path.substr(0, slash + 1)).second) return;  // its parents were added with it
  }
}

}  // namespace

void MovedFiles::add(const std::string& path, const ObjectInfo& source) {
  if (spooled_) spooled_ = paths_.add({path, source.size, recorded_version(source)});
}

Result<MovedFiles::Report> MovedFiles::remove(const Location& source, const Filter& filter,
                                              const std::stop_token& stop) {
  RETURN_IF_ERROR(std::move(spooled_));
  Report report;
  const auto keep = [&](Error error) {
    ++report.failed;
    if (!report.first_failure) report.first_failure = std::move(error);
  };
  Removal removal(*source.storage, false, [&](const std::string&, int64_t, const Status& removed) {
    if (removed) {
      ++report.files;
    } else {
      keep(removed.error());
    }
  });
  EntryWalk walk(source, {.filter = &filter, .stop = stop});
  Items items(paths_);
  std::set<std::string, std::less<>> emptied;
  for (const std::string& folder : folders_) add_folders_of(folder, emptied);
  std::optional<Entry> entry;
  for (;;) {
    ASSIGN_OR_RETURN(const PathSpool::Item* const item, items.front());
    if (item == nullptr) break;
    while (!entry || entry->path < item->path) {
      ASSIGN_OR_RETURN(entry, walk.next());
      if (!entry) break;
    }
    if (!entry) break;  // the others are gone already
    if (entry->path == item->path) {
      if (is_version(item->version, entry->info)) {
        add_folders_of(entry->path, emptied);
        removal.add(entry->path, entry->info.key, entry->info.size);
      } else {
        keep(
            Error(ErrorCode::kCorruption, source.child(item->path).url + ": changed after it was copied, so it stays"));
      }
    }
    items.pop();
  }
  removal.flush();
  // Folders that hold something else stay, and so does a source that was empty before.
  for (auto folder = emptied.rbegin(); folder != emptied.rend(); ++folder) {
    const std::string_view path = std::string_view(*folder).substr(0, folder->size() - 1);
    static_cast<void>(source.storage->remove_folder(prefix_of(source).append(path)));
  }
  if (report.files > 0 || !folders_.empty()) static_cast<void>(source.storage->remove_folder(source.key));
  return report;
}

}  // namespace millrace::sync
