// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/secrets.h"

#include <gmock/gmock.h>

#include <random>

#include "millrace/base/testing.h"

namespace millrace::jobs {
namespace {

using testing::ElementsAre;

TEST(Secrets, EachFormIsRemoved) {
  const std::pair<const char*, const char*> cases[] = {
      {"export HF_TOKEN=abc123\n", "export HF_TOKEN=<removed>\n"},
      {"export PASSWORD='a b' X=1", "export PASSWORD='<removed>' X=1"},
      {"--wandb-api-key 0123 --lr 1", "--wandb-api-key <removed> --lr 1"},
      {"--token=0123;ls", "--token=<removed>;ls"},
      {"{\"api_key\": \"xyz\", \"n\": 1}", "{\"api_key\": \"<removed>\", \"n\": 1}"},
      {"secret: xyz", "secret: <removed>"},
      {"login hf_abcdefghijklmnop ok", "login <removed> ok"},
      {"key=ghp_0123456789abcdef0123", "key=<removed>"},
      {"AKIAIOSFODNN7EXAMPLE", "<removed>"},
      {"git clone https://me:pw@host/x.git", "git clone https://me:<removed>@host/x.git"},
      {"curl -H 'Authorization: Bearer abcdefghijkl'", "curl -H 'Authorization: Bearer <removed>'"},
      {"https://b/k?X-Amz-Signature=12ab&x=1", "https://b/k?X-Amz-Signature=<removed>&x=1"},
      {"a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb", "a\n<removed>\nb"},
      {"#SBATCH --export=ALL,HF_TOKEN=abc,N=1", "#SBATCH --export=ALL,HF_TOKEN=<removed>,N=1"},
  };
  for (const auto& [text, clean] : cases) {
    int64_t removed = 0;
    EXPECT_EQ(without_secrets(text, &removed), clean);
    EXPECT_EQ(removed, 1) << text;
  }
}

TEST(Secrets, OtherTextStays) {
  for (const char* text :
       {"--tokenizer /fsx/tokenizer.json", "export TOKENIZERS_PARALLELISM=false", "--max-tokens 4096",
        "export HF_TOKEN=$(cat token)", "TOKEN=\"$HF_TOKEN\"", "--pad-token '</s>'", "TOKEN=<your token>",
        "srun python train.py --lr 3e-4", "https://host:8080/a@b", "half_hf_", "basic training", "TOKEN", ""}) {
    EXPECT_EQ(without_secrets(text), text);
  }
}

TEST(Secrets, WordsOfACommand) {
  const std::vector<std::string> words{"--token", "abc", "--lr", "1", "PASSWORD=x", "--secret", "--flag"};
  EXPECT_THAT(without_secrets(words),
              ElementsAre("--token", "<removed>", "--lr", "1", "PASSWORD=<removed>", "--secret", "--flag"));
}

TEST(Secrets, AnyBytesAreRead) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(test_seed());
  const std::string pieces[] = {"TOKEN", "=",   ":",       " ",           "\"", "'", "--",  "://",
                                "@",     "hf_", "Bearer ", "-----BEGIN ", "\n", "x", "\xff"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int n = static_cast<int>(random() % 12); n > 0; --n) text += pieces[random() % std::size(pieces)];
    const std::string once = without_secrets(text);
    EXPECT_EQ(without_secrets(once), once) << text;
  }
}

}  // namespace
}  // namespace millrace::jobs
