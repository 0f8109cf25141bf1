// SPDX-License-Identifier: Apache-2.0
#pragma once

// Turns conversations into token ids and a mask of the learned tokens: each answer and the token that ends it. Ids and
// mask equal those of transformers' apply_chat_template(messages, tokenize=True, return_dict=True,
// return_assistant_tokens_mask=True) for the published templates below, with {% generation %} around the learned text.
// No I/O. A ChatTemplate is immutable and thread-safe. A ChatEncoder belongs to one thread and keeps its template
// alive.
//
//   name     from the tokenizer_config.json of                 a conversation; [learned]
//   chatml   the ChatML example of transformers' documentation, <|im_start|>ROLE\nTEXT<|im_end|>\n for each message;
//            without a default system message                   [TEXT<|im_end|>] of an assistant
//   llama-3  meta-llama/Meta-Llama-3-8B-Instruct (3.1 and       <|begin_of_text|>, then for each message
//            later put dates in front: use the Python API) <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>
//                                                               with TEXT stripped; [TEXT<|eot_id|>] of an assistant
//   llama-2  meta-llama/Llama-2-7b-chat-hf                      <s>[INST] TEXT [/INST] for a user, TEXT stripped; the
//                                                               first one has <<SYS>>\nSYSTEM\n<</SYS>>\n\n before it;
//                                                               [ TEXT </s>] for an assistant, TEXT stripped
//
// "Stripped" is Python's str.strip(), which knows Unicode's spaces.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::chat {

enum class ChatRole { kSystem, kUser, kAssistant };
std::string_view chat_role_name(ChatRole role);  // "system", "user", "assistant"

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;     // valid UTF-8
  bool is_learned = true;  // for a message of the assistant
};

// Parses a conversation from one JSON object of valid UTF-8: {"messages": [{"role": ..., "content": ...}, ...]}, or
// {"conversations": [{"from": "human" | "gpt" | "system", "value": ...}, ...]}. `field` names another key for the
// list; a list may mix both forms. Content is a string, or a list of {"type": "text", "text": ...} whose texts are
// joined. A message with "weight" 0 is not learned. Without such a list, parses {"prompt": ..., "completion": ...}.
// Each is a list of messages, or a text: the prompt a user's, the completion an assistant's. The prompt is never
// learned. Errors: invalid_argument with the message's number, counted from 1: not JSON, no messages, an unknown role,
// content that is null or not text, and features that these templates lack (tools, tool calls, reasoning, other
// weights).
[[nodiscard]] Result<std::vector<ChatMessage>> parse_chat(std::string_view line, std::string_view field = {});

// A stretch of text that is learned.
struct LearnedSpan {
  int64_t begin = 0;  // first byte of its first character
  int64_t last = 0;   // first byte of its last character
};

struct RenderedChat {
  std::string text;
  std::vector<LearnedSpan> learned;
};

// The number of turns whose mask is wrong because the tokenizer trimmed spaces at the turn's edge out of the offsets.
// transformers has the same errors, and does not report them.
struct MaskTrouble {
  int64_t lost = 0;     // no token covers the turn's first character: neither it nor any later turn is learned
  int64_t overrun = 0;  // no token covers the turn's last character: all text up to the conversation's end is learned
  bool operator==(const MaskTrouble&) const = default;
};

// Sets `mask` to 1 on the tokens of each span, as transformers does: from the first token that covers the span's first
// character to the first token that covers its last. Other elements keep their value. REQUIRES: mask.size() ==
// offsets.size().
MaskTrouble mark_learned(std::span<const tokenizer::Offset> offsets, std::span<const LearnedSpan> spans,
                         std::span<uint8_t> mask);

struct ChatOptions {
  // Refuse a message whose text contains a control token of the template ("<|im_end|>", "[INST]"). Otherwise such text
  // is encoded as the control token, as in transformers, and can end a turn.
  bool refuse_control_text = false;
  // Learn only the assistant's last message instead of every one.
  bool last_turn_only = false;
};

class ChatTemplate {
 public:
  // Returns the template "chatml", "llama-3" or "llama-2". Errors: invalid_argument for an unknown name, and for a
  // token of the template that is not a single id of the tokenizer.
  [[nodiscard]] static Result<std::shared_ptr<const ChatTemplate>> named(
      std::string_view name, std::shared_ptr<const tokenizer::Tokenizer> tokenizer, const ChatOptions& options = {});
  static std::vector<std::string_view> names();

  std::string_view name() const;
  const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer() const { return tokenizer_; }

  // Renders a conversation, and replaces the content of `out`. Errors: invalid_argument with the message's number: no
  // messages, no learned message, a system message that is not the first, and for llama-2 roles that do not alternate,
  // beginning with user.
  [[nodiscard]] Status render(std::span<const ChatMessage> messages, RenderedChat& out) const;

  struct Definition;

 private:
  ChatTemplate(const Definition& definition, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
               const ChatOptions& options);

  const Definition& definition_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  ChatOptions options_;
};

class ChatEncoder {
 public:
  explicit ChatEncoder(std::shared_ptr<const ChatTemplate> chat_template);

  // Encodes a conversation, and replaces `ids` and `mask` (1: learned), which get equal lengths. Errors: those of
  // render and of tokenizer::Encoder::encode.
  [[nodiscard]] Status encode(std::span<const ChatMessage> messages, std::vector<uint32_t>& ids,
                              std::vector<uint8_t>& mask);
  // Parses a line of jsonl and encodes it. Errors: also those of parse_chat.
  [[nodiscard]] Status encode_line(std::string_view line, std::string_view field, std::vector<uint32_t>& ids,
                                   std::vector<uint8_t>& mask);

  // Returns the text of the last conversation.
  std::string_view text() const { return rendered_.text; }
  MaskTrouble trouble() const { return trouble_; }

 private:
  std::shared_ptr<const ChatTemplate> template_;
  tokenizer::Encoder encoder_;
  RenderedChat rendered_;
  std::vector<tokenizer::Offset> offsets_;
  MaskTrouble trouble_;
};

}  // namespace millrace::chat
