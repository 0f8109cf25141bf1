// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/activities.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "millrace/base/text/units.h"

namespace millrace::loader {

Activities::Scope::Scope(Activities* list, std::string what) : list_(list) {
  if (list_ == nullptr) return;
  MutexLock lock(list_->mutex_);
  entry_ = list_->entries_.insert(list_->entries_.end(), {std::move(what), Clock::now()});
}

Activities::Scope::~Scope() {
  if (list_ == nullptr) return;
  MutexLock lock(list_->mutex_);
  list_->entries_.erase(entry_);
}

std::string Activities::describe(size_t most) {
  MutexLock lock(mutex_);
  if (entries_.empty()) return "no request";
  const auto now = Clock::now();
  std::string text;
  size_t listed = 0;
  for (const Entry& entry : entries_) {
    if (listed == most) return fmt::format("{} and {} more", text, entries_.size() - listed);
    const double age = std::chrono::duration<double>(now - entry.since).count();
    text += fmt::format("{}{} (for {})", listed++ == 0 ? "" : ", ", entry.what, format_duration(age));
  }
  return text;
}

}  // namespace millrace::loader
