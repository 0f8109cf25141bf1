// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "millrace/base/text/utf8.h"
#include "millrace/chat/chat.h"

namespace millrace::chat {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::array<std::pair<std::string_view, ChatRole>, 5> kRoles{{{"system", ChatRole::kSystem},
                                                                       {"user", ChatRole::kUser},
                                                                       {"assistant", ChatRole::kAssistant},
                                                                       {"human", ChatRole::kUser},
                                                                       {"gpt", ChatRole::kAssistant}}};
// Keys of a message that the native templates would drop silently.
constexpr std::array<std::string_view, 6> kNotRendered{"tool_calls", "function_call",     "tool_call_id",
                                                       "reasoning",  "reasoning_content", "thinking"};

tl::unexpected<Error> bad(std::string_view reason) {
  return fail(ErrorCode::kInvalidArgument, "{}", reason);
}

// The last of equal keys, as in Python.
std::optional<element> find(const object& from, std::string_view key) {
  std::optional<element> found;
  for (const auto& [name, value] : from) {
    if (name == key) found = value;
  }
  return found;
}

// Null, "", [] and {} count as absent.
bool says_nothing(const element& value) {
  std::string_view text;
  array list;
  object members;
  return value.is_null() || (value.get(text) == simdjson::SUCCESS && text.empty()) ||
         (value.get(list) == simdjson::SUCCESS && list.begin() == list.end()) ||
         (value.get(members) == simdjson::SUCCESS && members.begin() == members.end());
}

Status append_text(std::string_view text, std::string& out) {
  if (!is_utf8(text)) return bad("its content is not Unicode (half a surrogate pair)");
  out.append(text);
  return {};
}

Result<std::string> content_of(const element& value) {
  std::string content;
  std::string_view text;
  array parts;
  if (value.get(text) == simdjson::SUCCESS) {
    RETURN_IF_ERROR(append_text(text, content));
    return content;
  }
  if (value.is_null()) return bad("its content is null");
  if (value.get(parts) != simdjson::SUCCESS) return bad("its content is neither a string nor a list of text parts");
  for (const element& part : parts) {
    object members;
    if (part.get(members) != simdjson::SUCCESS) return bad("a part of its content is not an object");
    const auto type = find(members, "type");
    std::string_view name;
    if (!type || type->get(name) != simdjson::SUCCESS) return bad("a part of its content has no type");
    if (name != "text") return bad(fmt::format("a part of its content is of type '{}', not 'text'", name));
    const auto of_part = find(members, "text");
    if (!of_part || of_part->get(text) != simdjson::SUCCESS) return bad("a part of its content has no text");
    RETURN_IF_ERROR(append_text(text, content));
  }
  return content;
}

Result<ChatMessage> message_of(const element& value) {
  object members;
  if (value.get(members) != simdjson::SUCCESS) return bad("it is not an object");
  auto role = find(members, "role"), content = find(members, "content");
  const bool share_gpt = !role && !content;
  if (share_gpt) {
    role = find(members, "from");
    content = find(members, "value");
  }
  std::string_view role_name;
  if (!role || role->get(role_name) != simdjson::SUCCESS) return bad("it has no role");
  std::optional<ChatRole> known;
  for (const auto& [name, each] : kRoles) {
    if (name == role_name && (share_gpt || name == chat_role_name(each))) known = each;
  }
  if (!known) return bad(fmt::format("role '{}' is none of system, user, assistant", role_name));
  for (const std::string_view key : kNotRendered) {
    const auto found = find(members, key);
    if (found && !says_nothing(*found))
      return bad(fmt::format("it has '{}', which this template has no place for", key));
  }
  double weight = 1;
  const auto given = find(members, "weight");
  if (given && !given->is_null() && (given->get(weight) != simdjson::SUCCESS || (weight != 0 && weight != 1))) {
    return bad("it has a weight that is neither 0 nor 1");
  }
  if (!content) return bad("it has no content");
  ASSIGN_OR_RETURN(std::string text, content_of(*content));
  return ChatMessage{*known, std::move(text), weight == 1};
}

// Appends the messages of a list. Errors: invalid_argument, with the number of the message among all.
Status append_messages(const array& items, std::vector<ChatMessage>& messages) {
  for (const element& item : items) {
    ASSIGN_OR_RETURN(ChatMessage message,
                     with_context(message_of(item), fmt::format("message {}", messages.size() + 1)));
    messages.push_back(std::move(message));
  }
  return {};
}

// Appends a prompt or a completion: a list of messages, or the text of one.
Status append_side(const element& side, ChatRole role, std::vector<ChatMessage>& messages) {
  array items;
  if (side.get(items) == simdjson::SUCCESS) return append_messages(items, messages);
  ASSIGN_OR_RETURN(std::string text, content_of(side));
  messages.push_back({role, std::move(text)});
  return {};
}

Result<std::vector<ChatMessage>> prompt_and_completion(const element& prompt, const element& completion) {
  std::vector<ChatMessage> messages;
  RETURN_IF_ERROR(with_context(append_side(prompt, ChatRole::kUser, messages), "prompt"));
  for (ChatMessage& message : messages) message.is_learned = false;
  const size_t begin = messages.size();
  RETURN_IF_ERROR(with_context(append_side(completion, ChatRole::kAssistant, messages), "completion"));
  const auto is_answer = [](const ChatMessage& each) { return each.role == ChatRole::kAssistant; };
  if (std::none_of(messages.begin() + static_cast<ptrdiff_t>(begin), messages.end(), is_answer)) {
    return bad("the completion has no message of the assistant");
  }
  return messages;
}

}  // namespace

Result<std::vector<ChatMessage>> parse_chat(std::string_view line, std::string_view field) {
  thread_local simdjson::dom::parser parser;
  element value;
  if (const auto error = parser.parse(line.data(), line.size()).get(value)) {
    return bad(fmt::format("the line is not JSON ({})", simdjson::error_message(error)));
  }
  object top;
  if (value.get(top) != simdjson::SUCCESS) return bad("the line is not a JSON object");
  auto list = find(top, field.empty() ? "messages" : field);
  if (!list && field.empty()) list = find(top, "conversations");
  for (const std::string_view key : {"tools", "functions"}) {
    const auto found = find(top, key);
    if (found && !says_nothing(*found))
      return bad(fmt::format("there are '{}', which this template has no place for", key));
  }
  const auto prompt = find(top, "prompt"), completion = find(top, "completion");
  if (!list && field.empty() && prompt && completion) return prompt_and_completion(*prompt, *completion);
  if (!list) return bad(fmt::format("there is no field '{}'", field.empty() ? "messages" : field));
  array items;
  if (list->get(items) != simdjson::SUCCESS) return bad("the messages are not a list");
  std::vector<ChatMessage> messages;
  RETURN_IF_ERROR(append_messages(items, messages));
  return messages;
}

}  // namespace millrace::chat
