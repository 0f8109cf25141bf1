// SPDX-License-Identifier: Apache-2.0
// How long credentials are kept, and which thread fetches the next ones.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "millrace/aws/testing/aws_services.h"

namespace millrace::aws {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A container's service that gives KEY-1, KEY-2, ..., each for an hour of the test's clock.
class ProviderTest : public CredentialsTest {
 protected:
  ProviderTest()
      : service_([this](const http::ReceivedRequest&) -> http::Reply {
          const int number = ++given_;
          while (held_) std::this_thread::sleep_for(1ms);
          if (broken_) return {.status = 400};
          const auto expires = std::chrono::floor<std::chrono::seconds>(clock_.now()) + lifetime_;
          return {.body = nlohmann::json{{"AccessKeyId", fmt::format("KEY-{}", number)},
                                         {"SecretAccessKey", "SeCrEt"},
                                         {"Expiration", expires.time_since_epoch().count() * 1000}}
                              .dump()};
        }) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = service_.url() + "/";
  }

  static std::string key_of(CredentialsProvider& provider) {
    const auto got = provider.get();
    return got ? got->access_key : got.error().to_string();
  }

  // For what another thread does.
  template <class Condition>
  static bool soon(Condition condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
    return condition();
  }

  std::atomic<int> given_ = 0;
  std::atomic<bool> held_ = false, broken_ = false;
  std::chrono::seconds lifetime_ = 1h;
  FakeService service_;
};

TEST_F(ProviderTest, KeepsThemUntilFiveMinutesBeforeTheyExpire) {
  CredentialsProvider provider(options());
  EXPECT_EQ(key_of(provider), "KEY-1");
  clock_.pass(54min);
  EXPECT_EQ(key_of(provider), "KEY-1");
  EXPECT_EQ(given_, 1);
  // Now a thread fetches new ones, and no caller waits for it.
  held_ = true;
  clock_.pass(2min);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(key_of(provider), "KEY-1");
  EXPECT_TRUE(soon([&] { return given_ == 2; }));
  EXPECT_EQ(key_of(provider), "KEY-1");
  held_ = false;
  EXPECT_TRUE(soon([&] { return key_of(provider) == "KEY-2"; }));
  EXPECT_EQ(given_, 2);
}

TEST_F(ProviderTest, WhatLivesForMinutesIsUsedForHalfOfThem) {
  lifetime_ = 4min;
  CredentialsProvider provider(options());
  EXPECT_EQ(key_of(provider), "KEY-1");
  clock_.pass(119s);
  EXPECT_EQ(key_of(provider), "KEY-1");
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(given_, 1);
  clock_.pass(2s);
  EXPECT_EQ(key_of(provider), "KEY-1");
  EXPECT_TRUE(soon([&] { return key_of(provider) == "KEY-2"; }));
}

TEST_F(ProviderTest, ManyThreadsAskOnce) {
  held_ = true;
  CredentialsProvider provider(options());
  std::vector<std::string> keys(8);
  {
    std::vector<std::jthread> threads;
    for (std::string& each : keys) threads.emplace_back([&] { each = key_of(provider); });
    std::this_thread::sleep_for(50ms);
    held_ = false;
  }
  EXPECT_THAT(keys, Each("KEY-1"));
  EXPECT_EQ(given_, 1);
}

// What threads of a transport rely on.
TEST_F(ProviderTest, ACallWithACallbackDoesNotWait) {
  CredentialsProvider provider(options());
  held_ = true;
  std::atomic<int> answers = 0;
  const auto count = [&](const Result<Credentials>& got) { answers += got && got->access_key == "KEY-1" ? 1 : 100; };
  provider.get(count);
  provider.get(count);
  EXPECT_TRUE(soon([&] { return given_ == 1; }));
  EXPECT_EQ(answers, 0);
  held_ = false;
  EXPECT_TRUE(soon([&] { return answers == 2; }));
  provider.get(count);  // known by now: called before get() returns
  EXPECT_EQ(answers, 3);
  clock_.pass(2h);
  held_ = true;
  provider.get(count);  // they have expired
  EXPECT_TRUE(soon([&] { return given_ == 2; }));
  EXPECT_EQ(answers, 3);
  held_ = false;
  EXPECT_TRUE(soon([&] { return answers == 103; }));
}

TEST_F(ProviderTest, ThoseWhoWaitedShareAFailure) {
  held_ = broken_ = true;
  CredentialsProvider provider(options());
  std::vector<std::string> texts(8);
  {
    std::vector<std::jthread> threads;
    for (std::string& each : texts) threads.emplace_back([&] { each = key_of(provider); });
    std::this_thread::sleep_for(50ms);
    held_ = false;
  }
  EXPECT_THAT(texts, Each(HasSubstr("HTTP status 400")));
  EXPECT_LT(given_, 8);
  broken_ = false;
  EXPECT_THAT(key_of(provider), HasSubstr("KEY-"));
}

TEST_F(ProviderTest, TheOldOnesServeUntilTheyTrulyExpire) {
  CredentialsProvider provider(options());
  EXPECT_EQ(key_of(provider), "KEY-1");
  broken_ = true;
  clock_.pass(56min);
  EXPECT_EQ(key_of(provider), "KEY-1");
  EXPECT_TRUE(soon([&] { return given_ == 2; }));
  // The next attempt is half a minute away.
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(key_of(provider), "KEY-1");
  EXPECT_EQ(given_, 2);
  for (int i = 0; i < 6 && given_ < 3; ++i) {
    clock_.pass(31s);
    EXPECT_EQ(key_of(provider), "KEY-1");
    std::this_thread::sleep_for(200ms);
  }
  EXPECT_GT(given_, 2);
  clock_.pass(4min);
  EXPECT_THAT(key_of(provider), HasSubstr("HTTP status 400"));
  broken_ = false;
  EXPECT_THAT(key_of(provider), HasSubstr("KEY-"));
}

TEST_F(ProviderTest, RefusedOnesAreFetchedAnewOnce) {
  CredentialsProvider provider(options());
  const auto first = provider.get();
  provider.refused(*first);
  EXPECT_EQ(key_of(provider), "KEY-2");
  provider.refused(*first);  // a late answer to an old request
  EXPECT_EQ(key_of(provider), "KEY-2");
}

TEST_F(ProviderTest, EndsARefreshThatIsUnderWay) {
  CredentialsProvider* const provider = new CredentialsProvider(options());
  EXPECT_EQ(key_of(*provider), "KEY-1");
  clock_.pass(56min);
  held_ = true;
  EXPECT_EQ(key_of(*provider), "KEY-1");
  EXPECT_TRUE(soon([&] { return given_ == 2; }));
  const auto begin = Clock::now();
  delete provider;
  EXPECT_LT(Clock::now() - begin, 15s);
  held_ = false;
}

TEST_F(ProviderTest, AForkedChildAsksForItself) {
  CredentialsProvider provider(options());
  EXPECT_EQ(key_of(provider), "KEY-1");
  const pid_t child = fork();
  if (child == 0) _exit(key_of(provider) == "KEY-2" ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(key_of(provider), "KEY-1");
}

}  // namespace
}  // namespace millrace::aws
