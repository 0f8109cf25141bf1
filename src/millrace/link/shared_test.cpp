// SPDX-License-Identifier: Apache-2.0
// A link that several tasks carry: what they learn reaches each other, whichever of them looks at a range next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "millrace/base/text/units.h"
#include "millrace/link/rows.h"
#include "millrace/link/shared_sweep.h"
#include "millrace/link/testing.h"

namespace millrace::link {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

LinkFile file_of(const std::string& path, int64_t number) {
  return {.path = path,
          .size = number,
          .here = {fmt::format("v{}", number), number},
          .there = fmt::format("o{}", number),
          .hash = number % 2 == 0 ? std::optional(Hash128{1, static_cast<uint64_t>(number)}) : std::nullopt,
          .state = number % 3 == 0 ? LinkFile::State::kReleased : LinkFile::State::kEqual,
          .mode = static_cast<uint32_t>(number),
          .proof = number % 2 == 0 ? "etag" : ""};
}

TEST(LinkRows, ComeBackAndDamageIsFound) {
  std::vector<Learned> rows;
  for (int64_t i = 0; i < 20; ++i) {
    rows.push_back({fmt::format("a\xff/{}", i), std::nullopt});
    rows.push_back({fmt::format("b/{}", i), file_of(fmt::format("b/{}", i), i)});
  }
  const std::string bytes = encode_rows(rows);
  const auto back = decode_rows(bytes, "rows");
  ASSERT_TRUE(back) << back.error().to_string();
  ASSERT_EQ(back->size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ((*back)[i].path, rows[i].path);
    EXPECT_EQ((*back)[i].file, rows[i].file);
  }
  for (size_t at = 0; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    for (const std::string& bad : {damaged, bytes.substr(0, at)}) {
      const auto read = decode_rows(bad, "rows");
      ASSERT_FALSE(read) << at;
      EXPECT_EQ(read.error().code(), ErrorCode::kCorruption) << at;
    }
  }
}

TEST(LinkState, NotesWhatOthersDoNotKnow) {
  const TempDir folder;
  const auto state = LinkState::open(folder.path() + "/state.db").value();
  ASSERT_TRUE(state->note_changes(true));
  ASSERT_TRUE(state->put(file_of("a", 1)));
  ASSERT_TRUE(state->put(file_of("b", 2)));
  ASSERT_TRUE(state->forget("b"));
  ASSERT_TRUE(state->learn({{"c", file_of("c", 3)}, {"a", file_of("a", 9)}, {"b", file_of("b", 9)}}));
  EXPECT_EQ(state->find("a").value(), file_of("a", 1)) << "not told yet, and so newer";
  EXPECT_EQ(state->find("b").value(), std::nullopt);
  EXPECT_EQ(state->find("c").value(), file_of("c", 3));
  auto changes = state->changes(10).value();
  ASSERT_THAT(changes, SizeIs(2)) << "what was learned is no news";
  EXPECT_EQ(changes[0].file, file_of("a", 1));
  EXPECT_EQ(changes[1].file, std::nullopt);
  // One of them changes before it counts as told.
  ASSERT_TRUE(state->put(file_of("a", 4)));
  ASSERT_TRUE(state->changes_are_told(changes));
  changes = state->changes(10).value();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].file, file_of("a", 4));

  ASSERT_TRUE(state->replace_range("", "b", {file_of("aa", 5)}));
  EXPECT_EQ(state->find("a").value(), file_of("a", 4)) << "still not told";
  EXPECT_EQ(state->find("aa").value(), file_of("aa", 5));
  EXPECT_EQ(state->find("c").value(), file_of("c", 3)) << "behind the range";
  EXPECT_THAT(state->take_range("", "b", 1).value(), SizeIs(1));
  EXPECT_THAT(state->changes(10).value(), IsEmpty()) << "it went along with the range";
  EXPECT_THAT(state->take_range("a", "", 10).value(), SizeIs(2));
}

// TaskBench of one link: a directory that all of them see, a bucket, and of each node its own state.
class TaskBench : public TwoSides {
 public:
  explicit TaskBench(size_t count, LinkConfig config = {.take_over_s = 30}) {
    static std::atomic<int> number = 0;
    std::filesystem::create_directories(directory());
    config.name = "test";
    config.directory = directory().string();
    config.url = fmt::format("mem://tasks{}/data", ++number);
    config.quiet_s = 0;
    config.imports.deleted = config.exports.deleted = true;
    EXPECT_TRUE(add_link(links_of(0), config));
    for (size_t i = 1; i < count; ++i) EXPECT_TRUE(join_link(links_of(i), config.directory, ""));
    there_ = *open_url(config.url);
    board_ = there_.child(".millrace/link-tasks");
    for (size_t i = 0; i < count; ++i) nodes_.push_back(std::make_unique<Node>(*this, i));
  }

  struct Node {
    Node(TaskBench& all, size_t number)
        : config(*read_link(all.links_of(number), "test")),
          here(*open_url(config.directory)),
          there(all.there_),
          engine(*sync::TransferEngine::create()),
          all_(all),
          number_(number) {
      there.storage = make_fault_storage(there.storage, faults);
      start();
    }
    // As a new process would, after the old one was killed.
    void start() {
      sweeps.reset();
      carrier.reset();
      state.reset();
      state = LinkState::open(home_of(all_.links_of(number_), "test").state_path()).value();
      EXPECT_TRUE(state->note_changes(true));
      carrier = std::make_unique<Carrier>(config, here, there, *state, *engine, nullptr, stop.get_token());
      sweeps =
          std::make_unique<SharedSweeps>(config, here, there, all_.board_, fmt::format("node{}-{}", number_, ++starts_),
                                         *state, *carrier, stop.get_token());
    }
    // As a task that lost all it knew.
    void forget() {
      sweeps.reset();
      carrier.reset();
      state.reset();
      std::filesystem::remove(home_of(all_.links_of(number_), "test").state_path());
      start();
    }
    LinkCounts sweep() {
      const auto report = sweeps->take_part(false);
      EXPECT_TRUE(report) << report.error().to_string();
      last = report ? *report : SweepReport();
      return last.counts;
    }
    // As a watch that named a path.
    LinkCounts see(const std::string& path) {
      EXPECT_TRUE(sweeps->prepare({path}));
      EXPECT_TRUE(carrier->look_at(path));
      EXPECT_TRUE(carrier->finish());
      EXPECT_TRUE(sweeps->publish());
      return carrier->take_counts();
    }

    LinkConfig config;
    Location here, there;
    std::shared_ptr<FaultPlan> faults = std::make_shared<FaultPlan>();
    std::unique_ptr<sync::TransferEngine> engine;
    std::unique_ptr<LinkState> state;
    std::unique_ptr<Carrier> carrier;
    std::unique_ptr<SharedSweeps> sweeps;
    SweepReport last;
    std::stop_source stop;

   private:
    TaskBench& all_;
    const size_t number_;
    int starts_ = 0;
  };

  Node& operator[](size_t i) { return *nodes_[i]; }
  size_t size() const { return nodes_.size(); }
  std::string links_of(size_t node) const { return fmt::format("{}/links{}", folder_.path(), node); }
  const Location& board() const { return board_; }

  std::string problems() const {
    std::string text;
    for (const auto& node : nodes_) {
      const auto problems = node->state->problems(3).value();
      for (const Problem& each : problems) {
        text += fmt::format("{}: {}\n", each.path, each.error);
      }
    }
    return text;
  }
  // All nodes at once. What they did together.
  LinkCounts sweep_together() {
    std::vector<std::thread> threads;
    for (const auto& node : nodes_) threads.emplace_back([&] { node->sweep(); });
    for (std::thread& thread : threads) thread.join();
    LinkCounts sum;
    for (const auto& node : nodes_) {
      const LinkCounts& each = node->last.counts;
      for (const auto field :
           {&LinkCounts::imported, &LinkCounts::exported, &LinkCounts::moved, &LinkCounts::deleted_here,
            &LinkCounts::deleted_there, &LinkCounts::conflicts, &LinkCounts::failed, &LinkCounts::postponed}) {
        sum.*field += each.*field;
      }
    }
    return sum;
  }

 private:
  Location board_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST(SharedSweeps, ShareTheFilesOfASweep) {
  TaskBench nodes(4);
  constexpr int kFiles = 400;
  for (int i = 0; i < kFiles; ++i) {
    nodes.write(fmt::format("here/{:03}/a", i), fmt::format("content {}", i));
    nodes.put(fmt::format("there/{:03}/b", i), fmt::format("object {}", i));
  }
  const LinkCounts counts = nodes.sweep_together();
  EXPECT_EQ(counts.failed, 0) << nodes.problems();
  EXPECT_EQ(nodes.files(), nodes.objects());
  EXPECT_THAT(nodes.files(), SizeIs(2 * kFiles));
  EXPECT_EQ(nodes[0].last.files_here + nodes[0].last.files_there, nodes[3].last.files_here + nodes[3].last.files_there);
  const LinkCounts again = nodes.sweep_together();
  EXPECT_EQ(again.imported + again.exported + again.conflicts + again.failed, 0) << "all of it is known";
  EXPECT_EQ(nodes[2].last.files_here, 2 * kFiles);
}

// The remembered state, of any task, tells a removal from a new object.
TEST(SharedSweeps, AnyTaskKnowsWhatOthersLearned) {
  TaskBench nodes(3);
  for (int i = 0; i < 20; ++i) nodes.write(fmt::format("f{:02}", i), "x");
  nodes.put("o1", "object");
  nodes[0].sweep();
  nodes.remove("f03");
  nodes.remove_object("o1");
  nodes.write("f07", "changed");
  const LinkCounts second = nodes[1].sweep();
  EXPECT_EQ(second.deleted_there, 1);
  EXPECT_EQ(second.deleted_here, 1);
  EXPECT_EQ(second.exported, 1);
  EXPECT_EQ(second.conflicts, 0);
  EXPECT_EQ(second.imported, 0) << "nothing comes back";
  nodes.remove("f07");
  nodes[2].forget();
  const LinkCounts third = nodes[2].sweep();
  EXPECT_EQ(third.deleted_there, 1);
  EXPECT_EQ(third.imported + third.exported + third.conflicts, 0);
  EXPECT_THAT(nodes.files(), SizeIs(18));
  EXPECT_EQ(nodes.files(), nodes.objects());
}

TEST(SharedSweeps, WhatIsCarriedBetweenSweepsIsToldToo) {
  TaskBench nodes(3);
  nodes.write("a", "1");
  nodes.sweep_together();
  nodes.write("a", "22");
  EXPECT_EQ(nodes[1].see("a").exported, 1);
  nodes.write("a", "333");
  const LinkCounts next = nodes[2].see("a");
  EXPECT_EQ(next.exported, 1);
  EXPECT_EQ(next.conflicts, 0) << "the object is what node 1 made it";
  nodes.write("new", "n");
  EXPECT_EQ(nodes[0].see("new").exported, 1);
  nodes.remove("new");
  const LinkCounts sweep = nodes[1].sweep();
  EXPECT_EQ(sweep.deleted_there, 1) << "it was removed, and is not new in the bucket";
  EXPECT_EQ(sweep.imported + sweep.conflicts, 0);
  EXPECT_EQ(nodes.files(), nodes.objects());
  EXPECT_EQ(nodes.files(), (Files{{"a", "333"}}));
}

TEST(SharedSweeps, NothingIsRemovedBeyondTheLimitOfAll) {
  TaskBench nodes(4, {.max_delete = 30, .take_over_s = 30});
  for (int i = 0; i < 200; ++i) nodes.write(fmt::format("f{:03}", i), "x");
  nodes.sweep_together();
  for (int i = 0; i < 40; ++i) nodes.remove(fmt::format("f{:03}", 5 * i));
  EXPECT_EQ(nodes.sweep_together().deleted_there, 0) << "each range has less, all of them have more";
  EXPECT_THAT(nodes.objects(), SizeIs(200));
  std::string why;
  for (size_t i = 0; i < nodes.size(); ++i) why += nodes[i].last.not_deleted;
  EXPECT_THAT(why, testing::HasSubstr("40 files are gone"));
  for (int i = 0; i < 15; ++i) nodes.write(fmt::format("f{:03}", 5 * i), "x");
  nodes.sweep_together();
  EXPECT_EQ(nodes.files(), nodes.objects());
}

TEST(SharedSweeps, ATaskThatDiesIsTakenOver) {
  TaskBench nodes(2, {.take_over_s = 1});
  for (int i = 0; i < 50; ++i) nodes.write(fmt::format("f{:02}", i), "x");
  // It has begun a sweep, and is heard of no more.
  sync::Share dead(nodes.board().child("sweeps/000000000001"),
                   {.owner = "dead", .next_path = [](const std::string&) { return std::nullopt; }});
  ASSERT_TRUE(dead.look()->range);
  EXPECT_EQ(nodes[1].sweep().exported, 50);
  EXPECT_EQ(nodes.files(), nodes.objects());
}

TEST(SharedSweeps, AnOldTaskFindsItsWayIntoTheNewestSweep) {
  TaskBench nodes(2);
  nodes.write("a", "1");
  nodes.write("b", "stays");
  nodes.sweep_together();
  for (int i = 0; i < 4; ++i) {
    nodes.write("a", fmt::format("content {}", i));
    EXPECT_EQ(nodes[0].sweep().exported, 1);
  }
  nodes.remove("a");
  const LinkCounts late = nodes[1].sweep();
  EXPECT_EQ(late.deleted_there, 1);
  EXPECT_EQ(late.imported + late.conflicts, 0);
  // Boards of old sweeps do not pile up.
  std::set<std::string> sweeps;
  const std::string prefix = nodes.board().key + "/sweeps/";
  ASSERT_TRUE(for_each_object(*nodes.board().storage, prefix, [&](const ObjectInfo& object) -> Status {
    sweeps.insert(object.key.substr(prefix.size(), 12));
    return {};
  }));
  EXPECT_THAT(sweeps, SizeIs(2));
}

TEST(SharedSweeps, OneNodeGoesOnAloneWithWhatTheTasksKnew) {
  TaskBench nodes(2);
  for (int i = 0; i < 10; ++i) nodes.write(fmt::format("f{}", i), "x");
  nodes[0].sweep();
  nodes.write("f3", "changed");
  EXPECT_EQ(nodes[0].see("f3").exported, 1);
  nodes.remove("f5");
  SharedState shared(nodes.board(), "alone", *nodes[1].state);
  ASSERT_TRUE(shared.take_home());
  const auto report = sweep(nodes[1].config, nodes[1].here, nodes[1].there, *nodes[1].state, *nodes[1].carrier, {});
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->counts.deleted_there, 1);
  EXPECT_EQ(report->counts.imported + report->counts.exported + report->counts.conflicts, 0);
  EXPECT_THAT(nodes[1].state->counts()->files, 9);
  EXPECT_EQ(nodes.files(), nodes.objects());
  // The board is gone, so tasks that begin later believe no old row: what that node released meanwhile they see as
  // such.
  ASSERT_TRUE(for_each_object(*nodes.board().storage, nodes.board().key + "/", [](const ObjectInfo& object) {
    ADD_FAILURE() << object.key;
    return Status();
  }));
}

TEST(SharedSweeps, DamageOfWhatTasksKnowCostsAComparison) {
  TaskBench nodes(2);
  for (int i = 0; i < 10; ++i) nodes.write(fmt::format("f{}", i), "x");
  nodes[0].sweep();
  nodes.write("g", "x");
  EXPECT_EQ(nodes[0].see("g").exported, 1);
  int damaged = 0;
  for (const char* folder : {"/sweeps/", "/journal/"}) {
    ASSERT_TRUE(
        for_each_object(*nodes.board().storage, nodes.board().key + folder, [&](const ObjectInfo& object) -> Status {
          if (object.key.ends_with("/finished")) return {};
          ++damaged;
          ASSIGN_OR_RETURN(std::string bytes, read_object(*nodes.board().storage, object.key));
          bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
          return write_object(*nodes.board().storage, object.key, bytes, {}, Durability::kVisible).map([](const auto&) {
          });
        }));
  }
  EXPECT_GE(damaged, 2);
  nodes.write("f3", "changed");
  const LinkCounts counts = nodes[1].sweep();
  EXPECT_EQ(counts.failed, 0);
  EXPECT_EQ(counts.conflicts, 1) << "which of both changed is not known any more, and both stay";
  nodes[1].sweep();
  EXPECT_EQ(nodes.files(), nodes.objects());
  EXPECT_THAT(nodes.files(), SizeIs(12));
  nodes.remove("f4");
  EXPECT_EQ(nodes[0].sweep().deleted_there, 1) << "the next sweep knows all of it again";

  const auto write = [&](const std::string& key, const char* content) {
    ASSERT_TRUE(write_object(*nodes.board().storage, nodes.board().child(key).key, content, {}, Durability::kVisible));
  };
  for (const char* finished : {"", R"({"ranges": 5})", R"({"ranges": [{"after": 7, "until": [], "note": 5}]})",
                               R"({"ranges": [{"note": "{\"chunks\": [{\"after\": 1}]}"}]})"}) {
    int64_t newest = 0;
    const std::string prefix = nodes.board().key + "/sweeps/";
    ASSERT_TRUE(for_each_object(*nodes.board().storage, prefix, [&](const ObjectInfo& object) -> Status {
      newest = std::max(newest, parse_whole(object.key.substr(prefix.size(), 12)).value_or(0));
      return {};
    }));
    write(fmt::format("sweeps/{:012}/finished", newest), finished);
    write("newest.json", "{");
    nodes[1].start();
    nodes.write("f5", fmt::format("after {}", newest));
    nodes[1].sweep();
    nodes[0].sweep();
    EXPECT_EQ(nodes.files(), nodes.objects()) << finished;
  }
}

// Changes on both sides, seen by any node at once or by nobody; nodes that are killed or lose their state; sweeps by
// one node or all. Each path changes on one side between two sweeps, so there is nothing to disagree about.
TEST(SharedSweeps, RandomChangesEndEqual) {
  const auto seed = testing::UnitTest::GetInstance()->random_seed() != 0
                        ? static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed())
                        : std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  TaskBench nodes(3);
  Files model;
  for (int turn = 0, turns = static_cast<int>(rounds(25)); turn < turns; ++turn) {
    std::set<std::string> touched;
    for (size_t i = below(12); i-- > 0;) {
      const std::string path = fmt::format("d{}/f{}", below(4), below(8));
      const std::string content = fmt::format("{} {}", turn, random());
      const bool here = below(2) == 0, removes = below(4) == 0;
      if (!touched.insert(path).second) continue;
      if (removes && !model.contains(path)) continue;
      if (removes) {
        here ? nodes.remove(path) : nodes.remove_object(path);
        model.erase(path);
        // What a watch sees of a removal is a sweep.
        if (here) nodes[below(3)].sweep();
        continue;
      }
      here ? nodes.write(path, content) : nodes.put(path, content);
      model[path] = content;
      if (below(2) == 0) nodes[below(3)].see(path);
      // Another change of the same path on the other side would be a conflict.
      if (!here) nodes[below(3)].see(path);
    }
    const size_t node = below(3);
    if (below(5) == 0) nodes[node].start();
    if (below(8) == 0) nodes[node].forget();
    if (below(2) == 0) {
      nodes.sweep_together();
    } else {
      nodes[below(3)].sweep();
    }
    for (size_t i = 0; i < 3; ++i) {
      const auto conflicts = nodes[i].state->conflicts(1).value();
      for (const Conflict& each : conflicts) {
        FAIL() << fmt::format("turn {}, node {}: {}: {} ({})", turn, i, each.path, each.reason, each.outcome);
      }
    }
    ASSERT_EQ(nodes.files(), model) << "turn " << turn;
    ASSERT_EQ(nodes.objects(), model) << "turn " << turn;
  }
}

}  // namespace
}  // namespace millrace::link
