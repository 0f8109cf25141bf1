// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <set>

#include "millrace/http/testing/test_server.h"
#include "millrace/prepare/testing.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Task, ParsesIndexAndCount) {
  EXPECT_EQ(parse_task("3/10").value(), (Task{3, 10}));
  EXPECT_EQ(parse_task("0/1").value(), (Task{0, 1}));
  for (const char* bad : {"", "3", "3/", "/3", "10/10", "-1/3", "1/0", "1/2/3", " 1/2", "1/2 ", "a/b", "0x1/2",
                          "99999999999999999999/3"}) {
    const auto task = parse_task(bad);
    ASSERT_FALSE(task) << bad;
    EXPECT_EQ(task.error().code(), ErrorCode::kInvalidArgument);
  }
}

class SlurmArray : public ::testing::Test {
 protected:
  SlurmArray() {
    clear();
    forget_folder();
  }
  ~SlurmArray() override { clear(); }
  static void clear() {
    for (const char* name : {"ID", "MIN", "MAX", "STEP", "COUNT"}) ::unsetenv(variable(name).c_str());
  }
  static std::string variable(const char* name) { return std::string("SLURM_ARRAY_TASK_") + name; }
  static Result<std::optional<Task>> task(const std::map<const char*, const char*>& values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(variable(name).c_str(), value, 1);
    return task_from_slurm("mem://slurm-array");
  }
  static Result<std::optional<Task>> lone(const char* id) {
    return task({{"ID", id}, {"MIN", id}, {"MAX", id}, {"STEP", "1"}, {"COUNT", "1"}});
  }
  static void write(const std::string& name, std::string_view content) {
    const Location at = open_url("mem://slurm-array/" + name).value();
    ASSERT_TRUE(write_object(*at.storage, at.key, content));
  }
  static void forget_folder() {
    const Location at = open_url("mem://slurm-array").value();
    std::vector<std::string> keys;
    ASSERT_TRUE(for_each_object(*at.storage, "", [&](const ObjectInfo& object) -> Status {
      keys.push_back(object.key);
      return {};
    }));
    ASSERT_TRUE(at.storage->remove(keys));
  }
};

TEST_F(SlurmArray, IsCountedFromItsFirstNumber) {
  EXPECT_EQ(task({}).value(), std::nullopt);
  EXPECT_EQ(task({{"ID", "4"}, {"MIN", "0"}, {"MAX", "9"}}).value(), (Task{4, 10}));
  EXPECT_EQ(task({{"ID", "10"}, {"MIN", "1"}, {"MAX", "10"}, {"STEP", "1"}, {"COUNT", "10"}}).value(), (Task{9, 10}));
  EXPECT_EQ(task({{"ID", "6"}, {"MIN", "0"}, {"MAX", "18"}, {"STEP", "2"}, {"COUNT", "10"}}).value(), (Task{3, 10}));
}

TEST_F(SlurmArray, ThatCannotBeCountedIsRefused) {
  const auto list = task({{"ID", "5"}, {"MIN", "1"}, {"MAX", "9"}, {"COUNT", "3"}});
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(list.error().message(), HasSubstr("--array=0-2"));
  for (const std::map<const char*, const char*>& values :
       std::vector<std::map<const char*, const char*>>{{{"ID", "5"}},
                                                       {{"ID", "5"}, {"MIN", "0"}},
                                                       {{"ID", "x"}, {"MIN", "0"}, {"MAX", "9"}},
                                                       {{"ID", "10"}, {"MIN", "0"}, {"MAX", "9"}},
                                                       {{"ID", "3"}, {"MIN", "0"}, {"MAX", "18"}, {"STEP", "2"}},
                                                       {{"ID", "4"}, {"MIN", "0"}, {"MAX", "9"}, {"STEP", "0"}}}) {
    EXPECT_FALSE(task(values));
  }
}

TEST_F(SlurmArray, OfFewerTasksThanTheFolderHasRunsSomeAgain) {
  EXPECT_EQ(lone("0").value(), (Task{0, 1}));
  EXPECT_EQ(lone("1").value(), (Task{0, 1}));
  EXPECT_THAT(lone("2").error().message(), HasSubstr("name the task by hand"));
  write(std::string(formats::kConfigName), formats::serialize_shard_config({.tasks = 10}));
  EXPECT_EQ(lone("2").value(), (Task{2, 10}));
  EXPECT_EQ(lone("0").value(), (Task{0, 10}));
  EXPECT_EQ(lone("10").value(), (Task{9, 10}));
  EXPECT_THAT(lone("11").error().message(), HasSubstr("10 tasks"));
  EXPECT_EQ(task({{"ID", "5"}, {"MIN", "1"}, {"MAX", "9"}, {"STEP", "1"}, {"COUNT", "3"}}).value(), (Task{5, 10}));
  EXPECT_EQ(task({{"ID", "6"}, {"MIN", "5"}, {"MAX", "7"}, {"COUNT", "3"}}).value(), (Task{6, 10}));
  // The whole array counts as ever, and one of more tasks is none of this folder's.
  EXPECT_EQ(task({{"ID", "10"}, {"MIN", "1"}, {"MAX", "10"}, {"COUNT", "10"}}).value(), (Task{9, 10}));
  EXPECT_EQ(task({{"ID", "2"}, {"MIN", "0"}, {"MAX", "19"}, {"COUNT", "20"}}).value(), (Task{2, 20}));
  // In an array that counted from 1, task 3 is the one with index 2.
  write(formats::part_name(3, 10), "{}");
  EXPECT_EQ(lone("3").value(), (Task{2, 10}));
  write(formats::part_name(2, 10), "{}");
  EXPECT_EQ(lone("3").value(), (Task{3, 10})) << "both are finished: it is checked again";
}

class Inputs : public ::testing::Test {
 protected:
  Inputs() {
    for (const char* name : {"raw/b.txt", "raw/a.txt", "raw/c.md", "raw/.hidden.txt", "raw/deep/d.txt", "raw/deep/e.md",
                             "other/f.txt", "other/x[1].txt", "other/x1.txt"}) {
      write_file(at(name), "text\n");
    }
    std::filesystem::create_directories(at("empty"));
  }
  std::string at(std::string_view name) const { return root_.path() + "/" + std::string(name); }
  std::vector<std::string> expand(const std::vector<std::string>& names) const {
    std::vector<std::string> inputs;
    for (const std::string& name : names) inputs.push_back(at(name));
    std::vector<std::string> urls = found(inputs);
    for (std::string& url : urls) {
      if (url.starts_with(root_.path())) url.erase(0, root_.path().size() + 1);
    }
    return urls;
  }
  static std::vector<std::string> found(const std::vector<std::string>& inputs) {
    const auto found = find_inputs(inputs);
    if (!found) return {found.error().to_string()};
    std::vector<std::string> urls;
    for (const FoundInput& input : *found) urls.push_back(input.location.url);
    return urls;
  }
  Error error(const std::string& name) const {
    const auto found = find_inputs({at(name)});
    return found ? Error(ErrorCode::kInternal, "no error") : found.error();
  }
  TempDir root_{TempDir::Place::kMemory};
};

TEST_F(Inputs, AreSortedWithoutDuplicates) {
  EXPECT_THAT(expand({"raw/b.txt", "raw/a.txt", "raw/b.txt", "raw/*.txt"}), ElementsAre("raw/a.txt", "raw/b.txt"));
}

TEST_F(Inputs, FoldersStandForTheFilesBelowThem) {
  write_file(at("raw/_SUCCESS"), "");
  for (const char* name : {"raw", "raw/"}) {
    EXPECT_THAT(expand({name}), ElementsAre("raw/a.txt", "raw/b.txt", "raw/c.md", "raw/deep/d.txt", "raw/deep/e.md"));
  }
}

TEST_F(Inputs, AreTheSameHoweverTheyAreSpelled) {
  EXPECT_THAT(expand({"raw/a.txt", "./raw/a.txt", "raw/../raw//a.txt"}), ElementsAre("raw/a.txt"));
  EXPECT_EQ(find_inputs({at("raw/a.txt"), "file://" + at("raw/a.txt")}).value().size(), 1u);
}

TEST_F(Inputs, MayBeInAnyFolder) {
  EXPECT_THAT(expand({"**/*.md"}), ElementsAre("raw/c.md", "raw/deep/e.md"));
}

TEST_F(Inputs, PatternsMatchComponentByComponent) {
  EXPECT_THAT(expand({"raw/*.txt"}), ElementsAre("raw/a.txt", "raw/b.txt"));
  EXPECT_THAT(expand({"raw/?.md"}), ElementsAre("raw/c.md"));
  EXPECT_THAT(expand({"raw/[bc].*"}), ElementsAre("raw/b.txt", "raw/c.md"));
  EXPECT_THAT(expand({"*/deep/d.txt"}), ElementsAre("raw/deep/d.txt"));
  EXPECT_THAT(expand({"*/*/*.md"}), ElementsAre("raw/deep/e.md"));
  EXPECT_THAT(expand({"raw/d*"}), ElementsAre("raw/deep/d.txt", "raw/deep/e.md"));
  EXPECT_THAT(expand({"raw/{b,a}.txt"}), ElementsAre("raw/a.txt", "raw/b.txt"));
  EXPECT_THAT(expand({"{raw,other}/[a-f].txt"}), ElementsAre("other/f.txt", "raw/a.txt", "raw/b.txt"));
}

TEST_F(Inputs, AFileIsTakenByItsNameBeforeItIsAPattern) {
  EXPECT_THAT(expand({"other/x[1].txt"}), ElementsAre("other/x[1].txt"));
}

TEST_F(Inputs, ThatAreNotThereAreErrors) {
  for (const char* name : {"missing.txt", "raw/*.html", "empty", "no/such/folder/*", "raw/{a,zz}.txt", "raw/a.txt/b"}) {
    EXPECT_EQ(error(name).code(), ErrorCode::kNotFound) << name;
  }
  EXPECT_THAT(error("raw/{a,zz}.txt").message(), HasSubstr("zz.txt"));
  EXPECT_EQ(find_inputs({}).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(Inputs, InTheCurrentFolderNeedNoPath) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(at("raw"));
  const std::vector<std::string> urls = found({"*.txt"});
  std::filesystem::current_path(before);
  EXPECT_THAT(urls, ElementsAre("a.txt", "b.txt"));
}

// A bucket far away: each request takes a while.
class SlowInputs : public ::testing::Test {
 protected:
  static constexpr size_t kInputs = 12;

  SlowInputs() {
    const auto memory = make_memory_storage("slow-inputs");
    const auto slow = make_fault_storage(memory, plan_);
    for (size_t i = 0; i < kInputs; ++i) {
      Location& at = inputs_.emplace_back().location;
      at.storage = slow;
      at.key = fmt::format("raw/{:02}.txt", i);
      at.url = "mem://slow-inputs/" + at.key;
      EXPECT_TRUE(write_object(*memory, at.key, fmt::format("text {}\n", i)));
    }
  }
  auto open(const Task& task = {}) { return open_inputs(inputs_, task, {}, {}, {}); }

  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::vector<FoundInput> inputs_;
};

TEST_F(SlowInputs, AreOpenedOnceAndSeveralAtATime) {
  plan_->add({.call = FaultCall::kOpenRead, .count = FaultRule::kForever, .delay = std::chrono::milliseconds(100)});
  const auto opened = open();
  ASSERT_TRUE(opened) << opened.error().to_string();
  ASSERT_EQ(opened->size(), kInputs);
  for (size_t i = 0; i < kInputs; ++i) {
    EXPECT_EQ((*opened)[i].name, fmt::format("{:02}.txt", i));
    const auto reader = open_input((*opened)[i], {});
    ASSERT_TRUE(reader);
    std::string text(static_cast<size_t>((*reader)->size()), ' ');
    ASSERT_TRUE((*reader)->read_at(0, std::as_writable_bytes(std::span(text))));
    EXPECT_EQ(text, fmt::format("text {}\n", i));
  }
  EXPECT_EQ(plan_->hits(), static_cast<int64_t>(kInputs));
  EXPECT_GT(plan_->most_at_once(), 1);
}

TEST_F(SlowInputs, WhoseFrontIsBadAreNamedAfterAllAreOpen) {
  const Location& bad = inputs_[4].location;
  ASSERT_TRUE(write_object(*bad.storage, bad.key, std::string(1000, '\0')));
  const auto opened = open();
  ASSERT_TRUE(opened) << opened.error().to_string();
  const Status fronts = check_fronts(*opened);
  ASSERT_FALSE(fronts);
  EXPECT_THAT(fronts.error().message(), HasSubstr("04.txt"));
}

TEST_F(SlowInputs, OfOtherTasksAreNotOpened) {
  plan_->add({.call = FaultCall::kOpenRead, .count = FaultRule::kForever});
  const auto opened = open({1, 4});
  ASSERT_TRUE(opened) << opened.error().to_string();
  EXPECT_EQ(opened->size(), kInputs / 4);
  EXPECT_EQ((*opened)[1].name, "05.txt");
  EXPECT_EQ(plan_->hits(), static_cast<int64_t>(kInputs / 4));
}

TEST_F(SlowInputs, TheFirstBadOneIsNamedWhicheverFailsFirst) {
  plan_->add({.call = FaultCall::kOpenRead,
              .key_part = "03.txt",
              .delay = std::chrono::milliseconds(50),
              .error = Error(ErrorCode::kNotFound, "03.txt is gone")});
  plan_->add({.call = FaultCall::kOpenRead, .key_part = "07.txt", .error = Error(ErrorCode::kNotFound, "07.txt too")});
  const auto opened = open();
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message(), HasSubstr("03.txt is gone"));
}

// A server's answer to the question whether a name is a file tells size and version, so nothing is asked to open it.
TEST(RemoteInputs, AreOpenedWithoutAnotherQuestion) {
  std::atomic<int> without_content = 0;
  http::TestServer server([&](const http::ReceivedRequest& request) {
    http::Reply reply = http::serve_range(request, "some text\n");
    reply.headers.push_back("ETag: \"" + request.target + "\"");
    if (request.method == "HEAD" || request.header("range") == "bytes=0-0") ++without_content;
    return reply;
  });
  const auto found = find_inputs({server.url("/a.txt"), server.url("/b.txt")});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(without_content, 2);
  EXPECT_EQ(server.requests(), 2);
  const auto opened = open_inputs(*found, {}, {}, {}, {});
  ASSERT_TRUE(opened) << opened.error().to_string();
  EXPECT_TRUE(check_fronts(*opened));
  EXPECT_EQ(total_bytes(*opened), 20);
  EXPECT_EQ(without_content, 2);
}

// A bucket "bkt" with the keys "raw/00000.txt", ..., and others in that folder. It counts its requests.
class BucketInputs : public ::testing::Test {
 protected:
  BucketInputs() { set_process_url_options({.endpoint_url = server_.url(""), .anonymous = true}); }
  ~BucketInputs() override { set_process_url_options(before_); }

  http::Reply answer(const http::ReceivedRequest& request) {
    const bool is_list = request.target.find("list-type=2") != std::string::npos;
    ++(is_list ? lists_ : heads_);
    if (is_list) return refuses_lists_ ? http::Reply{.status = 403} : list(request.target);
    const std::string key = request.target.substr(5);  // "/bkt/"
    if (request.method != "HEAD" || !keys_.contains(key)) return {.status = 404};
    return {.headers = {"ETag: \"" + key + "\""}, .body = "text"};
  }
  // Ten keys a page, whatever is asked for; the token is the last key of the page before.
  http::Reply list(const std::string& target) const {
    std::string body = "<ListBucketResult>";
    int count = 0;
    for (auto key = keys_.upper_bound(value(target, "continuation-token")); key != keys_.end(); ++key) {
      if (!key->starts_with(value(target, "prefix"))) continue;
      if (count++ == 10) {
        body += fmt::format("<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
                            *std::prev(key));
        break;
      }
      body += fmt::format("<Contents><Key>{}</Key><Size>4</Size><ETag>\"{}\"</ETag></Contents>", *key, *key);
    }
    return {.body = body + "</ListBucketResult>"};
  }
  static std::string value(const std::string& target, const std::string& name) {
    const size_t begin = target.find(name + "=");
    if (begin == std::string::npos) return "";
    std::string text = target.substr(begin + name.size() + 1);
    text.resize(std::min(text.find('&'), text.size()));
    for (size_t at; (at = text.find("%2F")) != std::string::npos;) text.replace(at, 3, "/");
    return text;
  }

  static std::string name(int number) { return fmt::format("raw/{:05}.txt", number); }
  // The URLs of `count` keys, which the bucket gets.
  std::vector<std::string> add(int count, int step = 1) {
    std::vector<std::string> urls;
    for (int i = 0; i < count; ++i) urls.push_back("s3://bkt/" + *keys_.insert(name(i * step)).first);
    return urls;
  }
  void expect_found(const std::vector<std::string>& urls) {
    const auto found = find_inputs(urls);
    ASSERT_TRUE(found) << found.error().to_string();
    ASSERT_EQ(found->size(), urls.size());
    for (size_t i = 0; i < urls.size(); ++i) {
      EXPECT_EQ((*found)[i].location.url, urls[i]);
      EXPECT_EQ((*found)[i].size, 4);
      EXPECT_EQ((*found)[i].version, urls[i].substr(9));
    }
  }

  std::set<std::string> keys_;
  std::atomic<int> lists_ = 0, heads_ = 0;
  bool refuses_lists_ = false;
  const UrlOptions before_ = process_url_options();
  http::TestServer server_{[this](const http::ReceivedRequest& request) { return answer(request); }};
};

TEST_F(BucketInputs, FewNamesOfAFolderAreAskedFor) {
  expect_found(add(8));
  EXPECT_EQ(lists_, 0);
  EXPECT_EQ(heads_, 8);
}

TEST_F(BucketInputs, OneListingAnswersForManyNamesOfAFolder) {
  keys_ = {"raw/", "raw/00009.gz", "raw/z"};
  expect_found(add(9));
  EXPECT_EQ(lists_, 1);
  EXPECT_EQ(heads_, 0);
}

TEST_F(BucketInputs, ALongListingEndsAndTheRestIsAskedFor) {
  add(1000);                  // 100 pages
  expect_found(add(130, 7));  // 3 pages may be asked for, which show 5 of them
  EXPECT_EQ(lists_, 3);
  EXPECT_EQ(heads_, 125);
}

TEST_F(BucketInputs, ABucketThatMayNotBeListedIsAskedForEachName) {
  refuses_lists_ = true;
  expect_found(add(9));
  EXPECT_EQ(lists_, 1);
  EXPECT_EQ(heads_, 9);
}

TEST_F(BucketInputs, AMissingNameIsNamed) {
  std::vector<std::string> urls = add(20);
  keys_.erase(name(12));
  const auto found = find_inputs(urls);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(found.error().to_string(), HasSubstr(name(12)));
}

}  // namespace
}  // namespace millrace::prepare
