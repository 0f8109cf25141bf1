// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/hub/hub.h"

#include <gmock/gmock.h>

#include <atomic>
#include <map>

#include "millrace/base/testing/helpers.h"
#include "millrace/http/testing/test_server.h"
#include "millrace/storage/hub/detail/api.h"

namespace millrace::hub {
namespace {

using http::ReceivedRequest;
using http::Reply;
using http::serve_range;
using http::TestServer;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kToken = "hf_secretsecret";
const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

HubOptions impatient(const TestServer& server) {
  HubOptions options;
  options.endpoint = server.url("");
  options.token = kToken;
  options.token_from = "HF_TOKEN";
  options.first_pause = std::chrono::milliseconds(2);
  return options;
}

std::shared_ptr<HubStorage> open_repo(const TestServer& server, const std::string& revision = "") {
  return *open_hub_storage({HubRepo::Kind::kDataset, "org/name"}, revision, impatient(server));
}

Reply json_reply(std::string body, std::vector<std::string> headers = {}) {
  return Reply{.headers = std::move(headers), .body = std::move(body)};
}

std::string path_of(const ReceivedRequest& request) {
  return request.target.substr(0, request.target.find('?'));
}

// A Hub that keeps one file, "f", elsewhere. `cdn` answers for that place.
TestServer::Handler hub_with(const std::string& content, const std::string& cdn_url, std::atomic<int>* heads) {
  const std::string version = ContentChecksum::of(ContentChecksum::Kind::kSha256, as_bytes(content)).digest;
  return [=](const ReceivedRequest& request) {
    if (request.header("authorization") != "Bearer " + std::string(kToken)) return Reply{.status = 401};
    if (path_of(request) == "/api/datasets/org/name/revision/main") return json_reply(R"({"sha": ")" + kCommit + "\"}");
    if (path_of(request) != "/datasets/org/name/resolve/" + kCommit + "/f") {
      return Reply{.status = 404, .headers = {"X-Error-Code: EntryNotFound"}};
    }
    if (heads != nullptr && request.method == "HEAD") ++*heads;
    return Reply{.status = 302,
                 .headers = {"Location: " + cdn_url, "X-Repo-Commit: " + kCommit, "X-Linked-Etag: \"" + version + "\"",
                             "X-Linked-Size: " + std::to_string(content.size())}};
  };
}

std::string read_whole(const RandomReader& reader) {
  std::string bytes(static_cast<size_t>(reader.size()), '.');
  const Status status = reader.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return status ? bytes : status.error().to_string();
}

TEST(HubUrl, NamesARepositoryARevisionAndAPath) {
  const auto all = parse_hub_url("datasets/lerobot/pusht@v3.0/meta/info.json");
  ASSERT_TRUE(all) << all.error().to_string();
  EXPECT_EQ(all->repo, (HubRepo{HubRepo::Kind::kDataset, "lerobot/pusht"}));
  EXPECT_EQ(all->revision, "v3.0");
  EXPECT_EQ(all->path, "meta/info.json");
  EXPECT_EQ(parse_hub_url("org/model")->repo, (HubRepo{HubRepo::Kind::kModel, "org/model"}));
  EXPECT_EQ(parse_hub_url("spaces/org/app/")->repo.kind, HubRepo::Kind::kSpace);
  EXPECT_EQ(parse_hub_url("datasets/a/b@refs%2Fpr%2F1/x")->revision, "refs/pr/1");
  EXPECT_EQ(parse_hub_url("datasets/a/b@refs/convert/parquet/x/y")->revision, "refs/convert/parquet");
  EXPECT_EQ(parse_hub_url("datasets/a/b@refs/convert/parquet/x/y")->path, "x/y");
  for (const char* bad : {"", "org", "datasets/org", "org/", "org/na me", "org/name@", "org/name@v 1", "org/name/a//b",
                          "org/name/../x", "../x", "a/.."}) {
    EXPECT_FALSE(parse_hub_url(bad)) << bad;
  }
}

TEST(HubApi, FindsTheNextPage) {
  EXPECT_EQ(next_page("<https://h/a?cursor=x%3D>; rel=\"next\""), "https://h/a?cursor=x%3D");
  EXPECT_EQ(next_page("<https://h/p>; rel=\"prev\", <https://h/n>; rel=\"next\""), "https://h/n");
  EXPECT_EQ(next_page("<https://h/p>; rel=\"last\""), "");
  EXPECT_EQ(next_page("<https://h/p"), "");
  EXPECT_EQ(next_page(""), "");
}

TEST(Retry, KeepsThePauseThatAServerAsksFor) {
  const auto asked = [](int status, std::vector<std::pair<std::string, std::string>> headers) {
    return web::asked_pause({.status = status, .headers = std::move(headers)}).count();
  };
  EXPECT_EQ(asked(429, {{"ratelimit", "\"api\";r=0;t=55"}}), 56);
  EXPECT_EQ(asked(429, {{"retry-after", "7"}}), 7);
  EXPECT_EQ(asked(503, {{"retry-after", "7"}}), 7);
  EXPECT_EQ(asked(429, {{"ratelimit", "nonsense"}, {"retry-after", "3"}}), 3);
  EXPECT_EQ(asked(200, {{"ratelimit", "\"api\";r=0;t=55"}}), 0);
  const Result<http::Response> limited = http::Response{.status = 429, .headers = {{"retry-after", "200"}}};
  web::RetryPolicy policy;
  const auto begun = Clock::now() - std::chrono::hours(1);  // past the timeout
  ASSERT_TRUE(web::next_try(policy, 1, begun, limited));
  EXPECT_GT(*web::next_try(policy, 1, begun, limited), Clock::now() + std::chrono::seconds(190));
  EXPECT_FALSE(web::next_try(policy, policy.tries, begun, limited));
  policy.longest_asked_pause = std::chrono::seconds(10);
  EXPECT_FALSE(web::next_try(policy, 1, begun, limited));
  EXPECT_FALSE(web::next_try(policy, 1, begun, http::Response{.status = 500}));
}

// Vectors of FIPS 180-2 and of `git hash-object`.
TEST(ContentChecksum, KnowsWhatTheHubKeeps) {
  using Kind = ContentChecksum::Kind;
  EXPECT_EQ(ContentChecksum::of(Kind::kSha256, as_bytes("abc")).digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ContentChecksum::of(Kind::kGitBlob, as_bytes("hello\n")).digest,
            "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(ContentChecksum::of(Kind::kGitBlob, {}).digest, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST(Hub, ReadsWhereItIsRedirectedToWithoutTheToken) {
  const std::string content = test_bytes(17 << 20, 3);  // three pieces
  std::atomic<int> leaks{0}, heads{0};
  TestServer cdn([&](const ReceivedRequest& request) {
    if (!request.header("authorization").empty()) ++leaks;
    return serve_range(request, content);
  });
  TestServer hub(hub_with(content, cdn.url("/blob?Signature=s"), &heads));
  const auto repo = open_repo(hub);
  const auto info = repo->stat("f");
  ASSERT_TRUE(info) << info.error().to_string();
  EXPECT_EQ(info->size, static_cast<int64_t>(content.size()));
  const auto reader = repo->open_read("f", {.expected_version = info->version, .known_size = info->size});
  ASSERT_TRUE(reader);
  heads = 0;
  EXPECT_TRUE(read_whole(**reader) == content);
  EXPECT_EQ(heads, 1);  // the pieces ask the Hub once
  EXPECT_EQ(leaks, 0);
  EXPECT_EQ((*reader)->name(), "hf://datasets/org/name/f");
}

TEST(Hub, AsksAgainWhereTheContentIsWhenASignatureHasEnded) {
  const std::string content = test_bytes(9 << 20, 3);
  std::atomic<bool> expired{false};
  std::atomic<int> refused{0};
  TestServer cdn([&](const ReceivedRequest& request) {
    if (expired && request.target == "/old") {
      ++refused;
      return Reply{.status = 403};
    }
    return serve_range(request, content);
  });
  TestServer hub([&](const ReceivedRequest& request) {
    return hub_with(content, cdn.url(expired ? "/new" : "/old"), nullptr)(request);
  });
  const auto reader = open_repo(hub)->open_read("f");
  ASSERT_TRUE(reader) << reader.error().to_string();
  EXPECT_TRUE(read_whole(**reader) == content);
  expired = true;
  EXPECT_TRUE(read_whole(**reader) == content);
  EXPECT_GT(refused, 0);
}

TEST(Hub, AWholeReadIsCheckedAndADamagedOneRepeated) {
  const std::string content = test_bytes(100'000, 3);
  std::atomic<int> damaged{1};
  TestServer cdn([&](const ReceivedRequest& request) {
    Reply reply = serve_range(request, content);
    if (damaged-- > 0) reply.body[reply.body.size() / 2] ^= 1;
    return reply;
  });
  TestServer hub(hub_with(content, cdn.url("/blob"), nullptr));
  const auto reader = open_repo(hub)->open_read("f");
  ASSERT_TRUE(reader);
  EXPECT_TRUE(read_whole(**reader) == content);
  damaged = 100;
  EXPECT_THAT(read_whole(**reader), AllOf(HasSubstr("hf://datasets/org/name/f"), HasSubstr("SHA-256")));
}

TEST(Hub, AServerThatAnswersWithAnotherCommitOrVersionIsFound) {
  const std::string content = "content";
  TestServer cdn([&](const ReceivedRequest& request) { return serve_range(request, content); });
  std::string header, value;
  TestServer hub([&](const ReceivedRequest& request) {
    Reply reply = hub_with(content, cdn.url("/blob"), nullptr)(request);
    for (std::string& each : reply.headers) {
      if (!header.empty() && each.starts_with(header)) each = header + ": " + value;
    }
    return reply;
  });
  const auto reader = open_repo(hub)->open_read("f");
  ASSERT_TRUE(reader);
  header = "X-Repo-Commit";
  value = std::string(40, 'a');
  EXPECT_THAT(read_whole(**reader), HasSubstr("answered with commit aaaa"));
  header = "X-Linked-Etag";
  value = '"' + std::string(64, 'b') + '"';
  EXPECT_THAT(read_whole(**reader), HasSubstr("changed while reading"));
}

TEST(Hub, ListsPagesInOrderAndAnswersFromTheListing) {
  const std::string entry = R"({"type":"file","size":3,"oid":")" + std::string(40, 'a') + R"(","path":")";
  std::atomic<int> requests{0};
  TestServer* self = nullptr;
  TestServer hub([&](const ReceivedRequest& request) {
    ++requests;
    const std::string tree = "/api/datasets/org/name/tree/" + kCommit;
    if (path_of(request) == "/api/datasets/org/name/revision/v1") return json_reply(R"({"sha": ")" + kCommit + "\"}");
    if (request.target == tree + "?recursive=true&expand=false") {
      return json_reply("[" + entry + "b/z\"},{\"type\":\"directory\",\"path\":\"b\"}]",
                        {"Link: <" + self->url(tree + "?cursor=2") + ">; rel=\"next\""});
    }
    if (request.target == tree + "?cursor=2") return json_reply("[" + entry + "b.txt\"}," + entry + "a\"}]");
    return Reply{.status = 404, .headers = {"X-Error-Code: EntryNotFound"}};
  });
  self = &hub;
  const auto repo = open_repo(hub, "v1");
  const auto keys = [&](const std::string& prefix, ListOptions options) {
    std::vector<std::string> found;
    ListPages pages(*repo, prefix, options);
    while (!pages.is_at_end()) {
      const auto page = pages.next();
      if (!page) return std::vector<std::string>{page.error().to_string()};
      for (const ObjectInfo& object : page->objects) found.push_back(object.key);
      for (const std::string& folder : page->prefixes) found.push_back(folder);
    }
    return found;
  };
  EXPECT_THAT(keys("", {.max_keys = 1}), ElementsAre("a", "b.txt", "b/z"));
  EXPECT_THAT(keys("b", {}), ElementsAre("b.txt", "b/z"));
  EXPECT_THAT(keys("", {.recursive = false, .max_keys = 1}), ElementsAre("a", "b.txt", "b/"));
  EXPECT_THAT(keys("nothing/", {}), ElementsAre());
  EXPECT_EQ(repo->stat("b/z")->size, 3);
  const auto folder = repo->stat("b");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(requests, 3);
}

TEST(Hub, AListingThatMakesNoSenseIsCorruption) {
  std::string body;
  TestServer hub([&](const ReceivedRequest& request) {
    if (path_of(request).find("/revision/") != std::string::npos) return json_reply(R"({"sha": ")" + kCommit + "\"}");
    return json_reply(body);
  });
  const std::string hash = std::string(40, 'a');
  const auto file = [&](const std::string& path, int size) {
    return fmt::format(R"({{"type":"file","path":"{}","size":{},"oid":"{}"}})", path, size, hash);
  };
  const std::vector<std::string> bad_pages{"{",
                                           "{}",
                                           "[1]",
                                           "[" + file("../x", 1) + "]",
                                           "[" + file("x", -1) + "]",
                                           R"([{"type":"file","path":"x","size":1}])",
                                           "[" + file("x", 1) + "," + file("x", 1) + "]"};
  for (const std::string& bad : bad_pages) {
    body = bad;
    const auto page = open_repo(hub)->list("");
    ASSERT_FALSE(page) << bad;
    EXPECT_EQ(page.error().code(), ErrorCode::kCorruption) << bad;
  }
}

TEST(Hub, SaysWhatIsWrongAndNeverTheToken) {
  Reply reply;
  TestServer hub([&](const ReceivedRequest&) { return reply; });
  const auto error = [&](int status, std::vector<std::string> headers) {
    reply = Reply{.status = status, .headers = std::move(headers)};
    const auto commit = open_repo(hub)->commit();
    const std::string text = commit ? "opened" : commit.error().to_string();
    EXPECT_THAT(text, Not(HasSubstr(kToken)));
    return text;
  };
  EXPECT_THAT(error(403, {"X-Error-Code: GatedRepo"}), HasSubstr("ask for it at " + hub.url("/datasets/org/name")));
  EXPECT_THAT(error(404, {"X-Error-Code: RepoNotFound"}), HasSubstr("has no dataset of that name"));
  EXPECT_THAT(error(404, {"X-Error-Code: RevisionNotFound"}), HasSubstr("no such revision"));
  EXPECT_THAT(error(401, {"X-Error-Message: Invalid token " + std::string(kToken)}),
              AllOf(HasSubstr("refuses the token of HF_TOKEN"), HasSubstr("Invalid token (the token)")));
  EXPECT_THAT(error(403, {"X-Error-Message: Access to this resource is disabled."}), HasSubstr("is disabled"));
  EXPECT_THAT(error(429, {}), HasSubstr("limits the rate"));
  EXPECT_THAT(error(500, {}), HasSubstr("500"));
  EXPECT_THAT(error(302, {"Location: /again"}), HasSubstr("redirects"));
}

TEST(Hub, IsReadOnly) {
  TestServer hub([&](const ReceivedRequest&) { return Reply{.status = 500}; });
  const auto repo = open_repo(hub);
  const auto written = repo->open_write("f");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(written.error().to_string(), HasSubstr("can only be read"));
  const std::string key = "f";
  EXPECT_EQ(repo->remove(std::span(&key, 1)).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(hub.requests(), 0);
}

TEST(Hub, RefusesAnEndpointThatIsNoUrl) {
  HubOptions options;
  options.endpoint = "huggingface.co";
  EXPECT_EQ(open_hub_storage({HubRepo::Kind::kModel, "a/b"}, "", options).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(open_hub_storage({HubRepo::Kind::kModel, "a"}, "", {}));
}

}  // namespace
}  // namespace millrace::hub
