// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace millrace::jobs {

namespace {

bool is_alnum(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}
bool is_name_char(char c) {
  return is_alnum(c) || c == '_' || c == '-' || c == '.';
}
bool is_token_char(char c) {
  return is_alnum(c) || c == '_' || c == '-';
}

// Prefixes that services give their tokens, with the fewest characters that follow.
struct TokenShape {
  std::string_view prefix;
  size_t least;
};
constexpr std::array<TokenShape, 19> kTokens{{{"hf_", 10},
                                              {"ghp_", 16},
                                              {"gho_", 16},
                                              {"ghs_", 16},
                                              {"ghu_", 16},
                                              {"ghr_", 16},
                                              {"github_pat_", 16},
                                              {"glpat-", 12},
                                              {"sk-", 16},
                                              {"xoxb-", 12},
                                              {"xoxp-", 12},
                                              {"AKIA", 16},
                                              {"ASIA", 16},
                                              {"AIza", 30},
                                              {"eyJ", 20},
                                              {"npm_", 16},
                                              {"pypi-", 16},
                                              {"nvapi-", 16},
                                              {"dckr_pat_", 12}}};

// Its length at the front of `text`; 0 where there is none. A JWT has dots between its parts.
size_t token_length(std::string_view text) {
  for (const TokenShape& shape : kTokens) {
    if (!text.starts_with(shape.prefix)) continue;
    size_t end = shape.prefix.size();
    const bool dots = shape.prefix == "eyJ";
    while (end < text.size() && (is_token_char(text[end]) || (dots && text[end] == '.'))) ++end;
    if (end - shape.prefix.size() >= shape.least) return end;
  }
  return 0;
}

// One pass over the text: at each place the rules try to take a secret, else one character is copied.
class Cleaner {
 public:
  explicit Cleaner(std::string_view text) : text_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (take_private_key() || take_url_password() || take_authorization() || take_token() || take_named()) continue;
      out_ += text_[at_++];
    }
    return std::move(out_);
  }
  int64_t removed() const { return removed_; }

 private:
  std::string_view rest() const { return text_.substr(at_); }
  bool at_word_start() const { return at_ == 0 || !is_name_char(text_[at_ - 1]); }
  void copy(size_t count) {
    out_ += text_.substr(at_, count);
    at_ += count;
  }
  void remove(size_t count) {
    out_ += kRemovedSecret;
    at_ += count;
    ++removed_;
  }

  bool take_private_key() {
    if (!rest().starts_with("-----BEGIN ")) return false;
    const size_t line = std::min(rest().find('\n'), rest().size());
    if (rest().substr(0, line).find("PRIVATE KEY-----") == std::string_view::npos) return false;
    const size_t end = rest().find("-----END ");
    remove(end == std::string_view::npos ? rest().size() : std::min(rest().find('\n', end), rest().size()));
    return true;
  }

  // "://user:password@host"
  bool take_url_password() {
    if (!rest().starts_with("://")) return false;
    const std::string_view place = rest().substr(3, rest().find_first_of("/ \t\r\n'\"?#", 3) - 3);
    const size_t sign = place.rfind('@');
    const size_t colon = place.find(':');
    if (sign == std::string_view::npos || colon > sign || place.substr(colon + 1).starts_with('$')) return false;
    copy(3 + colon + 1);
    remove(sign - colon - 1);
    return true;
  }

  // "Bearer abc"
  bool take_authorization() {
    for (const std::string_view kind : {"Bearer ", "bearer ", "Basic ", "basic "}) {
      if (!at_word_start() || !rest().starts_with(kind)) continue;
      size_t end = kind.size();
      while (end < rest().size() &&
             (is_name_char(rest()[end]) || std::string_view("+/=~").find(rest()[end]) != std::string_view::npos))
        ++end;
      constexpr size_t kShortest = 12;  // "basic training" is prose
      if (end - kind.size() < kShortest) return false;
      copy(kind.size());
      remove(end - kind.size());
      return true;
    }
    return false;
  }

  bool take_token() {
    if (at_ > 0 && is_alnum(text_[at_ - 1])) return false;
    const size_t length = token_length(rest());
    if (length > 0) remove(length);
    return length > 0;
  }

  // NAME=value, NAME: value, "name": "value", --name value
  bool take_named() {
    if (!at_word_start()) return false;
    size_t end = 0;
    while (end < rest().size() && is_name_char(rest()[end])) ++end;
    if (end == 0) return false;
    if (!names_secret(rest().substr(0, end))) return false;
    const size_t value = value_begin(end);
    copy(std::min(value == 0 ? end : value, rest().size()));
    if (value > 0) take_value();
    return true;
  }

  // Where the value of the name that ends at `end` begins; 0 where there is none.
  size_t value_begin(size_t end) const {
    const bool flag = rest().starts_with("--");
    size_t at = end;
    if (at < rest().size() && (rest()[at] == '"' || rest()[at] == '\'')) ++at;
    const size_t blanks = at;
    while (at < rest().size() && (rest()[at] == ' ' || rest()[at] == '\t')) ++at;
    if (at < rest().size() && (rest()[at] == '=' || rest()[at] == ':')) {
      const bool spaced = rest()[at] == ':' || at > blanks;  // of JSON, YAML and Python
      ++at;
      while (spaced && at < rest().size() && rest()[at] == ' ') ++at;
      return at;
    }
    return flag && at > blanks ? at : 0;
  }

  void take_value() {
    if (at_ >= text_.size()) return;
    const char quote = text_[at_] == '"' || text_[at_] == '\'' ? text_[at_] : '\0';
    if (quote != '\0') copy(1);
    const std::string_view stops = quote == '"' ? "\"\n" : quote == '\'' ? "'\n" : " \t\r\n;,&|)}\"'";
    const size_t length = std::min(rest().find_first_of(stops), rest().size());
    const std::string_view value = rest().substr(0, length);
    // A reference, a placeholder and an empty value tell no secret. A key may begin like a path.
    if (value.empty() || value.starts_with('$') || value.starts_with('<')) {
      copy(length);
    } else {
      remove(length);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string out_;
  int64_t removed_ = 0;
};

}  // namespace

bool names_secret(std::string_view name) {
  static constexpr std::array<std::string_view, 15> kEnds{
      "TOKEN",      "PASSWORD",    "PASSWD",        "PASSPHRASE", "SECRET",     "API_KEY",   "APIKEY",     "SECRET_KEY",
      "ACCESS_KEY", "PRIVATE_KEY", "SECRET_KEY_ID", "WANDB_KEY",  "CREDENTIAL", "SIGNATURE", "CREDENTIALS"};
  // Names of training options, not of secrets.
  static constexpr std::array<std::string_view, 7> kOthers{"EOS_TOKEN",  "BOS_TOKEN", "PAD_TOKEN", "UNK_TOKEN",
                                                           "MASK_TOKEN", "SEP_TOKEN", "CLS_TOKEN"};
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return c == '-' || c == '.' ? '_' : static_cast<char>(std::toupper(c)); });
  const auto ends = [&](std::string_view end) { return upper.ends_with(end); };
  return std::any_of(kEnds.begin(), kEnds.end(), ends) && std::none_of(kOthers.begin(), kOthers.end(), ends);
}

std::string without_secrets(std::string_view text, int64_t* removed) {
  Cleaner cleaner(text);
  std::string clean = cleaner.run();
  if (removed != nullptr) *removed += cleaner.removed();
  return clean;
}

std::vector<std::string> without_secrets(std::span<const std::string> words, int64_t* removed) {
  std::vector<std::string> clean;
  bool secret_follows = false;
  for (const std::string& word : words) {
    if (secret_follows && !word.starts_with("--")) {
      clean.emplace_back(kRemovedSecret);
      if (removed != nullptr) ++*removed;
    } else {
      clean.push_back(without_secrets(word, removed));
    }
    secret_follows = word.starts_with("--") && word.find('=') == std::string::npos && names_secret(word);
  }
  return clean;
}

}  // namespace millrace::jobs
