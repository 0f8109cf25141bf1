// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/leader.h"

#include <gtest/gtest.h>

#include "millrace/base/testing/helpers.h"

namespace millrace::link {
namespace {

// Nodes that share a bucket, each with the same clock, which the test moves.
class Nodes : public ::testing::Test {
 protected:
  Leader node(const std::string& name) { return node(name + "-1234", name); }
  Leader node(const std::string& owner, const std::string& shown) {
    return Leader(*open_url("mem://leader-" + name_of_test() + "/data"), owner, shown, std::chrono::seconds(10),
                  [this] { return now_; });
  }
  static std::string name_of_test() { return ::testing::UnitTest::GetInstance()->current_test_info()->name(); }
  void pass(int seconds) { now_ += std::chrono::seconds(seconds); }
  static bool yes(const Result<bool>& answer) {
    EXPECT_TRUE(answer) << answer.error().to_string();
    return answer && *answer;
  }

  Clock::time_point now_ = Clock::now();
};

TEST_F(Nodes, OneCarriesAndAnotherTakesOverWhenItIsSilent) {
  Leader a = node("a"), b = node("b"), c = node("c");
  EXPECT_FALSE(yes(c.is_held()));
  EXPECT_TRUE(yes(a.take()));
  EXPECT_EQ(a.holder(), "a");
  EXPECT_FALSE(yes(b.take()));
  EXPECT_EQ(b.holder(), "a");
  for (int i = 0; i < 5; ++i) {
    pass(6);
    EXPECT_TRUE(yes(a.renew()));
    EXPECT_FALSE(yes(b.take())) << "it lives";
    EXPECT_TRUE(yes(c.is_held()));
  }
  pass(6);
  EXPECT_FALSE(yes(b.take())) << "silent, but not for long enough";
  pass(6);
  EXPECT_TRUE(yes(b.take()));
  EXPECT_FALSE(yes(c.take())) << "what it saw of a is not what it sees of b";
  EXPECT_EQ(c.holder(), "b");
  // The first one was only stopped, and goes on.
  EXPECT_FALSE(yes(a.renew()));
  EXPECT_EQ(a.holder(), "b");
  ASSERT_TRUE(a.give_up()) << "and takes nothing from the other";
  EXPECT_TRUE(yes(b.renew()));
}

TEST_F(Nodes, WhoGivesUpIsFollowedAtOnce) {
  Leader a = node("a"), b = node("b");
  EXPECT_TRUE(yes(a.take()));
  EXPECT_FALSE(yes(b.take()));
  ASSERT_TRUE(a.give_up());
  EXPECT_FALSE(yes(b.is_held()));
  EXPECT_TRUE(yes(b.take()));
  EXPECT_FALSE(yes(a.take()));
}

TEST_F(Nodes, OfManyThatSeeADeadOneOneTakesOver) {
  Leader dead = node("dead");
  EXPECT_TRUE(yes(dead.take()));
  std::vector<Leader> nodes;
  for (int i = 0; i < 8; ++i) nodes.push_back(node(fmt::format("n{}", i)));
  for (Leader& each : nodes) EXPECT_FALSE(yes(each.take()));
  pass(11);
  int leaders = 0;
  for (Leader& each : nodes) leaders += yes(each.take()) ? 1 : 0;
  EXPECT_EQ(leaders, 1);
}

TEST_F(Nodes, TasksHaveThePlaceTogether) {
  Leader one = node(kTasks, "a"), two = node(kTasks, "b"), alone = node("alone");
  EXPECT_TRUE(yes(one.take()));
  EXPECT_TRUE(yes(two.take()));
  EXPECT_FALSE(yes(alone.take()));
  EXPECT_TRUE(alone.is_shared());
  for (int i = 0; i < 5; ++i) {
    pass(6);
    EXPECT_TRUE(yes(i % 2 == 0 ? one.renew() : two.renew()));
    EXPECT_FALSE(yes(alone.take())) << "one of them lives";
  }
  pass(11);
  EXPECT_TRUE(yes(alone.take()));
  EXPECT_FALSE(alone.is_shared());
  EXPECT_FALSE(yes(one.take()));
  EXPECT_FALSE(yes(two.renew()));
}

TEST_F(Nodes, ADamagedRecordIsNobodys) {
  const Location root = *open_url("mem://leader-" + name_of_test() + "/data");
  ASSERT_TRUE(
      write_object(*root.storage, root.child(".millrace/link-leader.json").key, "}{", {}, Durability::kVisible));
  Leader a = node("a"), b = node("b");
  EXPECT_TRUE(yes(a.take()));
  EXPECT_FALSE(yes(b.take()));
  const std::string key = root.child(".millrace/link-leader.json").key;
  ASSERT_TRUE(root.storage->remove({&key, 1}));
  EXPECT_TRUE(yes(a.renew())) << "somebody removed it: it is written again";
  EXPECT_FALSE(yes(b.take()));
}

}  // namespace
}  // namespace millrace::link
