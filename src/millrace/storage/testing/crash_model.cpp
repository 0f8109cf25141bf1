// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/crash_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace millrace {
namespace {

constexpr size_t kBlockBytes = 4096;  // what a disk keeps or loses as one

size_t pick(std::mt19937_64& random, size_t count) {
  return random() % count;
}

// One time in four all writes survive, one time in four none since the sync, else a mixture.
std::string surviving_content(const std::string& synced, const std::string& current, std::mt19937_64& random) {
  const size_t choice = pick(random, 4);
  if (choice == 0) return current;
  if (choice == 1) return synced;
  const size_t shortest = std::min(synced.size(), current.size());
  const size_t longest = std::max(synced.size(), current.size());
  std::string content = synced;
  content.resize(choice == 2 ? current.size() : shortest + pick(random, longest - shortest + 1), '\0');
  for (size_t begin = 0; begin < std::min(content.size(), current.size()); begin += kBlockBytes) {
    const size_t size = std::min({kBlockBytes, content.size() - begin, current.size() - begin});
    if (pick(random, 2) == 0) content.replace(begin, size, current, begin, size);
  }
  return content;
}

std::string read_real_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

CrashModel::CrashModel(std::string root) : root_(std::move(root)) {
  load();
}

void CrashModel::load() {
  files_.clear();
  directories_.clear();
  directories_[root_];
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
    const std::string path = entry.path().string();
    Entry state{Kind::kDirectory};
    if (entry.is_directory()) {
      directories_[path];
    } else {
      const std::string content = read_real_file(path);
      state = {Kind::kFile, files_.size()};
      files_.push_back({content, content});
    }
    history_of(path) = {state};
  }
}

CrashModel::History& CrashModel::history_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  History& history = directories_[path.substr(0, slash)][path.substr(slash + 1)];
  if (history.empty()) history.push_back({});
  return history;
}

void CrashModel::set(const std::string& path, Entry entry) {
  if (follows(path)) history_of(path).push_back(entry);
}

CrashModel::File* CrashModel::file_of(int fd) {
  const auto found = open_files_.find(fd);
  return found == open_files_.end() ? nullptr : &files_[found->second];
}

void CrashModel::opened(int fd, const std::string& path, bool may_create) {
  closed(fd);
  if (directories_.contains(path)) {
    open_directories_[fd] = path;
    return;
  }
  if (!follows(path)) return;
  Entry entry = history_of(path).back();
  if (entry.kind == Kind::kNothing && may_create) {
    entry = {Kind::kFile, files_.size()};
    files_.emplace_back();
    set(path, entry);
  }
  if (entry.kind == Kind::kFile) open_files_[fd] = entry.file;
}

void CrashModel::made_unnamed(int fd) {
  closed(fd);
  open_files_[fd] = files_.size();
  files_.emplace_back();
}

void CrashModel::named(int fd, const std::string& path) {
  if (const auto found = open_files_.find(fd); found != open_files_.end()) set(path, {Kind::kFile, found->second});
}

void CrashModel::closed(int fd) {
  open_files_.erase(fd);
  open_directories_.erase(fd);
}

void CrashModel::wrote(int fd, int64_t offset, std::string_view bytes) {
  File* file = file_of(fd);
  if (file == nullptr) return;
  const auto begin = static_cast<size_t>(offset);
  if (file->current.size() < begin + bytes.size()) file->current.resize(begin + bytes.size(), '\0');
  file->current.replace(begin, bytes.size(), bytes);
}

void CrashModel::truncated(int fd, int64_t size) {
  if (File* file = file_of(fd)) file->current.resize(static_cast<size_t>(size), '\0');
}

void CrashModel::file_synced(int fd) {
  if (File* file = file_of(fd)) file->synced = file->current;
}

void CrashModel::directory_synced(int fd) {
  const auto found = open_directories_.find(fd);
  if (found == open_directories_.end()) return;
  for (auto& [name, history] : directories_[found->second]) history = {history.back()};
}

void CrashModel::all_synced() {
  for (File& file : files_) file.synced = file.current;
  for (auto& [path, names] : directories_) {
    for (auto& [name, history] : names) history = {history.back()};
  }
}

void CrashModel::renamed(const std::string& from, const std::string& to) {
  linked(from, to);
  unlinked(from);
}

void CrashModel::linked(const std::string& from, const std::string& to) {
  if (follows(from)) set(to, history_of(from).back());
}

void CrashModel::unlinked(const std::string& path) {
  set(path, {});
}

void CrashModel::made_directory(const std::string& path) {
  if (!follows(path)) return;
  set(path, {Kind::kDirectory});
  directories_[path];
}

void CrashModel::crash(std::mt19937_64& random) {
  for (const auto& entry : std::filesystem::directory_iterator(root_)) std::filesystem::remove_all(entry.path());
  std::map<size_t, std::string> contents;
  restore(root_, directories_, contents, random);
  open_files_.clear();
  open_directories_.clear();
  load();
}

void CrashModel::restore(const std::string& directory, const std::map<std::string, Names>& before,
                         std::map<size_t, std::string>& contents, std::mt19937_64& random) {
  const auto names = before.find(directory);
  if (names == before.end()) return;
  for (const auto& [name, history] : names->second) {
    const Entry entry = history[pick(random, history.size())];
    const std::string path = directory + "/" + name;
    if (entry.kind == Kind::kDirectory) {
      std::filesystem::create_directory(path);
      restore(path, before, contents, random);
    } else if (entry.kind == Kind::kFile) {
      const File& file = files_[entry.file];
      if (!contents.contains(entry.file)) contents[entry.file] = surviving_content(file.synced, file.current, random);
      std::ofstream(path, std::ios::binary) << contents[entry.file];  // both names of a file that has two
    }
  }
}

}  // namespace millrace
