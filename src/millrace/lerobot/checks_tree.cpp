// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "millrace/base/io/path.h"
#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/formats/mp4.h"
#include "millrace/lerobot/tree.h"

namespace millrace::lerobot {
namespace {

namespace fs = std::filesystem;

// What the Hub advises: at most 100,000 files in a repository and 10,000 in a folder; and a set of this many files that
// are small on average meets the rate limit.
constexpr size_t kMostFiles = 100'000;
constexpr int64_t kMostInFolder = 10'000, kManyFiles = 10'000, kSmallFile = 1 << 20;

// A file's name that a step which did not finish leaves.
bool is_leftover_name(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEnds = {".part", ".tmp", ".incomplete", ".crdownload"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_leftover_folder(std::string_view name, bool at_top) {
  if (at_top && name == "images") return true;
  const bool temporary = name == "tmp" || name == "temp" || name.starts_with("tmp_") || name.starts_with(".tmp");
  return temporary || name.ends_with("_old") || name.ends_with("_v30");
}

// The part of the path that is left over; empty: none is.
std::string leftover(std::string_view path) {
  const std::vector<std::string_view> parts = split(path, '/');
  size_t length = 0;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    length += parts[i].size() + (i > 0 ? 1 : 0);
    if (is_leftover_folder(parts[i], i == 0)) return std::string(path.substr(0, length)) + "/";
  }
  return is_leftover_name(parts.back()) ? std::string(path) : std::string();
}

void check_leftovers(const Tree& tree, Report& report) {
  std::map<std::string, int64_t> files;
  for (const TreeFile& file : tree.files()) {
    if (std::string what = leftover(file.path); !what.empty()) ++files[what];
  }
  for (const auto& [what, count] : files) {
    const bool folder = what.ends_with('/');
    report.add(9, {.file = what},
               folder ? fmt::format("a folder with {} files is left over", count)
                      : std::string("a file is left over of a write or download that did not finish"));
  }
}

// What a converter leaves beside the dataset.
Status check_siblings(const Tree& tree, Report& report) {
  const Location& root = tree.root();
  if (root.key.empty()) return {};
  // LeRobot's converter keeps the source as _old on purpose; _v30 is what it had not finished.
  for (const auto& [end, severity] : {std::pair("_old", Severity::kNote), std::pair("_v30", Severity::kWarning)}) {
    const auto page = root.storage->list(root.key + end + "/", {.max_keys = 1});
    if (!page) continue;  // a neighbour that may not be listed is none of this dataset's
    if (!page->objects.empty()) {
      report.add(9, {.file = "."}, fmt::format("beside it lies {}{}, which a conversion leaves", root.url, end), {},
                 severity);
    }
  }
  return {};
}

// In the Hub's cache a snapshot is made of links into the blobs beside it.
bool is_hub_cache(const fs::path& root) {
  return root.parent_path().filename() == "snapshots";
}

Status check_links(const Tree& tree, Report& report) {
  if (!tree.is_local() || !tree.root().storage->capabilities().folders) return {};
  const fs::path root = "/" + tree.root().key;
  std::error_code error;
  const fs::path real_root = fs::canonical(root, error);
  if (error || is_hub_cache(root)) return {};  // a storage in memory has no such folder
  ListOptions options{.follow_links = false, .others = true};
  ListPages pages(*tree.root().storage, tree.root().key + "/", options);
  while (!pages.is_at_end()) {
    ASSIGN_OR_RETURN(const ListPage page, pages.next());
    for (const ObjectInfo& object : page.objects) {
      if (object.kind != ObjectKind::kLink) continue;
      const std::string path = object.key.substr(tree.root().key.size() + 1);
      const fs::path target = fs::canonical("/" + object.key, error);
      const auto [end, unused] = std::mismatch(real_root.begin(), real_root.end(), target.begin(), target.end());
      if (error) {
        report.add(5, {.file = path}, "it is a symbolic link that leads nowhere");
      } else if (end != real_root.end()) {
        report.add(5, {.file = path}, "it is a symbolic link that leads out of the dataset");
      }
    }
  }
  return {};
}

// Pointers have about 130 bytes, so that few files are looked into.
Status check_pointers(const Tree& tree, Report& report, std::vector<std::string>& pointers) {
  for (const TreeFile& file : tree.files()) {
    if (file.size < 100 || file.size > 200) continue;
    ASSIGN_OR_RETURN(const std::string text, tree.read(file.path, 1 << 10));
    if (!formats::is_lfs_pointer(text)) continue;
    pointers.push_back(file.path);
    report.add(6, {.file = file.path}, "it holds the pointer of Git LFS and not the content");
  }
  return {};
}

int64_t number_in(std::string_view name) {
  const size_t begin = name.find_first_of("0123456789");
  if (begin == name.npos) return -1;
  int64_t number = 0;
  for (size_t i = begin; i < name.size() && name[i] >= '0' && name[i] <= '9' && number < 1'000'000'000; ++i) {
    number = number * 10 + (name[i] - '0');
  }
  return number;
}

// Checks the numbers of folders chunk-N and files file-N or episode_N below `prefix`.
void check_order(const Tree& tree, std::string_view prefix, Report& report) {
  std::string folder, before;
  int64_t number_before = -1;
  for (const TreeFile& file : tree.below(prefix)) {
    const std::string chunk(folder_of(file.path));
    if (chunk == folder) continue;
    folder = chunk;
    const std::string name(base_name(chunk)), parent(folder_of(chunk));
    if (!name.starts_with("chunk-")) continue;
    const int64_t number = number_in(name);
    if (parent == before && number < number_before) {
      report.add(22, {.file = chunk}, fmt::format("by name it comes behind chunk {}", number_before));
      return;
    }
    before = parent;
    number_before = number;
  }
}

void check_file_count(const Tree& tree, Report& report) {
  std::map<std::string, int64_t> in_folder;
  for (const TreeFile& file : tree.files()) ++in_folder[std::string(folder_of(file.path))];
  for (const auto& [folder, count] : in_folder) {
    if (count <= kMostInFolder) continue;
    report.add(72, {.file = folder}, fmt::format("the folder has {} files, the Hub takes 10,000", format_count(count)));
  }
  const auto files = static_cast<int64_t>(tree.files().size());
  const int64_t mean = tree.bytes() / std::max<int64_t>(files, 1);
  if (tree.files().size() > kMostFiles || (files > kManyFiles && mean < kSmallFile)) {
    report.add(72, {.file = "."},
               fmt::format("{} files of {} on average: {} in all", format_count(files), format_bytes(mean),
                           format_bytes(tree.bytes())));
  }
}

// A snapshot in the Hub's cache, .../datasets--ORG--NAME/snapshots/COMMIT, has the names of its commits beside it.
Status check_hub_refs(const Tree& tree, Report& report) {
  const std::string& key = tree.root().key;
  const size_t mark = key.rfind("/snapshots/");
  if (mark == key.npos) return {};
  const std::string commit = key.substr(mark + std::string_view("/snapshots/").size());
  if (commit.find('/') != commit.npos) return {};
  const std::string refs = key.substr(0, mark) + "/refs/";
  std::map<std::string, std::string> commits;
  RETURN_IF_ERROR(for_each_object(*tree.root().storage, refs, [&](const ObjectInfo& object) -> Status {
    ASSIGN_OR_RETURN(const std::string text, read_object(*tree.root().storage, object.key, 1 << 10));
    commits[object.key.substr(refs.size())] = trimmed(text);
    return {};
  }));
  const auto main = commits.find("main");
  for (const auto& [name, of_name] : commits) {
    const bool is_version = name.size() > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9';
    if (!is_version || main == commits.end() || of_name == main->second) continue;
    report.add(71, {.file = "."},
               fmt::format("the tag {} is the commit {}, and main is {}", name, of_name.substr(0, 8),
                           main->second.substr(0, 8)));
  }
  return {};
}

}  // namespace

Status check_tree(const Tree& tree, Report& report, std::vector<std::string>& pointers) {
  check_leftovers(tree, report);
  RETURN_IF_ERROR(check_siblings(tree, report));
  RETURN_IF_ERROR(check_links(tree, report));
  RETURN_IF_ERROR(check_pointers(tree, report, pointers));
  for (const char* prefix : {"data/", "meta/episodes/", "videos/"}) check_order(tree, prefix, report);
  check_file_count(tree, report);
  return check_hub_refs(tree, report);
}

}  // namespace millrace::lerobot
