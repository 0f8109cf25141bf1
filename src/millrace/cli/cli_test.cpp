// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/cli.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/cli/signals.h"

namespace millrace::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;
namespace fs = std::filesystem;

// Everything a descriptor is given while this lives.
class Redirect {
 public:
  explicit Redirect(int fd) : fd_(fd), before_(dup(fd)), file_(std::tmpfile()) { dup2(fileno(file_), fd); }
  ~Redirect() {
    dup2(before_, fd_);
    close(before_);
    std::fclose(file_);
  }
  std::string text() const {
    std::string text(static_cast<size_t>(lseek(fileno(file_), 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fileno(file_), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  int fd_;
  int before_;
  std::FILE* file_;
};

struct Ran {
  int status = 0;
  std::string out, err;
  std::vector<nlohmann::json> objects() const {
    std::vector<nlohmann::json> found;
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) found.push_back(nlohmann::json::parse(line));
    return found;
  }
};

Ran run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "millrace");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::fflush(stdout);
  const Redirect out(1), err(2);
  Ran ran;
  ran.status = run_cli(static_cast<int>(argv.size()), argv.data());
  ran.out = out.text();
  ran.err = err.text();
  return ran;
}

class CliTest : public testing::Test {
 protected:
  CliTest() {
    std::string pattern = (fs::temp_directory_path() / "millrace-cli-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~CliTest() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name)) << content;
    return path(name);
  }
  fs::path folder_;
};

TEST_F(CliTest, WrongUsageIsTwoAndOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "millrace: a verb is missing"},
      {{"frobnicate"}, "millrace: unknown verb 'frobnicate'"},
      {{"--frobnicate"}, "millrace: unknown flag '--frobnicate'"},
      {{"shards"}, "millrace shards: a verb is missing; there are ls, check, index, cat"},
      {{"split", "a.txt", "--out", "x"}, "millrace split: --parts is required"},
      {{"split", "a.txt", "--out", "x", "--parts", "0"}, "millrace split: --parts: "},
      {{"split", "a.txt", "--out", "x", "--parts", "2", "--nope"}, "millrace split: unknown flag '--nope' ("},
      {{"job", "new", "train", "--nodez", "2", "--", "train.py"},
       "millrace job new: unknown flag '--nodez'; --nodes is meant? ("},
      {{"job", "new", "--bogus", "train", "--", "x.py"}, "millrace job new: unknown flag '--bogus' ("},
      {{"plan", "gpus", "--vramm=24GB"}, "millrace plan gpus: unknown flag '--vramm'"},
      {{"sync", "-z", "a", "b"}, "millrace sync: unknown flag '-z' ("},
      {{"job", "new", "trains"}, "millrace job new: KIND: trains not in"},
      {{"prepare"}, "millrace prepare: INPUT: "},
      {{"prepare", "a.txt", "--out", "x"}, "millrace prepare: --tokenizer is required"},
      {{"prepare", "a.txt", "--out", "x", "--tokenizer", "t", "--task", "4/4"}, "millrace prepare: --task: "},
      {{"prepare", "a.txt", "--out", "x", "--tokenizer", "t", "--shard-size", "big"},
       "millrace prepare: --shard-size: "},
      {{"prepare", "a.txt", "--finish", "x"}, "millrace prepare: --finish: "},
      {{"prepare", "--finish", "x", "--dry-run"}, "millrace prepare: --finish: "},
      {{"ckpt", "verify", "x", "--all", "--step", "1"}, "millrace ckpt verify: "},
      {{"completion", "tcsh"}, "millrace completion: SHELL: "},
      {{"ckpt", "ls", "x", "--log", "loud"}, "millrace ckpt ls: --log: "},
      {{"ckpt", "ls", "x", "--config", "/no/such.toml"}, "millrace ckpt ls: --config: cannot read"},
  };
  for (const auto& [arguments, message] : cases) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.status, kExitUsage) << message;
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, StartsWith(message));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

TEST_F(CliTest, ErrorsAreObjectsWithJson) {
  const Ran usage = run({"split", "--json"});
  EXPECT_EQ(usage.status, kExitUsage);
  EXPECT_EQ(usage.objects().at(0)["type"], "error");
  EXPECT_EQ(usage.objects().at(0)["code"], "invalid_argument");
  const Ran failed = run({"shards", "ls", path("nothing"), "--json"});
  EXPECT_EQ(failed.status, kExitFailed);
  EXPECT_EQ(failed.objects().at(0)["code"], "not_found");
  EXPECT_THAT(failed.err, HasSubstr(failed.objects().at(0)["message"].get<std::string>()));
}

TEST_F(CliTest, HelpAndVersion) {
  const Ran version = run({"--version"});
  EXPECT_EQ(version.status, kExitDone);
  EXPECT_THAT(version.out, testing::MatchesRegex("millrace [0-9.]+\n"));
  for (const std::vector<std::string>& verb : std::vector<std::vector<std::string>>{
           {"split"}, {"prepare"}, {"shards", "check"}, {"ckpt", "show"}, {"completion"}}) {
    std::vector<std::string> arguments = verb;
    arguments.emplace_back("--help");
    const Ran help = run(arguments);
    EXPECT_EQ(help.status, kExitDone);
    EXPECT_THAT(help.out, HasSubstr("Examples:\n  millrace " + verb[0]));
    EXPECT_THAT(help.out, HasSubstr("--json"));
    EXPECT_EQ(help.err, "");
  }
}

TEST_F(CliTest, ConfigFileFillsInWhatTheCommandLineLeftOpen) {
  write("a.txt", "one\ntwo\nthree\nfour\n");
  const std::string config = write("c.toml", "json = true\ninput = [\"" + path("a.txt") + "\"]\n\n[split]\nout = \"" +
                                                 path("from-file") + "\"\nparts = 3\n\n[shards.ls]\nnonsense = 1\n");
  const Ran ran = run({"split", "--config", config, "--parts", "2"});
  EXPECT_EQ(ran.status, kExitDone) << ran.err;
  EXPECT_EQ(ran.objects().size(), 3U);
  EXPECT_TRUE(fs::exists(path("from-file/part-00001.txt")));

  const Ran unknown = run({"split", "--config", write("d.toml", "[split]\npartz = 2\n")});
  EXPECT_EQ(unknown.status, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("d.toml: 'partz' is not a flag of 'split'"));
}

TEST_F(CliTest, CompletionKnowsEveryVerb) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Ran ran = run({"completion", shell});
    EXPECT_EQ(ran.status, kExitDone);
    for (const std::string word :
         {"split", "prepare", "check", "verify", "completion", "max-document-bytes", "jsonl"}) {
      EXPECT_THAT(ran.out, HasSubstr(word)) << shell;
    }
  }
}

class CliCheckpointTest : public CliTest {
 protected:
  CliCheckpointTest() {
    auto root = open_url(path("ckpt"));
    EXPECT_TRUE(root);
    const auto attempt = checkpoint::make_attempt(*root);
    EXPECT_TRUE(attempt);
    auto saver = checkpoint::Saver::create(*root, {.attempt = *attempt});
    EXPECT_TRUE(saver);
    const std::vector<float> weights(6, 1.5F);
    for (const int64_t step : {10, 20}) {
      // SAFETY: any object may be read as bytes.
      const auto* data = reinterpret_cast<const std::byte*>(weights.data());
      const std::array tensors{checkpoint::TensorToSave{
          .name = "w", .dtype = formats::Dtype::kF32, .global_shape = {2, 3}, .box = {{0, 0}, {2, 3}}, .data = data}};
      auto save = (*saver)->save(step, tensors, "{\"epoch\": 1}", "null");
      EXPECT_TRUE(save && (*save)->wait()) << (save ? "wait" : save.error().to_string());
    }
  }
  std::string root() const { return path("ckpt"); }
  // Flips one bit in the last byte of the tensors of step 20.
  void damage_newest() const {
    for (const auto& file : fs::recursive_directory_iterator(root())) {
      const std::string name = file.path().string();
      if (!name.ends_with(".safetensors") || name.find("0020/") == std::string::npos) continue;
      fs::permissions(file.path(), fs::perms::owner_write, fs::perm_options::add);
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(-1, std::ios::end);
      const char last = static_cast<char>(stream.get() ^ 1);
      stream.seekp(-1, std::ios::end);
      stream.put(last);
    }
  }
};

TEST_F(CliCheckpointTest, LsShowVerify) {
  const Ran ls = run({"ckpt", "ls", root(), "--json"});
  ASSERT_EQ(ls.objects().size(), 2U) << ls.err;
  EXPECT_EQ(ls.objects()[1]["step"], 20);
  EXPECT_EQ(ls.objects()[1]["tensors"], 1);
  EXPECT_EQ(ls.objects()[1]["ok"], true);
  EXPECT_THAT(run({"ckpt", "ls", root()}).out, HasSubstr("step  attempt"));

  const Ran show = run({"ckpt", "show", root(), "--step", "10", "--json"});
  ASSERT_EQ(show.objects().size(), 2U) << show.err;
  EXPECT_EQ(show.objects()[0]["state"]["epoch"], 1);
  EXPECT_EQ(show.objects()[1],
            nlohmann::json({{"type", "tensor"}, {"name", "w"}, {"dtype", "F32"}, {"shape", {2, 3}}, {"bytes", 24}}));
  EXPECT_THAT(run({"ckpt", "show", root()}).out, HasSubstr("[2, 3]"));

  const Ran verify = run({"ckpt", "verify", root(), "--all", "--json"});
  EXPECT_EQ(verify.status, kExitDone) << verify.out;
  EXPECT_EQ(verify.objects().size(), 2U);
  EXPECT_EQ(run({"ckpt", "show", root(), "--step", "11"}).status, kExitFailed);
}

TEST_F(CliCheckpointTest, DamageIsAFinding) {
  damage_newest();
  const Ran newest = run({"ckpt", "verify", root(), "--json", "--quiet"});
  EXPECT_EQ(newest.status, kExitFindings) << newest.err;
  ASSERT_GE(newest.objects().size(), 2U);
  EXPECT_EQ(newest.objects()[0]["type"], "finding");
  EXPECT_EQ(newest.objects()[0]["code"], "corruption");
  EXPECT_EQ(newest.objects().back()["ok"], false);
  EXPECT_EQ(run({"ckpt", "verify", root(), "--step", "10"}).status, kExitDone);
  EXPECT_EQ(run({"ckpt", "verify", root(), "--all"}).status, kExitFindings);
}

TEST_F(CliTest, AFolderWithoutCheckpoints) {
  const Ran ls = run({"ckpt", "ls", path("none")});
  EXPECT_EQ(ls.status, kExitFailed);
  EXPECT_NE(ls.err.find(path("none") + ": no checkpoints there"), std::string::npos) << ls.err;
  EXPECT_EQ(run({"ckpt", "verify", path("none")}).status, kExitFailed);
}

TEST(SignalStopTest, TheFirstSignalAsksTheSecondEnds) {
  {
    const SignalStop signals;
    EXPECT_FALSE(signals.received());
    kill(getpid(), SIGTERM);
    for (int i = 0; i < 500 && !signals.token().stop_requested(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(signals.token().stop_requested());
    EXPECT_EQ(signals.received(), SIGTERM);
  }
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_DFL);
        const SignalStop signals;
        for (int i = 0; i < 2; ++i) {
          kill(getpid(), SIGINT);
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
        }
      },
      testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace millrace::cli
