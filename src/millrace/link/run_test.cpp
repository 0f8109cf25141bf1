// SPDX-License-Identifier: Apache-2.0
// A link that runs until it is stopped.
#include "millrace/link/run.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "millrace/base/published.h"
#include "millrace/link/answers.h"
#include "millrace/link/status.h"
#include "millrace/link/testing.h"
#include "millrace/link/wait.h"

namespace millrace::link {
namespace {

using ::testing::HasSubstr;

TEST(Link, ALinkThatRunsGoesOnWhenTheClockIsSet) {
  LinkConfig config = everything();
  LinkBench link(config);
  std::stop_source stop;
  Status ended;
  {
    Thread runs("link", [&] { ended = run_link(link.config(), link.home(), link.engine(), {}, stop.get_token()); });
    for (const double ahead_s : {0.0, -400 * kDay, 400 * kDay, -1.0}) {
      const OtherTime other(ahead_s);
      const std::string name = fmt::format("at {}", ahead_s);
      link.write(name, "from here");
      link.put(name + " there", "from there");
      for (int i = 0; i < 3000 && !(link.objects().contains(name) && link.files().contains(name + " there")); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_EQ(link.objects(), link.files()) << ahead_s;
      EXPECT_TRUE(link.objects().contains(name)) << ahead_s;
      const auto status = read_status(link.home(), 1);
      EXPECT_TRUE(status && status->behind_s >= 0) << ahead_s;
    }
    stop.request_stop();
  }
  EXPECT_TRUE(ended) << ended.error().to_string();
}

TEST(Link, AFileThatIsRenamedIntoPlaceGoesAtOnce) {
  LinkBench link(everything());
  link.config().quiet_s = 3600;
  link.config().poll_least_s = link.config().poll_most_s = 3600;
  std::stop_source stop;
  Status ended;
  {
    Thread runs("link", [&] { ended = run_link(link.config(), link.home(), link.engine(), {}, stop.get_token()); });
    link.write("written", "perhaps there is more to come");
    // Until the watch is there; and a file that is open goes with its next event.
    for (int i = 0; i < 3000 && !link.objects().contains("renamed"); ++i) {
      link.write(fmt::format("{}.part", i), "whole");
      std::filesystem::rename(link.directory() / fmt::format("{}.part", i), link.directory() / "renamed");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(link.objects().contains("renamed"));
    EXPECT_FALSE(link.objects().contains("written"));
    stop.request_stop();
  }
  EXPECT_TRUE(ended) << ended.error().to_string();
}

TEST(Link, AFileThatMillraceCommitsGoesAtOnce) {
  LinkBench link(everything());
  link.config().quiet_s = 3600;
  link.config().poll_least_s = link.config().poll_most_s = 3600;
  std::stop_source stop;
  Status ended;
  {
    Thread runs("link", [&] { ended = run_link(link.config(), link.home(), link.engine(), {}, stop.get_token()); });
    const auto within = [&](const auto& holds) {
      for (int i = 0; i < 3000 && !holds(i); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return holds(0);
    };
    // Until the watch is there.
    EXPECT_TRUE(within([&](int i) {
      std::ofstream(link.directory() / "marker.part") << i;
      std::filesystem::rename(link.directory() / "marker.part", link.directory() / "marker");
      return link.objects().contains("marker");
    }));
    link.write("written", "perhaps there is more to come");
    // These get their names by link(2): in a folder that is there, and in a new one.
    const auto commit = [&](const std::string& path) {
      const auto writer = link.here().storage->open_write(link.here().child(path).key, {.brief = true});
      ASSERT_TRUE(writer) << writer.error().to_string();
      ASSERT_TRUE((*writer)->append(as_bytes(std::string_view("whole"))));
      // The writer lives on for a moment, as one that makes its name durable does.
      ASSERT_TRUE((*writer)->commit(Durability::kVisible));
      EXPECT_FALSE(link.objects().contains(path));
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    };
    commit("committed");
    commit("new/folder/committed");
    EXPECT_TRUE(within([&](int) { return link.objects().contains("new/folder/committed"); }));
    EXPECT_TRUE(within([&](int) { return link.objects().contains("committed"); }));
    EXPECT_FALSE(link.objects().contains("written"));
    stop.request_stop();
  }
  EXPECT_TRUE(ended) << ended.error().to_string();
}

TEST(Link, ASilentBucketIsToldWithItsTime) {
  LinkBench link(everything());
  link.write("a", "x");
  link.swept();
  ASSERT_TRUE(link.state().set_fact("last_sweep", std::to_string(static_cast<int64_t>(wall_now_s()))));
  std::stop_source stop;
  link.faults().add(
      {.call = FaultCall::kStat, .key_part = "link-answer", .error = Error(ErrorCode::kTimeout, "no byte moved")});
  Answers answers(link.there(), link.state());
  answers.set_busy(true);
  Thread watches("watch", [&] { answers.watch(stop.get_token()); });
  const auto since = [&] { return *link.state().fact("silent_since"); };
  const auto within = [&](const auto& holds) {
    for (int i = 0; i < 6000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return holds();
  };
  EXPECT_TRUE(within([&] { return !since().empty(); }));
  {
    const auto lock = LinkLock::take(link.home());
    EXPECT_TRUE(lock);
    const OtherTime later(kDay);
    const auto status = read_status(link.home(), 1);
    EXPECT_TRUE(status && std::to_string(status->silent_since) == since());
    EXPECT_TRUE(status && status->behind_s >= static_cast<int64_t>(kDay));
  }
  // The next question is answered: there is no such object.
  EXPECT_TRUE(within([&] { return since().empty(); }));
  stop.request_stop();
}

TEST(Link, ARunningLinkFollowsBothSidesAndStops) {
  LinkConfig config = everything();
  LinkBench link(config);
  link.write("before", "x");
  std::stop_source stop;
  std::vector<std::string> notes;
  Status ended;
  {
    Thread runs("link", [&] {
      ended = run_link(link.config(), link.home(), link.engine(),
                       {.on_note = [&](const std::string& text) { notes.push_back(text); }}, stop.get_token());
    });
    const auto within = [&](const auto& holds) {
      for (int i = 0; i < 1000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return holds();
    };
    EXPECT_TRUE(within([&] { return link.objects().contains("before"); }));
    link.write("folder/new", "from here");
    link.put("from/there", "from there");
    EXPECT_TRUE(within([&] { return link.objects().contains("folder/new") && link.files().contains("from/there"); }));
    const auto proven = wait_for(link.config(), link.home(), "", std::chrono::seconds(10), {}, nullptr);
    EXPECT_TRUE(proven) << proven.error().to_string();
    EXPECT_EQ(proven->files, 3);
    link.remove("folder/new");
    EXPECT_TRUE(within([&] { return !link.objects().contains("folder/new"); }));
    EXPECT_EQ(code_of(run_link(link.config(), link.home(), link.engine(), {}, {})), ErrorCode::kUnavailable);
    stop.request_stop();
  }
  EXPECT_TRUE(ended) << ended.error().to_string();
  EXPECT_TRUE(notes.empty()) << notes[0];
  link.write("later", "x");
  const auto waits = wait_for(link.config(), link.home(), "later", std::chrono::seconds(10), {}, nullptr);
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().message(), HasSubstr("link run"));
}

TEST(Link, ARunningLinkShowsHowFarItIsBehind) {
  LinkBench link(everything());
  link.config().name = "shown";
  link.write("stuck", "a file where a folder has to be");
  link.put("stuck/below", "x");
  const auto shown = [&](Published row) {
    for (const PublishedProcess& process : read_published(published_folders())) {
      if (process.pid == ::getpid()) return process.value(row);
    }
    return int64_t{-1};
  };
  if (shown(Published::kLinks) < 0) {
    publish_set(Published::kLinks, 0);
    if (shown(Published::kLinks) < 0) GTEST_SKIP() << "this machine has no place for published numbers";
  }
  std::stop_source stop;
  {
    Thread runs("link", [&] {
      static_cast<void>(run_link(link.config(), link.home(), link.engine(), {.watch = false}, stop.get_token()));
    });
    const auto until = [](const auto& holds) {
      for (int i = 0; i < 6000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return holds();
    };
    EXPECT_TRUE(until([&] { return shown(Published::kLinks) == 1; }));
    EXPECT_TRUE(until([&] { return shown(Published::kLinkSinceNs) > 0; }));
    stop.request_stop();
  }
  EXPECT_EQ(shown(Published::kLinks), 0);
  EXPECT_EQ(shown(Published::kLinkSinceNs), 0);
}

}  // namespace
}  // namespace millrace::link
