// SPDX-License-Identifier: Apache-2.0
#include "millrace/chat/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "millrace/base/log.h"

namespace millrace::chat {

struct ChatTemplate::Definition {
  std::string_view name;
  std::vector<std::string_view> tokens;  // single ids
  std::vector<std::string_view> words;   // written between messages as ordinary text
  bool alternates;                       // user and assistant take turns
  void (*render)(std::span<const ChatMessage>, RenderedChat&);
};

namespace {

// The characters for which str.isspace() is true, as UTF-8; none is a prefix of another.
constexpr std::array<std::string_view, 29> kPythonSpaces{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

std::string_view stripped(std::string_view text) {
  const auto cut = [&](auto at_end, auto remove) {
    for (;;) {
      const auto space = std::find_if(kPythonSpaces.begin(), kPythonSpaces.end(), at_end);
      if (space == kPythonSpaces.end()) return;
      remove(space->size());
    }
  };
  cut([&](auto space) { return text.starts_with(space); }, [&](size_t n) { text.remove_prefix(n); });
  cut([&](auto space) { return text.ends_with(space); }, [&](size_t n) { text.remove_suffix(n); });
  return text;
}

// Appends text that is learned. Its last character is ASCII: the end of the token that ends the turn.
template <class... Parts>
void learn(RenderedChat& out, Parts... parts) {
  const auto begin = static_cast<int64_t>(out.text.size());
  (out.text.append(parts), ...);
  out.learned.push_back({begin, static_cast<int64_t>(out.text.size()) - 1});
}

void render_chatml(std::span<const ChatMessage> messages, RenderedChat& out) {
  for (const ChatMessage& message : messages) {
    out.text.append("<|im_start|>").append(chat_role_name(message.role)).append("\n");
    if (message.role == ChatRole::kAssistant) {
      learn(out, std::string_view(message.content), "<|im_end|>");
    } else {
      out.text.append(message.content).append("<|im_end|>");
    }
    out.text.append("\n");
  }
}

void render_llama_3(std::span<const ChatMessage> messages, RenderedChat& out) {
  out.text.append("<|begin_of_text|>");
  for (const ChatMessage& message : messages) {
    out.text.append("<|start_header_id|>").append(chat_role_name(message.role)).append("<|end_header_id|>\n\n");
    if (message.role == ChatRole::kAssistant) {
      learn(out, stripped(message.content), "<|eot_id|>");
    } else {
      out.text.append(stripped(message.content)).append("<|eot_id|>");
    }
  }
}

void render_llama_2(std::span<const ChatMessage> messages, RenderedChat& out) {
  std::string system;  // goes into the first message behind it
  for (const ChatMessage& message : messages) {
    if (message.role == ChatRole::kSystem) {
      system.append("<<SYS>>\n").append(message.content).append("\n<</SYS>>\n\n");
    } else if (message.role == ChatRole::kAssistant) {
      learn(out, " ", stripped(message.content), " </s>");
    } else {
      const std::string content = std::exchange(system, {}) + message.content;
      out.text.append("<s>[INST] ").append(stripped(content)).append(" [/INST]");
    }
  }
}

const std::vector<ChatTemplate::Definition>& definitions() {
  static const std::vector<ChatTemplate::Definition> all{
      {"chatml", {"<|im_start|>", "<|im_end|>"}, {}, false, render_chatml},
      {"llama-3",
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       {},
       false,
       render_llama_3},
      {"llama-2", {"<s>", "</s>"}, {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"}, true, render_llama_2}};
  return all;
}

// How often the text `token` is one id in `text`, and how often it is not.
struct Occurrences {
  int64_t one_id = 0, other = 0;
};
Result<Occurrences> occurrences(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, std::string_view token,
                                std::string_view text) {
  std::vector<uint32_t> ids;
  std::vector<tokenizer::Offset> offsets;
  RETURN_IF_ERROR(tokenizer::Encoder(tokenizer).encode(text, {.add_special_tokens = false}, ids, &offsets));
  const auto id = tokenizer->token_to_id(token);
  Occurrences found;
  for (size_t at = text.find(token); at != std::string_view::npos; at = text.find(token, at + 1)) {
    const auto begin = static_cast<int64_t>(at), end = begin + static_cast<int64_t>(token.size());
    bool one = false;
    for (size_t i = 0; i < ids.size(); ++i) {
      // Added tokens may take spaces beside them.
      one |= ids[i] == id && offsets[i].begin <= begin && end <= offsets[i].end;
    }
    ++(one ? found.one_id : found.other);
  }
  return found;
}

// Fails unless every token of the template is one of the tokenizer. Logs a warning where the tokenizer does not find a
// token that the template writes, as "<s>" after "</s>" in files that normalize it; the ids still equal transformers'.
Status check_tokens(const ChatTemplate::Definition& definition,
                    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer) {
  const std::vector<ChatMessage> messages{{ChatRole::kSystem, "a"},
                                          {ChatRole::kUser, "b"},
                                          {ChatRole::kAssistant, "c"},
                                          {ChatRole::kUser, "d"},
                                          {ChatRole::kAssistant, "e"}};
  RenderedChat sample;
  definition.render(messages, sample);
  for (const std::string_view token : definition.tokens) {
    ASSIGN_OR_RETURN(const Occurrences found, occurrences(tokenizer, token, sample.text));
    if (found.one_id == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "chat template {}: the tokenizer has no token {} (it is needed as one added token)", definition.name,
                  token);
    }
    if (found.other > 0) {
      log(LogLevel::kWarning,
          "chat template {}: the tokenizer does not take every {} of a conversation for the token, nor does "
          "transformers with this file; `\"normalized\": false` among its added_tokens mends that",
          definition.name, token);
    }
  }
  return {};
}

// Keeps the spans to be learned. `spans` has one for each message of the assistant.
void keep_learned(std::span<const ChatMessage> messages, bool only_last, std::vector<LearnedSpan>& spans) {
  size_t kept = 0, span = 0;
  for (const ChatMessage& message : messages) {
    if (message.role != ChatRole::kAssistant) continue;
    if (message.is_learned && (!only_last || span + 1 == spans.size())) spans[kept++] = spans[span];
    ++span;
  }
  spans.resize(kept);
}

tl::unexpected<Error> bad_message(size_t i, std::string_view reason) {
  return fail(ErrorCode::kInvalidArgument, "message {}: {}", i + 1, reason);
}

}  // namespace

std::string_view chat_role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      break;
  }
  return "assistant";
}

MaskTrouble mark_learned(std::span<const tokenizer::Offset> offsets, std::span<const LearnedSpan> spans,
                         std::span<uint8_t> mask) {
  constexpr size_t kNone = SIZE_MAX;
  std::vector<int64_t> places;
  for (const LearnedSpan& span : spans) places.insert(places.end(), {span.begin, span.last});
  std::sort(places.begin(), places.end());
  std::vector<size_t> found(places.size(), kNone);  // the first token that covers each place
  for (size_t token = 0; token < offsets.size(); ++token) {
    auto i = static_cast<size_t>(std::lower_bound(places.begin(), places.end(), offsets[token].begin) - places.begin());
    for (; i < places.size() && places[i] < offsets[token].end; ++i) found[i] = std::min(found[i], token);
  }
  const auto token_at = [&](int64_t place) {
    return found[static_cast<size_t>(std::lower_bound(places.begin(), places.end(), place) - places.begin())];
  };

  MaskTrouble trouble;
  for (size_t i = 0; i < spans.size(); ++i) {
    const size_t first = token_at(spans[i].begin), last = token_at(spans[i].last);
    if (first == kNone) {
      trouble.lost = static_cast<int64_t>(spans.size() - i);
      break;
    }
    const bool bounded = last != kNone && last != 0;  // transformers takes token 0 for none
    if (!bounded) ++trouble.overrun;
    for (size_t token = first; token < (bounded ? last + 1 : mask.size()); ++token) mask[token] = 1;
  }
  return trouble;
}

ChatTemplate::ChatTemplate(const Definition& definition, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                           const ChatOptions& options)
    : definition_(definition), tokenizer_(std::move(tokenizer)), options_(options) {}

std::vector<std::string_view> ChatTemplate::names() {
  std::vector<std::string_view> names;
  for (const Definition& definition : definitions()) names.push_back(definition.name);
  return names;
}

std::string_view ChatTemplate::name() const {
  return definition_.name;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::named(std::string_view name,
                                                                std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                                                const ChatOptions& options) {
  for (const Definition& definition : definitions()) {
    if (definition.name != name) continue;
    RETURN_IF_ERROR(check_tokens(definition, tokenizer));
    return std::shared_ptr<const ChatTemplate>(new ChatTemplate(definition, std::move(tokenizer), options));
  }
  return fail(ErrorCode::kInvalidArgument, "'{}' is not a chat template; there are {}", name, fmt::join(names(), ", "));
}

Status ChatTemplate::render(std::span<const ChatMessage> messages, RenderedChat& out) const {
  out.text.clear();
  out.learned.clear();
  bool answered = false;
  ChatRole expected = ChatRole::kUser;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    answered |= message.role == ChatRole::kAssistant;
    if (message.role == ChatRole::kSystem) {
      if (i > 0) return bad_message(i, "a system message is the first or none");
    } else if (definition_.alternates) {
      if (message.role != expected) {
        return bad_message(i, fmt::format("role '{}' where {} wants '{}': user and assistant take turns",
                                          chat_role_name(message.role), definition_.name, chat_role_name(expected)));
      }
      expected = expected == ChatRole::kUser ? ChatRole::kAssistant : ChatRole::kUser;
    }
    if (!options_.refuse_control_text) continue;
    for (const auto* texts : {&definition_.tokens, &definition_.words}) {
      for (const std::string_view text : *texts) {
        if (message.content.find(text) == std::string::npos) continue;
        return bad_message(i, fmt::format("its text holds {}, which {} keeps for itself", text, definition_.name));
      }
    }
  }
  if (!answered) {
    return fail(ErrorCode::kInvalidArgument, "no message of the assistant among {}: nothing to learn", messages.size());
  }
  definition_.render(messages, out);
  keep_learned(messages, options_.last_turn_only, out.learned);
  if (out.learned.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no message that is learned among {}: all have a weight of 0",
                messages.size());
  }
  return {};
}

ChatEncoder::ChatEncoder(std::shared_ptr<const ChatTemplate> chat_template)
    : template_(std::move(chat_template)), encoder_(template_->tokenizer()) {}

Status ChatEncoder::encode(std::span<const ChatMessage> messages, std::vector<uint32_t>& ids,
                           std::vector<uint8_t>& mask) {
  ids.clear();
  mask.clear();
  offsets_.clear();
  trouble_ = {};
  RETURN_IF_ERROR(template_->render(messages, rendered_));
  RETURN_IF_ERROR(encoder_.encode(rendered_.text, {.add_special_tokens = false}, ids, &offsets_));
  mask.resize(ids.size());
  trouble_ = mark_learned(offsets_, rendered_.learned, mask);
  return {};
}

Status ChatEncoder::encode_line(std::string_view line, std::string_view field, std::vector<uint32_t>& ids,
                                std::vector<uint8_t>& mask) {
  ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, parse_chat(line, field));
  return encode(messages, ids, mask);
}

}  // namespace millrace::chat
