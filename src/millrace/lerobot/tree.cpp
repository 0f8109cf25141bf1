// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/tree.h"

#include <algorithm>
#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace::lerobot {
namespace {

bool before(const TreeFile& file, std::string_view path) {
  return file.path < path;
}

}  // namespace

Result<std::vector<TreeFile>> Tree::files_below(const Location& root, std::string_view prefix) {
  std::vector<TreeFile> files;
  const std::string folder = root.key.empty() ? std::string() : root.key + "/";
  RETURN_IF_ERROR(
      with_context(for_each_object(*root.storage, folder + std::string(prefix),
                                   [&](const ObjectInfo& object) -> Status {
                                     const std::string_view path = std::string_view(object.key).substr(folder.size());
                                     if (path.starts_with(".git/")) return {};  // of a clone
                                     files.push_back({std::string(path), object.size, object.version, object.modified});
                                     return {};
                                   }),
                   root.url));
  std::ranges::sort(files, {}, &TreeFile::path);
  return files;
}

Tree Tree::of(Location root, std::vector<TreeFile> files) {
  Tree tree;
  tree.root_ = std::move(root);
  tree.files_ = std::move(files);
  return tree;
}

Result<Tree> Tree::list(const Location& root) {
  ASSIGN_OR_RETURN(std::vector<TreeFile> files, files_below(root, ""));
  Tree tree = of(root, std::move(files));
  if (tree.files_.empty()) {
    const bool is_file = !root.key.empty() && root.storage->stat(root.key);
    return fail(ErrorCode::kNotFound, "{}: {}", root.url,
                is_file ? "it is a file; name the folder of the dataset" : "no such folder, or it is empty");
  }
  return tree;
}

const TreeFile* Tree::find(std::string_view path) const {
  const auto found = std::lower_bound(files_.begin(), files_.end(), path, before);
  return found == files_.end() || found->path != path ? nullptr : &*found;
}

std::span<const TreeFile> Tree::below(std::string_view prefix) const {
  const auto begin = std::lower_bound(files_.begin(), files_.end(), prefix, before);
  auto end = begin;
  // Not a second search, as no string is known that comes right behind all that begin with the prefix.
  for (auto step = files_.end() - begin; step > 0;) {
    const auto half = step / 2;
    const auto middle = end + half;
    if (middle->path.compare(0, prefix.size(), prefix) <= 0) {
      end = middle + 1;
      step -= half + 1;
    } else {
      step = half;
    }
  }
  return {begin, end};
}

int64_t Tree::bytes() const {
  int64_t sum = 0;
  for (const TreeFile& file : files_) sum += file.size;
  return sum;
}

Result<std::unique_ptr<RandomReader>> Tree::open(std::string_view path) const {
  const Location at = root_.child(path);
  OpenOptions options;
  if (const TreeFile* file = find(path); file != nullptr && !file->version.empty()) {
    options.expected_version = file->version;
    options.known_size = file->size;
  }
  return at.storage->open_read(at.key, options);
}

Result<std::string> Tree::read(std::string_view path, int64_t limit_bytes) const {
  ASSIGN_OR_RETURN(const auto reader, open(path));
  return read_all(*reader, limit_bytes);
}

int threads_for(const Tree& tree, int wanted) {
  constexpr int kForService = 16;
  if (wanted > 0) return wanted;
  return tree.is_local() ? available_cpus() : kForService;
}

}  // namespace millrace::lerobot
