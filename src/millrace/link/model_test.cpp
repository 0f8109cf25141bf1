// SPDX-License-Identifier: Apache-2.0
// Random changes on both sides, sweeps between them that faults and kills cut, and a model that says what must be there
// in the end: every content that was written last on a side, and nothing that nobody wrote.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>

#include "millrace/link/release.h"
#include "millrace/link/stub.h"
#include "millrace/link/testing.h"

namespace millrace::link {
namespace {

namespace fs = std::filesystem;

class Model {
 public:
  // `lazy`: imported files are stubs until they are restored, which root may not have.
  Model(uint64_t seed, bool lazy) : random_(seed), link_(rules(random_, lazy)) {
    // One file on each side always stays, because an empty side removes nothing.
    link_.write("zz", "stays");
    link_.swept();
  }

  void step() {
    switch (random_() % 21) {
      case 0:
      case 1:
        write(path());
        break;
      case 2:
      case 3:
        put(path());
        break;
      case 4:
        remove(path());
        break;
      case 5:
        remove_object(path());
        break;
      case 6:
        rename(path(), path());
        break;
      case 7:
        check();
        break;
      case 8:
        append(path());
        break;
      case 9:
        change_mode(path());
        break;
      case 10:
        rename_folder();
        break;
      case 11:
        set_time(path());
        break;
      case 12:
        sweep_with_faults();
        break;
      case 13:
      case 14:
        release(path());
        break;
      case 15:
        restore();
        break;
      case 16:
        set_clock();
        break;
      case 17:
      case 18:
        sweep_until_killed();
        break;
      case 19:
        read(path());
        break;
      default:
        link_.reopen();
        break;
    }
  }

  // Every content that was the last of its path on a side, and was not removed by a person since, is somewhere: at its
  // path, under the name of a conflict, or in a trash.
  void check() {
    settle();
    restore();
    settle();
    EXPECT_EQ(sweep().failed, 0);
    const Files files = link_.files(), objects = link_.objects();
    EXPECT_TRUE(files == objects) << "files: " << told(files) << "\nobjects: " << told(objects);
    std::set<std::string> kept;
    for (const Files& all : {files, link_.trash_here(true), link_.trash_there(true)}) {
      for (const auto& [path, content] : all) kept.insert(content);
    }
    for (const Files* side : {&here_, &there_}) {
      for (const auto& [path, content] : *side)
        EXPECT_TRUE(kept.contains(content)) << path << ": " << content.substr(0, 16);
    }
    for (const auto& [path, content] : files) EXPECT_TRUE(written_.contains(content) || path == "zz") << path;
    // Problems that were mended are gone.
    const auto problems = link_.state().problems(3);
    for (const Problem& each : *problems) ADD_FAILURE() << each.path << ": " << each.error;
    here_ = there_ = {};
    say("checked");
    if (!::testing::Test::HasFailure()) steps_.clear();
  }
  // What was done since the last check that held.
  const std::string& steps() const { return steps_; }

 private:
  static LinkConfig rules(std::mt19937_64& random, bool lazy) {
    constexpr std::array kRules{ConflictRule::kBoth, ConflictRule::kBucket, ConflictRule::kDirectory,
                                ConflictRule::kNewest};
    // Others may release files, too.
    return {.imports = {true, true, true},
            .exports = {true, true, true},
            .conflict = kRules[random() % 2 == 0 ? 0 : random() % kRules.size()],
            .lazy = lazy,
            .take_over_s = 60};
  }
  static std::string told(const Files& files) {
    std::string text;
    for (const auto& [path, content] : files) text += fmt::format(" {} ({})", path, content.substr(0, 16));
    return text;
  }
  void say(const std::string& what) { steps_ += what + "\n"; }
  LinkCounts sweep() {
    const LinkCounts counts = link_.swept();
    say("swept:");
    for (const std::string& event : link_.events()) say("    " + event);
    return counts;
  }
  void settle() {
    constexpr int kMost = 12;  // a chain of renames takes more than one sweep
    for (int i = 0; i < kMost; ++i) {
      if (sweep().postponed == 0 && i > 0) return;
    }
    ADD_FAILURE() << "files wait for ever";
  }
  std::string path() {
    return std::string(1, static_cast<char>('a' + random_() % 4)) + (random_() % 2 == 0 ? "/x" : "/y");
  }
  std::string content() {
    std::string text = fmt::format("content {}", ++number_);
    if (random_() % 4 == 0) text += std::string(100'000, 'x');
    written_.insert(text);
    return text;
  }
  bool is_released(const std::string& path) const { return looks_released((link_.directory() / path).string()); }
  void write(const std::string& path) {
    // Who may write into a stub, which only root may, gets an error of the link.
    if (is_released(path)) link_.remove(path);
    link_.write(path, here_[path] = content());
    if (ahead_.count() != 0) {
      fs::last_write_time(link_.directory() / path, fs::file_time_type::clock::now() + ahead_);
    }
    say(fmt::format("write {}: {}", path, here_[path].substr(0, 16)));
  }
  // Whether the object of this name is all that there is of a released file, which may have another name now.
  bool is_needed(const std::string& path) {
    const auto file = link_.state().find(path);
    return file && *file && (is_known_released(path) || is_released(path));
  }
  bool is_known_released(const std::string& path) {
    const auto file = link_.state().find(path);
    return file && *file && (*file)->state == LinkFile::State::kReleased;
  }
  void put(const std::string& path) {
    // Who overwrites the only copy has removed it; so a link that has seen where it belongs must see that next.
    const bool needed = is_needed(path);
    if (needed) settle();
    if (needed) forget_carried();
    // Who replaces an object has seen what is in it.
    const Files objects = link_.objects();
    if (const auto old = objects.find(path); old != objects.end()) {
      std::erase_if(here_, [&](const auto& each) { return each == *old; });
    }
    link_.put(path, there_[path] = content());
    say(fmt::format("put {}: {}", path, there_[path].substr(0, 16)));
    if (needed) check();
  }
  void remove(const std::string& path) {
    link_.remove(path);
    here_.erase(path);
    say("remove " + path);
  }
  void remove_object(const std::string& path) {
    // It would be the only copy: the link says so until it is back.
    if (is_needed(path)) return;
    link_.remove_object(path);
    there_.erase(path);
    say("remove the object " + path);
  }
  void rename(const std::string& from, const std::string& to) {
    if (from == to || !fs::exists(link_.directory() / from)) return;
    see(from);
    fs::create_directories((link_.directory() / to).parent_path());
    fs::rename(link_.directory() / from, link_.directory() / to);
    say(fmt::format("rename {}{} to {}", from, is_released(to) ? " (a stub)" : "", to));
    here_.erase(to);
    if (const auto moved = here_.find(from); moved != here_.end()) {
      here_[to] = moved->second;
      here_.erase(from);
    }
  }

  // A file that another node has released may be renamed once this one has seen that.
  void see(const std::string& path) {
    const auto file = link_.state().find(path);
    if (is_released(path) && file && *file && (*file)->state == LinkFile::State::kEqual) sweep();
    forget_carried();
  }
  // The other side's file of the same name may be replaced there by a process that saw it. A released file may get
  // another name yet, and keeps its content.
  void forget_carried() {
    const Files files = link_.files(), objects = link_.objects();
    const auto has = [](const Files& side, const auto& each) {
      const auto found = side.find(each.first);
      return found != side.end() && found->second == each.second;
    };
    std::erase_if(here_, [&](const auto& each) { return has(objects, each) && !is_released(each.first); });
    std::erase_if(there_, [&](const auto& each) { return has(files, each); });
  }

  void change_mode(const std::string& path) {
    if (!is_released(path)) ::chmod((link_.directory() / path).c_str(), random_() % 2 == 0 ? 0640 : 0600);
  }

  // In place, so that the inode stays.
  void append(const std::string& path) {
    if (!fs::exists(link_.directory() / path) || is_released(path)) return;
    const std::string more = fmt::format(" and {}", ++number_);
    std::ofstream(link_.directory() / path, std::ios::app | std::ios::binary) << more;
    const std::string all = link_.files().at(path);
    written_.insert(all);
    here_[path] = all;
    say(fmt::format("append to {}: {}", path, all.substr(0, 40)));
  }
  void rename_folder() {
    const std::string from(1, static_cast<char>('a' + random_() % 4)), to(1, static_cast<char>('a' + random_() % 4));
    if (from == to || !fs::exists(link_.directory() / from) || fs::exists(link_.directory() / to)) return;
    for (const char* name : {"/x", "/y"}) see(from + name);
    fs::rename(link_.directory() / from, link_.directory() / to);
    say(fmt::format("rename the folder {} to {}", from, to));
    for (const char* name : {"/x", "/y"}) {
      const auto moved = here_.find(from + name);
      if (moved == here_.end()) continue;
      here_[to + name] = moved->second;
      here_.erase(from + name);
    }
  }
  // What `link release` does, which refuses root. The object is the only one that has the content then.
  void release(const std::string& path) {
    const auto file = link_.state().find(path);
    const auto now = link_.here().storage->stat(link_.here().child(path).key);
    const auto object = link_.there().storage->stat(link_.there().child(path).key);
    if (!file || !*file || (*file)->state != LinkFile::State::kEqual || !now || !object) return;
    if (!sync::is_version((*file)->here, *now) || object->version != (*file)->there) return;
    const std::string whole = (link_.directory() / path).string();
    here_[path] = link_.files().at(path);
    say("release " + path);
    const auto time = fs::last_write_time(whole);
    fs::resize_file(whole, 0);
    fs::resize_file(whole, static_cast<uintmax_t>(now->size));
    ASSERT_EQ(::chmod(whole.c_str(), 0), 0);
    fs::last_write_time(whole, time);
    // Another node may have done it, whose state is not this one.
    if (random_() % 2 == 0) return;
    LinkFile released = **file;
    released.state = LinkFile::State::kReleased;
    released.mode = 0644;
    released.here = sync::recorded_version(*link_.here().storage->stat(link_.here().child(path).key));
    ASSERT_TRUE(link_.state().put(released));
    ASSERT_TRUE(link_.state().commit());
  }
  void restore() {
    const auto restored =
        link::restore(link_.config(), link_.here(), link_.there(), link_.state(), link_.engine(), {}, {}, nullptr);
    EXPECT_TRUE(restored) << restored.error().to_string();
    say("restored");
  }
  // As a clock that is set back, or ahead, would.
  void set_time(const std::string& path) {
    if (is_released(path)) return;
    const auto shift = std::chrono::hours(static_cast<int>(random_() % 20'000) - 10'000);
    std::error_code error;
    fs::last_write_time(link_.directory() / path, fs::file_time_type::clock::now() + shift, error);
    say("set the time of " + path);
  }
  // A clock that runs ahead, or behind: nothing of the trash goes, and whatever is carried is carried.
  void set_clock() {
    ahead_ = std::chrono::hours(random_() % 3 == 0 ? 0 : static_cast<int>(random_() % 20'000) - 10'000);
    time_.emplace(std::chrono::duration<double>(ahead_).count());
    const Files trash = link_.trash_there(true);
    const Status emptied = link_.empty_trash();
    EXPECT_TRUE(emptied) << emptied.error().to_string();
    EXPECT_TRUE(trash == link_.trash_there(true));
    say(fmt::format("the clock is {} hours ahead", ahead_.count()));
  }
  // Some requests to the bucket fail; what that leaves undone is done later.
  void sweep_with_faults() {
    for (int i = 0; i < 3; ++i) {
      link_.faults().add({.skip = static_cast<int64_t>(random_() % 30),
                          .count = static_cast<int64_t>(random_() % 4),
                          .error = Error(ErrorCode::kUnavailable, "a fault of this test")});
    }
    say("faults:");
    static_cast<void>(link_.sweep());
    link_.faults().clear();
    // From now on, processes that saw the carried file may replace it.
    check();
  }

  // As a kill leaves it: a request ends, no other one begins, and what the state learns from then on is lost.
  void sweep_until_killed() {
    const auto at = static_cast<int64_t>(random_() % 40);
    std::optional<std::vector<LinkFile>> rows;
    link_.faults().add({.skip = at, .before = [&] { rows = rows_of_state(); }});
    link_.faults().add(
        {.skip = at + 1, .count = FaultRule::kForever, .error = Error(ErrorCode::kUnavailable, "the process is dead")});
    say(fmt::format("killed at request {}:", at));
    static_cast<void>(link_.sweep());
    link_.faults().clear();
    if (rows) {
      for (const LinkFile& each : rows_of_state()) ASSERT_TRUE(link_.state().forget(each.path));
      for (const LinkFile& each : *rows) ASSERT_TRUE(link_.state().put(each));
    }
    link_.reopen();
    check();
  }
  std::vector<LinkFile> rows_of_state() {
    constexpr size_t kMost = 10'000;
    auto rows = link_.state().page("", "", kMost);
    EXPECT_TRUE(rows) << rows.error().to_string();
    return rows ? *std::move(rows) : std::vector<LinkFile>();
  }

  // A reader of Millrace, in a program that knows no way to the bucket: content or an error, and never zeros.
  void read(const std::string& path) {
    const bool released = is_released(path);
    if (released && !is_stub((link_.directory() / path).string())) return;  // of another node, as this model makes them
    const auto content = read_object(*link_.here().storage, link_.here().child(path).key);
    if (released) {
      EXPECT_FALSE(content) << path << ": " << content->substr(0, 16);
    } else if (content) {
      EXPECT_EQ(content->find('\0'), content->npos) << path;
    }
  }

  std::mt19937_64 random_;
  LinkBench link_;
  Files here_, there_;  // since the last check
  std::set<std::string> written_;
  int number_ = 0;
  std::chrono::hours ahead_{0};
  std::optional<OtherTime> time_;
  std::string steps_;
};

// `models` of them, one after the other, until one fails.
void run_models(uint64_t seed, int models, bool lazy) {
  for (int run = 0; run < models && !::testing::Test::HasFailure(); ++run) {
    SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}, model {}", seed, run));
    Model model(seed + static_cast<uint64_t>(run), lazy);
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 25; ++i) model.step();
      model.check();
    }
    if (::testing::Test::HasFailure()) ADD_FAILURE() << model.steps();
  }
}

TEST(LinkModel, NothingIsLostWhateverBothSidesDo) {
  run_models(test_seed(), std::getenv("MILLRACE_TEST_LONG") != nullptr ? 400 : rounds(5), false);
}

// Imported files are stubs, which root may not have: it becomes another user.
TEST(LinkModel, NothingIsLostWhereImportedFilesAreStubs) {
  const uint64_t seed = test_seed();
  const auto runs = [&] {
    run_models(seed, std::getenv("MILLRACE_TEST_LONG") != nullptr ? 20 : rounds(2), true);
    return !::testing::Test::HasFailure();
  };
  if (::geteuid() != 0) {
    runs();
    return;
  }
  constexpr uid_t kNobody = 65534;
  EXPECT_TRUE(succeeds_in_child([&] {
    ::setenv("TMPDIR", "/var/tmp", 1);  // the folder of the tests may be root's
    ::alarm(600);                       // more than the minute of other children: the test has a limit of its own
    if (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    return runs();
  })) << "MILLRACE_TEST_SEED="
      << seed;
}

}  // namespace
}  // namespace millrace::link
