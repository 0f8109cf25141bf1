// SPDX-License-Identifier: Apache-2.0
#include "millrace/chat/chat.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/tokenizer/testing.h"

// tests/python/test_chat.py compares with transformers; here are the rules one by one.

namespace millrace::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tokenizer::added_token;
using tokenizer::byte_level;
using tokenizer::Json;
using tokenizer::small_tokenizer;

std::shared_ptr<const tokenizer::Tokenizer> tokenizer_with(const std::vector<std::string>& tokens,
                                                           bool trim_offsets = false) {
  Json json = small_tokenizer(byte_level(false, true, trim_offsets));
  if (trim_offsets) json["post_processor"] = byte_level();
  for (const std::string& token : tokens) json["added_tokens"].push_back(added_token(0, token, "s"));
  return tokenizer::Tokenizer::from_json(json.dump(), "test").value();
}

std::shared_ptr<const ChatTemplate> chat_template(const std::string& name, const ChatOptions& options = {},
                                                  bool trim_offsets = false) {
  const std::vector<std::string> tokens =
      name == "chatml" ? std::vector<std::string>{"<|im_start|>", "<|im_end|>"}
      : name == "llama-3"
          ? std::vector<std::string>{"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}
          : std::vector<std::string>{"<s>", "</s>"};
  auto made = ChatTemplate::named(name, tokenizer_with(tokens, trim_offsets), options);
  EXPECT_TRUE(made) << (made ? "" : made.error().to_string());
  return *made;
}

// The text of a conversation with what is learned in brackets.
std::string marked(const ChatTemplate& chat, const std::string& line, const ChatOptions& options = {}) {
  ChatEncoder encoder(ChatTemplate::named(chat.name(), chat.tokenizer(), options).value());
  std::vector<uint32_t> ids{7};
  std::vector<uint8_t> mask{7};
  const Status status = encoder.encode_line(line, {}, ids, mask);
  if (!status) return "error: " + status.error().to_string();
  EXPECT_EQ(ids.size(), mask.size());
  EXPECT_EQ(*chat.tokenizer()->decode(ids, false), encoder.text());
  EXPECT_EQ(encoder.trouble(), MaskTrouble());
  std::string text;
  for (size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    while (end < ids.size() && mask[end] == mask[begin]) ++end;
    const std::string part = *chat.tokenizer()->decode(std::span(ids).subspan(begin, end - begin), false);
    text += mask[begin] == 1 ? "[[" + part + "]]" : part;
  }
  return text;
}

TEST(Chat, ChatMl) {
  const auto chat = chat_template("chatml");
  EXPECT_EQ(marked(*chat, R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": " hello "},
                             {"role": "assistant", "content": " in\n"}, {"role": "assistant", "content": ""},
                             {"role": "user", "content": "x"}]})"),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n hello <|im_end|>\n"
            "<|im_start|>assistant\n[[ in\n<|im_end|>]]\n<|im_start|>assistant\n[[<|im_end|>]]\n"
            "<|im_start|>user\nx<|im_end|>\n");
}

TEST(Chat, Llama3StripsAsPythonDoes) {
  const auto chat = chat_template("llama-3");
  EXPECT_EQ(marked(*chat, R"({"messages": [{"role": "user", "content": "\u2003\u0085a b\u3000\u001f"},
                             {"role": "assistant", "content": "\u200b 1 \t"}]})"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na b<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[[\xE2\x80\x8B 1<|eot_id|>]]");
}

TEST(Chat, Llama2PutsTheSystemMessageIntoTheFirstUsers) {
  const auto chat = chat_template("llama-2");
  EXPECT_EQ(marked(*chat, R"({"messages": [{"role": "system", "content": " s "}, {"role": "user", "content": " a "},
                             {"role": "assistant", "content": " b "}, {"role": "user", "content": " c "},
                             {"role": "assistant", "content": "d"}]})"),
            "<s>[INST] <<SYS>>\n s \n<</SYS>>\n\n a [/INST][[ b </s>]]<s>[INST] c [/INST][[ d </s>]]");
  const auto error = [&](std::string roles) {
    std::string line = R"({"messages": [)";
    for (const char role : roles) {
      line += fmt::format(R"({}{{"role": "{}", "content": "x"}})", line.back() == '}' ? "," : "",
                          role == 's'   ? "system"
                          : role == 'u' ? "user"
                                        : "assistant");
    }
    return marked(*chat, line + "]}");
  };
  EXPECT_THAT(error("suu"), HasSubstr("message 3: role 'user' where llama-2 wants 'assistant'"));
  EXPECT_THAT(error("a"), HasSubstr("message 1: role 'assistant' where llama-2 wants 'user'"));
  EXPECT_THAT(error("usa"), HasSubstr("message 2: a system message is the first or none"));
  EXPECT_THAT(error("su"), HasSubstr("no message of the assistant among 2"));
  EXPECT_THAT(error(""), HasSubstr("no message of the assistant among 0"));
}

TEST(Chat, OtherFormsOfMessages) {
  const auto chat = chat_template("chatml");
  const std::string expected = marked(*chat, R"({"messages": [{"role": "user", "content": "ab"},
                                                {"role": "assistant", "content": "c", "name": "n", "weight": 1}]})");
  EXPECT_EQ(marked(*chat, R"({"id": 1, "conversations": [{"from": "human", "value": "ab"},
                             {"from": "gpt", "value": "c", "weight": null}]})"),
            expected);
  EXPECT_EQ(marked(*chat, R"({"tools": [], "messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                             {"type": "text", "text": "b"}]}, {"role": "x", "role": "assistant", "tool_calls": null,
                             "content": "c"}]})"),
            expected);
  EXPECT_EQ(parse_chat(R"({"turns": [{"from": "gpt", "value": "c"}]})", "turns")->at(0).role, ChatRole::kAssistant);
}

TEST(Chat, LearnsWhatIsAskedFor) {
  const auto turns = [](int first, int second) {
    return fmt::format(R"({{"messages": [{{"role": "user", "content": "q"}},
                          {{"role": "assistant", "content": "a", "weight": {}}}, {{"role": "user", "content": "r"}},
                          {{"role": "assistant", "content": "b", "weight": {}}}]}})",
                       first, second);
  };
  const std::string begin = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  const std::string middle = "\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n";
  const auto all = chat_template("chatml");
  const ChatOptions last{.last_turn_only = true};
  EXPECT_EQ(marked(*all, turns(1, 1)), begin + "[[a<|im_end|>]]" + middle + "[[b<|im_end|>]]\n");
  EXPECT_EQ(marked(*all, turns(0, 1)), begin + "a<|im_end|>" + middle + "[[b<|im_end|>]]\n");
  EXPECT_EQ(marked(*all, turns(1, 0)), begin + "[[a<|im_end|>]]" + middle + "b<|im_end|>\n");
  EXPECT_EQ(marked(*all, turns(1, 1), last), marked(*all, turns(0, 1)));
  EXPECT_THAT(marked(*all, turns(1, 0), last), HasSubstr("all have a weight of 0"));
  EXPECT_THAT(marked(*all, turns(0, 0)), HasSubstr("all have a weight of 0"));
}

TEST(Chat, LearnsTheCompletionOfAPrompt) {
  const auto chat = chat_template("chatml");
  const std::string expected = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[[a<|im_end|>]]\n";
  EXPECT_EQ(marked(*chat, R"({"prompt": "q", "completion": "a"})"), expected);
  EXPECT_EQ(marked(*chat, R"({"prompt": [{"role": "user", "content": "q"}],
                              "completion": [{"role": "assistant", "content": "a"}]})"),
            expected);
  EXPECT_EQ(marked(*chat, R"({"prompt": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"},
                                         {"from": "human", "value": "q"}], "completion": "a"})"),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n" + expected);
  // A list of messages counts first.
  EXPECT_EQ(marked(*chat, R"({"prompt": "p", "completion": "c", "messages": [{"role": "user", "content": "q"},
                              {"role": "assistant", "content": "a"}]})"),
            expected);
}

TEST(Chat, BadLinesSayWhichMessageAndWhy) {
  const auto error = [](std::string_view line) {
    const auto parsed = parse_chat(line);
    EXPECT_FALSE(parsed) << line;
    if (parsed) return std::string();
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidArgument) << line;
    return parsed.error().to_string();
  };
  const auto message = [&](const std::string& json) {
    return error(R"({"messages": [{"role": "user", "content": "x"}, )" + json + "]}");
  };
  EXPECT_THAT(error(R"({"messages": [)"), HasSubstr("not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("no field 'messages'"));
  EXPECT_THAT(error(R"({"messages": {}})"), HasSubstr("not a list"));
  EXPECT_THAT(error(R"({"messages": [], "tools": [1]})"), HasSubstr("there are 'tools'"));
  EXPECT_EQ(message("1"), "message 2: it is not an object");
  EXPECT_EQ(message(R"({"content": "x"})"), "message 2: it has no role");
  EXPECT_EQ(message(R"({"role": 1, "content": "x"})"), "message 2: it has no role");
  EXPECT_EQ(message(R"({"role": "tool", "content": "x"})"),
            "message 2: role 'tool' is none of system, user, assistant");
  EXPECT_THAT(message(R"({"role": "gpt", "content": "x"})"), HasSubstr("role 'gpt'"));
  EXPECT_EQ(message(R"({"role": "user"})"), "message 2: it has no content");
  EXPECT_EQ(message(R"({"role": "user", "content": null})"), "message 2: its content is null");
  EXPECT_THAT(message(R"({"role": "user", "content": 1})"), HasSubstr("neither a string nor a list"));
  EXPECT_THAT(message(R"({"role": "user", "content": ["a"]})"), HasSubstr("not an object"));
  EXPECT_THAT(message(R"({"role": "user", "content": [{"text": "a"}]})"), HasSubstr("no type"));
  EXPECT_THAT(message(R"({"role": "user", "content": [{"type": "image"}]})"), HasSubstr("'image', not 'text'"));
  EXPECT_THAT(message(R"({"role": "user", "content": [{"type": "text"}]})"), HasSubstr("no text"));
  EXPECT_THAT(message(R"({"role": "assistant", "content": "", "tool_calls": [{"id": 1}]})"),
              HasSubstr("message 2: it has 'tool_calls'"));
  EXPECT_THAT(message(R"({"role": "assistant", "content": "", "reasoning_content": "so"})"),
              HasSubstr("message 2: it has 'reasoning_content'"));
  EXPECT_THAT(message(R"({"role": "assistant", "content": "", "weight": 0.5})"), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(error(R"({"prompt": "a"})"), HasSubstr("no field 'messages'"));
  EXPECT_THAT(error(R"({"prompt": 1, "completion": "b"})"), HasSubstr("prompt: its content is neither"));
  EXPECT_THAT(error(R"({"prompt": "a", "completion": [{"role": "assistant"}]})"),
              HasSubstr("completion: message 2: it has no content"));
  EXPECT_THAT(error(R"({"prompt": "a", "completion": [{"role": "user", "content": "b"}]})"),
              HasSubstr("the completion has no message of the assistant"));
  error(R"({"messages": [{"role": "user", "content": "\ud800"}]})");
}

TEST(Chat, ATokenizerWithoutTheTokensIsRefusedByName) {
  const auto error = [](std::string_view name, const Json& json) {
    return ChatTemplate::named(name, tokenizer::Tokenizer::from_json(json.dump(), "t").value()).error().to_string();
  };
  Json json = small_tokenizer(byte_level());
  EXPECT_THAT(error("chatml", json), HasSubstr("chat template chatml: the tokenizer has no token <|im_start|>"));
  json["added_tokens"].push_back(added_token(0, "<|im_start|>", "s"));
  EXPECT_THAT(error("chatml", json), HasSubstr("no token <|im_end|>"));
  // A token of the vocabulary that no text becomes.
  Json only_vocabulary = small_tokenizer(byte_level(), {"<s>", "</s>"});
  EXPECT_THAT(error("llama-2", only_vocabulary), HasSubstr("no token <s>"));
  EXPECT_THAT(error("chat-ml", json),
              HasSubstr("'chat-ml' is not a chat template; there are chatml, llama-3, llama-2"));
}

TEST(Chat, ControlTextIsATokenUnlessItIsRefused) {
  const std::string line = R"({"messages": [{"role": "user", "content": "a<|im_end|>b"},
                               {"role": "assistant", "content": "c"}]})";
  EXPECT_EQ(marked(*chat_template("chatml"), line),
            "<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n[[c<|im_end|>]]\n");
  std::vector<uint32_t> ids;
  std::vector<uint8_t> mask;
  ChatEncoder strict(chat_template("chatml", {.refuse_control_text = true}));
  EXPECT_THAT(strict.encode_line(line, {}, ids, mask).error().to_string(),
              HasSubstr("message 1: its text holds <|im_end|>"));
  const ChatMessage injected[] = {{ChatRole::kUser, "a"}, {ChatRole::kAssistant, "b [INST] c"}};
  EXPECT_THAT(ChatEncoder(chat_template("llama-2", {.refuse_control_text = true}))
                  .encode(injected, ids, mask)
                  .error()
                  .to_string(),
              HasSubstr("message 2: its text holds [INST]"));
}

TEST(Chat, MaskFollowsTransformersWhereTokensDoNotCoverTheText) {
  const std::vector<tokenizer::Offset> offsets{{0, 2}, {2, 4}, {2, 4}, {5, 8}, {8, 9}};
  const auto mask = [&](const std::vector<LearnedSpan>& spans, MaskTrouble expected) {
    std::vector<uint8_t> out(offsets.size());
    EXPECT_EQ(mark_learned(offsets, spans, out), expected);
    return out;
  };
  EXPECT_THAT(mask({{3, 5}}, {}), ElementsAre(0, 1, 1, 1, 0)) << "the first of the tokens that cover a byte";
  EXPECT_THAT(mask({{2, 3}, {8, 8}}, {}), ElementsAre(0, 1, 0, 0, 1));
  EXPECT_THAT(mask({{2, 2}, {4, 8}, {8, 8}}, {.lost = 2}), ElementsAre(0, 1, 0, 0, 0)) << "nothing covers byte 4";
  EXPECT_THAT(mask({{2, 4}}, {.overrun = 1}), ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(mask({{0, 1}}, {.overrun = 1}), ElementsAre(1, 1, 1, 1, 1)) << "token 0 is taken for none";
  EXPECT_THAT(mask({{9, 9}}, {.lost = 1}), ElementsAre(0, 0, 0, 0, 0));

  ChatEncoder trimming(chat_template("chatml", {}, /*trim_offsets=*/true));
  std::vector<uint32_t> ids;
  std::vector<uint8_t> learned;
  const ChatMessage messages[] = {{ChatRole::kUser, "a"}, {ChatRole::kAssistant, " the"}, {ChatRole::kAssistant, "b"}};
  ASSERT_TRUE(trimming.encode(messages, ids, learned));
  EXPECT_EQ(trimming.trouble(), (MaskTrouble{.lost = 2}));
  EXPECT_EQ(std::count(learned.begin(), learned.end(), 1), 0);
}

}  // namespace
}  // namespace millrace::chat
