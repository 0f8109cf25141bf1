// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/steps/decoder.h"

#include <algorithm>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/text/byte_map.h"
#include "millrace/tokenizer/words/pattern.h"

namespace millrace::tokenizer {

class Decoder::Step {
 public:
  virtual ~Step() = default;
  virtual Status apply(std::vector<std::string>& tokens) const = 0;
};

namespace {

using Tokens = std::vector<std::string>;

std::string with_replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  if (from.empty()) {  // it is found before every character and at the end
    for (Characters c(text); !c.at_end(); c.next())
      result.append(to).append(text.substr(c.begin(), c.end() - c.begin()));
    return result.append(to);
  }
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos) return result;
    result += to;
    at = found + from.size();
  }
}

// What WordPiece and CTC do to the spaces of English.
std::string cleaned_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) text = with_replaced(text, from, to);
  return text;
}

std::optional<char> byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  const int high = token[3] == '+' ? 0 : digit(token[3]);  // a sign is a number's start to `tokenizers`
  const int low = digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

void flush_bytes(std::string& bytes, Tokens& out) {
  if (bytes.empty()) return;
  if (is_utf8(bytes))
    out.push_back(bytes);
  else
    out.insert(out.end(), bytes.size(), "\uFFFD");
  bytes.clear();
}

}  // namespace

struct Decoder::Steps {
  struct ByteLevel : Step {
    Status apply(Tokens& tokens) const override {
      std::string bytes;
      for (const std::string& token : tokens)
        if (!append_bytes_of(token, bytes)) bytes += token;
      std::string text;
      append_utf8_replaced(bytes, text);
      tokens.clear();
      tokens.push_back(std::move(text));
      return {};
    }
  };

  struct WordPiece : Step {
    explicit WordPiece(WordPieceDecoderSpec s) : spec(std::move(s)) {}
    Status apply(Tokens& tokens) const override {
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0)
          tokens[i] = tokens[i].starts_with(spec.prefix) ? tokens[i].substr(spec.prefix.size()) : " " + tokens[i];
        if (spec.cleanup) tokens[i] = cleaned_up(std::move(tokens[i]));
      }
      return {};
    }
    WordPieceDecoderSpec spec;
  };

  struct Metaspace : Step {
    explicit Metaspace(MetaspaceDecoderSpec s) : spec(std::move(s)) {}
    Status apply(Tokens& tokens) const override {
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = with_replaced(tokens[i], spec.replacement, i == 0 && spec.drop_first ? "" : " ");
      return {};
    }
    MetaspaceDecoderSpec spec;
  };

  struct Bpe : Step {
    explicit Bpe(BpeDecoderSpec s) : spec(std::move(s)) {}
    Status apply(Tokens& tokens) const override {
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = with_replaced(tokens[i], spec.suffix, i + 1 == tokens.size() ? "" : " ");
      return {};
    }
    BpeDecoderSpec spec;
  };

  struct Ctc : Step {
    explicit Ctc(CtcDecoderSpec s) : spec(std::move(s)) {}
    Status apply(Tokens& tokens) const override {
      tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
      for (std::string& token : tokens) {
        token = with_replaced(token, spec.pad_token, "");
        if (spec.cleanup) token = with_replaced(cleaned_up(std::move(token)), spec.word_delimiter_token, " ");
      }
      std::erase(tokens, "");
      return {};
    }
    CtcDecoderSpec spec;
  };

  struct ByteFallback : Step {
    Status apply(Tokens& tokens) const override {
      Tokens out;
      std::string bytes;
      for (std::string& token : tokens) {
        if (const auto byte = byte_token(token)) {
          bytes += *byte;
          continue;
        }
        flush_bytes(bytes, out);
        out.push_back(std::move(token));
      }
      flush_bytes(bytes, out);
      tokens = std::move(out);
      return {};
    }
  };

  struct Fuse : Step {
    Status apply(Tokens& tokens) const override {
      std::string text;
      for (const std::string& token : tokens) text += token;
      tokens.clear();
      tokens.push_back(std::move(text));
      return {};
    }
  };

  struct Strip : Step {
    explicit Strip(StripDecoderSpec s) : spec(s) { append_utf8(s.content, content); }
    Status apply(Tokens& tokens) const override {
      for (std::string& token : tokens) {
        std::string_view rest = token;
        for (uint64_t i = 0; i < spec.start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
        for (uint64_t i = 0; i < spec.stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
        token = std::string(rest);
      }
      return {};
    }
    StripDecoderSpec spec;
    std::string content;
  };

  struct Replace : Step {
    Replace(Pattern p, std::string c) : pattern(std::move(p)), content(std::move(c)) {}
    Status apply(Tokens& tokens) const override {
      std::vector<Part> parts;
      AlignedText in, out;
      for (std::string& token : tokens) {
        in.assign(token, 0, false);
        out.clear(0, false);
        RETURN_IF_ERROR(replace_matches(pattern, content, in, parts, out));
        token = std::string(out.text());
      }
      return {};
    }
    Pattern pattern;
    std::string content;
  };

  // Adds what one component of the file does.
  struct Builder {
    std::vector<std::unique_ptr<const Step>>& steps;

    template <class T, class... Arguments>
    Status add(Arguments&&... arguments) {
      steps.push_back(std::make_unique<T>(std::forward<Arguments>(arguments)...));
      return {};
    }
    Status operator()(const ByteLevelDecoderSpec&) { return add<ByteLevel>(); }
    Status operator()(const WordPieceDecoderSpec& spec) { return add<WordPiece>(spec); }
    Status operator()(const MetaspaceDecoderSpec& spec) { return add<Metaspace>(spec); }
    Status operator()(const BpeDecoderSpec& spec) { return add<Bpe>(spec); }
    Status operator()(const CtcDecoderSpec& spec) { return add<Ctc>(spec); }
    Status operator()(const ByteFallbackDecoderSpec&) { return add<ByteFallback>(); }
    Status operator()(const FuseDecoderSpec&) { return add<Fuse>(); }
    Status operator()(const StripDecoderSpec& spec) { return add<Strip>(spec); }
    Status operator()(const ReplaceSpec& spec) {
      ASSIGN_OR_RETURN(auto pattern, Pattern::build(spec.pattern));
      return add<Replace>(std::move(pattern), spec.content);
    }
  };
};

Decoder::Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

Result<Decoder> Decoder::build(const std::optional<std::vector<DecoderSpec>>& specs) {
  Decoder decoder;
  decoder.joins_with_spaces_ = !specs.has_value();
  if (!specs) return decoder;
  for (const DecoderSpec& spec : *specs)
    RETURN_IF_ERROR(with_context(std::visit(Steps::Builder{decoder.steps_}, spec), "decoder"));
  return decoder;
}

Result<std::string> Decoder::decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) RETURN_IF_ERROR(step->apply(tokens));
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (joins_with_spaces_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace millrace::tokenizer
