// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/sweep.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "millrace/link/emptied.h"
#include "millrace/link/renamed.h"
#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

constexpr size_t kKnownPage = 4096;
// Objects that are replaced at the end of one sweep; more wait for the next.
constexpr size_t kMostReplaced = 100'000;
// Missing files of an emptied side that are remembered: one of them that is back is enough.
constexpr size_t kMostMissing = 1000;
// Keys that are no path, of one look: a bucket may be full of them.
constexpr int64_t kMostIllegal = 100;

// The files of the state in byte order of the path.
class KnownFiles {
 public:
  KnownFiles(LinkState& state, std::string after) : state_(state), after_(std::move(after)) {}
  [[nodiscard]] Result<std::optional<LinkFile>> next() {
    if (at_ == page_.size()) {
      const std::string after = page_.empty() ? after_ : page_.back().path;
      if (ended_) return std::nullopt;
      ASSIGN_OR_RETURN(page_, state_.page(after, "", kKnownPage));
      at_ = 0;
      ended_ = page_.empty();
      if (ended_) return std::nullopt;
    }
    return page_[at_++];
  }

 private:
  LinkState& state_;
  const std::string after_;
  std::vector<LinkFile> page_;
  size_t at_ = 0;
  bool ended_ = false;
};

// A side, one entry ahead.
class Side {
 public:
  Side(const Location& root, const sync::Filter& filter, const sync::KeyRange& range, const std::stop_token& stop)
      : walk_(root, {.filter = &filter, .stop = stop, .range = &range}) {}
  [[nodiscard]] Status advance() {
    ASSIGN_OR_RETURN(entry, walk_.next());
    return {};
  }
  std::optional<sync::Entry> entry;

 private:
  sync::EntryWalk walk_;
};

void add_deletion(Deletions& deletions, const std::string& path, int64_t most) {
  if (++deletions.count <= most) deletions.paths.push_back(path);
}

// A sweep's view of the side on which files are gone.
struct OtherSide {
  std::string_view name, own_name;  // "the bucket", "the directory": where they would be removed
  int64_t files = 0, known = 0;     // all, and those that the link knew there
};

// Why none of these may be removed; empty when they may.
std::string reason_to_keep(const LinkConfig& config, const Deletions& deletions, const OtherSide& other) {
  if (deletions.count == 0) return "";
  const std::string_view other_side = other.name;
  if (other.known == 0) {
    return fmt::format(
        "{} {}: nothing is removed from {} before one of these is back; if all were removed on purpose, "
        "remove them from {} yourself",
        other_side, other.files == 0 ? "has no files at all" : "has none of the files that it had", other.own_name,
        other.own_name);
  }
  if (deletions.count > config.max_delete) {
    return fmt::format("{} files are gone from {}, more than the {} of --max-delete", deletions.count, other_side,
                       config.max_delete);
  }
  return "";
}

class Sweep {
 public:
  Sweep(const LinkConfig& config, LinkState& state, Carrier& carrier, const std::stop_token& stop)
      : config_(config), state_(state), carrier_(carrier), stop_(stop) {}

  [[nodiscard]] Result<SweepFindings> look(const Location& here, const Location& there, const sync::Filter& filter,
                                           sync::KeyRange& range) {
    ASSIGN_OR_RETURN(emptied_, read_emptied(config_));
    Side left(here, filter, range, stop_), right(there, filter, range, stop_);
    const Status merged = merge(left, right, filter, range);
    // Whatever ends the merge, copies that run are waited for, and remembered.
    const Status finished = carrier_.finish();
    RETURN_IF_ERROR(merged);
    RETURN_IF_ERROR(finished);
    found_.known_here += stay_here_.found();
    found_.known_there += stay_there_.found();
    carrier_.forget_carried();
    return std::move(found_);
  }

  [[nodiscard]] Status end(const Location& here, const Location& there, const sync::Filter& filter, SweepFindings found,
                           const LoadRows& load, SweepReport& report) {
    found_ = std::move(found);
    RETURN_IF_ERROR(load(found_.delete_here.paths));
    RETURN_IF_ERROR(load(found_.delete_there.paths));
    RETURN_IF_ERROR(load(found_.replaced));
    ASSIGN_OR_RETURN(const RenamedStubs renamed, find_renamed(here, filter));
    RETURN_IF_ERROR(load(renamed.paths()));
    RETURN_IF_ERROR(replace(renamed));
    RETURN_IF_ERROR(remove(renamed));
    RETURN_IF_ERROR(carrier_.finish());
    RETURN_IF_ERROR(clear_problems(here, there));
    report.not_deleted = std::move(not_deleted_);
    return {};
  }

 private:
  Status merge(Side& left, Side& right, const sync::Filter& filter, sync::KeyRange& range) {
    KnownFiles known_files(state_, range.after());
    RETURN_IF_ERROR(left.advance());
    RETURN_IF_ERROR(right.advance());
    ASSIGN_OR_RETURN(std::optional<LinkFile> known, known_files.next());
    while (left.entry || right.entry || known) {
      if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      std::string path = left.entry ? left.entry->path : right.entry ? right.entry->path : known->path;
      if (right.entry && right.entry->path < path) path = right.entry->path;
      if (known && known->path < path) path = known->path;
      // Another task may have taken the end of the range by now; up to there both listings are whole.
      if (range.is_behind(path)) return {};
      range.begin(path);

      std::optional<ObjectInfo> here, there;
      std::optional<LinkFile> had;
      bool is_file = true, is_link = false, is_illegal = false;
      if (left.entry && left.entry->path == path) {
        is_link = left.entry->kind == sync::Entry::Kind::kLink;
        is_file &= take(*left.entry, found_.files_here, here);
        RETURN_IF_ERROR(left.advance());
      }
      if (right.entry && right.entry->path == path) {
        is_illegal = right.entry->kind == sync::Entry::Kind::kIllegal;
        is_file &= take(*right.entry, found_.files_there, there);
        RETURN_IF_ERROR(right.advance());
      }
      if (known && known->path == path) {
        had = std::move(known);
        ASSIGN_OR_RETURN(known, known_files.next());
      }
      RETURN_IF_ERROR(count_known(path, had, here, there));
      if (is_illegal && ++illegal_ <= kMostIllegal) RETURN_IF_ERROR(carrier_.refuse(path, kNoPath));
      if (is_link) RETURN_IF_ERROR(tell_of_link(path, had, there));
      // What a filter leaves out, and what is no file on one side, stays as it is.
      if (!is_file || (!here && !there && !filter.passes(path))) continue;
      ASSIGN_OR_RETURN(const Step left_over, carrier_.handle(path, had, here, there));
      if (left_over == Step::kDeleteHere) add_deletion(found_.delete_here, path, config_.max_delete);
      if (left_over == Step::kDeleteThere) add_deletion(found_.delete_there, path, config_.max_delete);
      if (left_over == Step::kExport) {
        found_.replaced.size() < kMostReplaced ? found_.replaced.push_back(path) : carrier_.postpone();
      }
    }
    return {};
  }

  // Whether files of a side that the link knew are still there. One that the link itself brought there since the last
  // sweep tells nothing, unless another that is gone came later: that one was there beside it.
  class Staying {
   public:
    // `order`: of carrier_.order_carried().
    void saw(bool is_there, int64_t order) {
      if (is_there && order == 0) ++known_;
      if (is_there && order > 0) oldest_carried_ = std::min(oldest_carried_, order);
      if (!is_there) youngest_gone_ = std::max(youngest_gone_, order);
    }
    void saw_again() { ++known_; }
    int64_t found() const { return known_ + (oldest_carried_ < youngest_gone_ ? 1 : 0); }

   private:
    int64_t known_ = 0, oldest_carried_ = INT64_MAX, youngest_gone_ = 0;
  };

  Status count_known(const std::string& path, const std::optional<LinkFile>& had, const std::optional<ObjectInfo>& here,
                     const std::optional<ObjectInfo>& there) {
    if (!had) {
      if (!here || emptied_.directory || stay_here_.found() > 0) return {};
      // A known file under a new name.
      ASSIGN_OR_RETURN(const std::optional<LinkFile> old, state_.find_here(here->version));
      if (old) stay_here_.saw_again();
      return {};
    }
    const auto is_back = [&](const MissingFiles& missing) {
      const auto found = missing.find(path);
      return found != missing.end() && found->second == row_version(*had);
    };
    if (emptied_.directory) {
      if (here && had->here.version == here->version && is_back(*emptied_.directory)) stay_here_.saw_again();
    } else if (had->state != LinkFile::State::kGoneHere) {
      stay_here_.saw(here.has_value(), carrier_.order_carried(path));
    }
    if (emptied_.bucket) {
      if (there && had->there == there->version && is_back(*emptied_.bucket)) stay_there_.saw_again();
    } else if (had->state != LinkFile::State::kGoneThere) {
      stay_there_.saw(there.has_value(), carrier_.order_carried(path));
    }
    return {};
  }

  // A symbolic link is neither followed nor replaced; an object that should come to its place is told.
  Status tell_of_link(const std::string& path, const std::optional<LinkFile>& known,
                      const std::optional<ObjectInfo>& there) {
    const bool is_new = there && (known ? known->there != there->version : config_.imports.added);
    if (!is_new || (known && !config_.imports.changed)) return state_.clear_problem(path);
    return carrier_.refuse(path, "in the directory is a symbolic link of this name: remove or rename it");
  }

  // Whether it is a file; then `info` has it.
  bool take(const sync::Entry& entry, int64_t& files, std::optional<ObjectInfo>& info) {
    if (entry.kind == sync::Entry::Kind::kFile) {
      ++files;
      info = entry.info;
      return true;
    }
    if (entry.kind != sync::Entry::Kind::kIllegal) ++found_.passed;
    if (entry.kind == sync::Entry::Kind::kUnreadable) found_.unreadable = entry.path;
    return false;
  }

  // Whether another node may have released this file, so that its object is all that there is of it.
  bool may_be_released(const LinkFile& file) const {
    return file.state == LinkFile::State::kReleased || config_.take_over_s > 0;
  }

  // A listing is no snapshot, and a copy may have failed: so a released file that is gone may have another name.
  Result<RenamedStubs> find_renamed(const Location& here, const sync::Filter& filter) {
    std::set<std::string> versions;
    for (const auto& paths : {found_.replaced, found_.delete_there.paths}) {
      for (const std::string& path : paths) {
        ASSIGN_OR_RETURN(const std::optional<LinkFile> file, state_.find(path));
        if (file && may_be_released(*file)) versions.insert(file->here.version);
      }
    }
    return RenamedStubs::find(config_, here, filter, versions, stop_);
  }

  Result<std::string> holder_of(const RenamedStubs& renamed, const std::string& path) {
    ASSIGN_OR_RETURN(const std::optional<LinkFile> file, state_.find(path));
    return file && may_be_released(*file) ? renamed.holder_of(*file, state_) : std::string();
  }

  // Objects of released files that have another name now are replaced once that name has an object: from the end of a
  // chain of renames to its begin.
  Status replace(const RenamedStubs& renamed) {
    while (!found_.replaced.empty()) {
      std::vector<std::string> left;
      std::map<std::string, std::string> holders;
      for (const std::string& path : found_.replaced) {
        ASSIGN_OR_RETURN(const std::string holder, holder_of(renamed, path));
        if (!holder.empty()) {
          left.push_back(path);
          holders.emplace(path, holder);
          continue;
        }
        if (const auto replaced = carrier_.replace(path); !replaced) {
          RETURN_IF_ERROR(state_.set_problem(path, replaced.error().to_string()));
        }
      }
      RETURN_IF_ERROR(carrier_.finish());
      if (left.size() == found_.replaced.size()) return wait_for_next(holders);
      found_.replaced = std::move(left);
    }
    return {};
  }

  // Files that have each other's names wait for each other: one of them gets its content, and needs its object no more.
  Status wait_for_next(const std::map<std::string, std::string>& holders) {
    for (const auto& [path, holder] : holders) {
      auto at = holders.find(holder);
      for (size_t i = 0; i < holders.size() && at != holders.end() && at->first != path; ++i)
        at = holders.find(at->second);
      if (at == holders.end() || at->first != path) continue;
      const auto brought = carrier_.bring_renamed(path);
      if (!brought) RETURN_IF_ERROR(state_.set_problem(path, brought.error().to_string()));
      if (!brought || !*brought) continue;
      carrier_.postpone();
      return {};
    }
    for (const auto& [path, holder] : holders) tell_needed(path, holder);
    return {};
  }

  void tell_needed(const std::string& path, const std::string& holder) {
    not_deleted_ = fmt::format("the object of {} has the content of {}, a released file", path, holder);
  }

  static constexpr std::string_view kNoPath =
      "is no path that a file can have: a part of the object's key is empty, \".\" or \"..\"; rename the object";

  // Such a key cannot be asked for.
  static Result<bool> is_listed(const Location& root, const std::string& path) {
    const std::string key = sync::prefix_of(root) + path;
    bool found = false;
    RETURN_IF_ERROR(for_each_object(*root.storage, key, [&](const ObjectInfo& object) -> Status {
      found |= object.key == key;
      return {};
    }));
    return found;
  }

  // Clears the problems of paths that exist on neither side.
  Status clear_problems(const Location& here, const Location& there) {
    constexpr size_t kMost = 1000;
    ASSIGN_OR_RETURN(const std::vector<Problem> problems, state_.problems(kMost));
    for (const Problem& each : problems) {
      if (each.error == kNoPath) {
        ASSIGN_OR_RETURN(const bool is_there, is_listed(there, each.path));
        if (!is_there) RETURN_IF_ERROR(state_.clear_problem(each.path));
        continue;
      }
      ASSIGN_OR_RETURN(const std::optional<LinkFile> known, state_.find(each.path));
      const auto is_gone = [&](const Location& root) {
        const auto now = root.storage->stat(root.child(each.path).key);
        return !now && now.error().code() == ErrorCode::kNotFound;
      };
      const bool is_here = link_above(config_, each.path).empty() && !is_gone(here);
      if (!known && !is_here && is_gone(there)) RETURN_IF_ERROR(state_.clear_problem(each.path));
    }
    return state_.commit();
  }

  // The files missing on a side; nullopt: nothing, or some of what the link knew is still there.
  Result<std::optional<MissingFiles>> missing_now(const std::optional<MissingFiles>& before, const Deletions& gone,
                                                  int64_t known) {
    if (gone.count == 0 || known > 0) return std::nullopt;
    if (before) return before;
    MissingFiles missing;
    for (const std::string& path : gone.paths) {
      if (missing.size() == kMostMissing) break;
      ASSIGN_OR_RETURN(const std::optional<LinkFile> file, state_.find(path));
      if (file) missing.emplace(path, row_version(*file));
    }
    return missing;
  }

  // Writes down whether a side is empty, so that files that come later do not hide it.
  Status note_emptied() {
    ASSIGN_OR_RETURN(const EmptiedSides before, read_emptied(config_));
    EmptiedSides now;
    ASSIGN_OR_RETURN(now.bucket, missing_now(before.bucket, found_.delete_here, found_.known_there));
    ASSIGN_OR_RETURN(now.directory, missing_now(before.directory, found_.delete_there, found_.known_here));
    if (now == before) return {};
    RETURN_IF_ERROR(check_marker(config_));
    return write_emptied(config_, now);
  }

  Status remove(const RenamedStubs& renamed) {
    if (found_.unreadable.empty()) RETURN_IF_ERROR(note_emptied());
    if (found_.delete_here.count + found_.delete_there.count == 0) return {};
    if (!found_.unreadable.empty()) {
      not_deleted_ = found_.unreadable + " cannot be read, and may hold anything";
      return {};
    }
    RETURN_IF_ERROR(check_marker(config_));
    const std::string here = reason_to_keep(config_, found_.delete_here,
                                            {"the bucket", "the directory", found_.files_there, found_.known_there});
    const std::string there = reason_to_keep(config_, found_.delete_there,
                                             {"the directory", "the bucket", found_.files_here, found_.known_here});
    if (!here.empty() || !there.empty()) not_deleted_ = here.empty() ? there : here;
    if (here.empty()) {
      for (const std::string& path : found_.delete_here.paths) carrier_.remove_here(path);
    }
    if (there.empty()) {
      for (const std::string& path : found_.delete_there.paths) {
        ASSIGN_OR_RETURN(const std::string holder, holder_of(renamed, path));
        if (holder.empty()) {
          carrier_.remove_there(path);
          continue;
        }
        tell_needed(path, holder);
      }
    }
    return {};
  }

  const LinkConfig& config_;
  LinkState& state_;
  Carrier& carrier_;
  const std::stop_token stop_;
  SweepFindings found_;
  EmptiedSides emptied_;
  Staying stay_here_, stay_there_;
  int64_t illegal_ = 0;
  std::string not_deleted_;
};

}  // namespace

Result<sync::Filter> filter_of(const LinkConfig& config) {
  sync::Filter filter;
  for (const std::string& line : config.filter) RETURN_IF_ERROR(filter.add_lines(line, "the filter of the link"));
  return filter;
}

Result<SweepReport> sweep(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
                          Carrier& carrier, const std::stop_token& stop) {
  const Clock::time_point began = Clock::now();
  sync::KeyRange everything("", "");
  SweepReport report;
  ASSIGN_OR_RETURN(SweepFindings found, sweep_range(config, here, there, state, carrier, everything, stop));
  report.files_here = found.files_here;
  report.files_there = found.files_there;
  report.passed = found.passed;
  const LoadRows none = [](const std::vector<std::string>&) { return Status(); };
  RETURN_IF_ERROR(end_sweep(config, here, there, state, carrier, std::move(found), none, report, stop));
  report.counts = carrier.take_counts();
  report.there_changed = changed_there(report.counts);
  report.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return report;
}

Result<SweepFindings> sweep_range(const LinkConfig& config, const Location& here, const Location& there,
                                  LinkState& state, Carrier& carrier, sync::KeyRange& range,
                                  const std::stop_token& stop) {
  RETURN_IF_ERROR(check_marker(config));
  ASSIGN_OR_RETURN(const sync::Filter filter, filter_of(config));
  return Sweep(config, state, carrier, stop).look(here, there, filter, range);
}

Status end_sweep(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
                 Carrier& carrier, SweepFindings findings, const LoadRows& load, SweepReport& report,
                 const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const sync::Filter filter, filter_of(config));
  return Sweep(config, state, carrier, stop).end(here, there, filter, std::move(findings), load, report);
}

bool changed_there(const LinkCounts& counts) {
  return counts.imported + counts.deleted_here + counts.conflicts > 0;
}

}  // namespace millrace::link
