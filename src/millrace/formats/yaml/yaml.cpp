// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/yaml/yaml.h"

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/formats/yaml/text.h"

namespace millrace::yaml {

namespace {

Place place_of(const yaml_mark_t& mark) {
  return {static_cast<int64_t>(mark.line) + 1, static_cast<int64_t>(mark.column) + 1};
}

// One event of the parser, given back when it is dropped.
class Event {
 public:
  Event() = default;
  ~Event() { yaml_event_delete(&event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  yaml_event_t event = {};
  Place at() const { return place_of(event.start_mark); }
  yaml_event_type_t type() const { return event.type; }
};

// SAFETY: yaml_char_t is unsigned char, which may alias char.
std::string text_of(const yaml_char_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}
std::string text_of(const yaml_char_t* word) {
  return word == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(word));
}

// The range of a scalar, in which a '#' does not start a comment.
struct Extent {
  Place begin, end;
};

bool before(const Place& a, const Place& b) {
  return a.line != b.line ? a.line < b.line : a.column < b.column;
}

// The tree of the first document. A failed step leaves its problem and every caller stops.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& text) : text_(text) {
    yaml_parser_initialize(&parser_);
    // SAFETY: as above.
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
  }
  ~TreeBuilder() { yaml_parser_delete(&parser_); }
  TreeBuilder(const TreeBuilder&) = delete;
  TreeBuilder& operator=(const TreeBuilder&) = delete;

  bool build(Node& root) {
    Event stream, document;
    if (!next(stream) || !next(document)) return false;
    if (document.type() == YAML_STREAM_END_EVENT) return true;  // nothing but comments
    Event first;
    if (!next(first) || !read_node(first, root, 0)) return false;
    Event end, after;
    if (!next(end) || !next(after)) return false;
    return after.type() == YAML_STREAM_END_EVENT ||
           refuse(after.at(), "a second document starts here; only one belongs in this file");
  }

  std::vector<Problem> problems;
  std::vector<Extent> scalars;

 private:
  bool refuse(const Place& at, std::string message) {
    problems.push_back({Problem::Kind::kSyntax, at, std::move(message)});
    return false;
  }

  bool next(Event& event) {
    if (yaml_parser_parse(&parser_, &event.event) != 0) return true;
    const Place at = place_of(parser_.problem_mark);
    std::string message = parser_.problem == nullptr ? "cannot be read" : parser_.problem;
    if (character_at(text_, at) == '\t') message = "a tab; YAML is indented with spaces";
    if (parser_.context != nullptr) {
      message += fmt::format(" ({}, which starts in line {})", parser_.context, parser_.context_mark.line + 1);
    }
    return refuse(at, std::move(message));
  }

  bool counted(const Place& at, int64_t nodes) {
    nodes_ += nodes;
    return nodes_ <= kMaxNodes || refuse(at, fmt::format("aliases stand for more than {} values", kMaxNodes));
  }

  bool read_node(const Event& event, Node& node, int depth) {
    node.at = event.at();
    if (depth > kMaxDepth) return refuse(node.at, fmt::format("more than {} levels deep", kMaxDepth));
    if (!counted(node.at, 1)) return false;
    switch (event.type()) {
      case YAML_ALIAS_EVENT:
        return read_alias(event, node);
      case YAML_SCALAR_EVENT:
        return read_scalar(event, node);
      case YAML_SEQUENCE_START_EVENT:
        node.kind = Node::Kind::kSequence;
        return read_items(node, depth) && anchored(event.event.data.sequence_start.anchor, node);
      case YAML_MAPPING_START_EVENT:
        node.kind = Node::Kind::kMapping;
        return read_entries(node, depth) && anchored(event.event.data.mapping_start.anchor, node);
      default:
        return refuse(node.at, "a value is missing");
    }
  }

  bool read_scalar(const Event& event, Node& node) {
    const auto& scalar = event.event.data.scalar;
    scalars.push_back({node.at, place_of(event.event.end_mark)});
    node.kind = Node::Kind::kScalar;
    node.text = text_of(scalar.value, scalar.length);
    const std::string tag = text_of(scalar.tag);
    node.plain = scalar.style == YAML_PLAIN_SCALAR_STYLE && tag != YAML_STR_TAG;
    if (!tag.empty() && !tag.starts_with("tag:yaml.org,2002:") && tag != "!") {
      return refuse(node.at, fmt::format("the tag '{}' means nothing here", tag));
    }
    if (type_of(node) == Type::kNull) node.kind = Node::Kind::kNull;
    return anchored(scalar.anchor, node);
  }

  bool read_items(Node& node, int depth) {
    for (;;) {
      Event event;
      if (!next(event)) return false;
      if (event.type() == YAML_SEQUENCE_END_EVENT) return true;
      if (!read_node(event, node.items.emplace_back(), depth + 1)) return false;
    }
  }

  bool read_entries(Node& node, int depth) {
    std::vector<Node> merged;
    std::map<std::string, size_t> places;
    for (;;) {
      Event key_event;
      if (!next(key_event)) return false;
      if (key_event.type() == YAML_MAPPING_END_EVENT) break;
      Node key, value;
      if (!read_node(key_event, key, depth + 1)) return false;
      if (key.is_sequence() || key.is_mapping()) return refuse(key.at, "a key must be a word");
      Event value_event;
      if (!next(value_event) || !read_node(value_event, value, depth + 1)) return false;
      if (key.text == "<<" && key.plain) {
        if (!take_merged(std::move(value), merged)) return false;
      } else {
        add_entry(node, places, std::move(key), std::move(value));
      }
    }
    for (Node& source : merged) merge(node, places, std::move(source));
    return true;
  }

  void add_entry(Node& node, std::map<std::string, size_t>& places, Node key, Node value) {
    const auto [found, is_new] = places.try_emplace(key.text, node.entries.size());
    if (is_new) {
      node.entries.push_back({std::move(key.text), key.at, std::move(value)});
      return;
    }
    Entry& entry = node.entries[found->second];
    problems.push_back({Problem::Kind::kDuplicateKey, key.at,
                        fmt::format("'{}' is given a second time; what line {} says is dropped without a word",
                                    entry.key, entry.at.line)});
    entry.at = key.at;
    entry.value = std::move(value);
  }

  bool take_merged(Node value, std::vector<Node>& merged) {
    std::vector<Node> sources;
    if (value.is_sequence()) {
      sources = std::move(value.items);
    } else {
      sources.push_back(std::move(value));
    }
    for (Node& source : sources) {
      if (!source.is_mapping()) return refuse(source.at, "'<<' merges mappings only");
      merged.push_back(std::move(source));
    }
    return true;
  }

  // An existing key wins over a merged one, and an earlier source over a later one.
  static void merge(Node& node, std::map<std::string, size_t>& places, Node source) {
    for (Entry& entry : source.entries) {
      if (places.try_emplace(entry.key, node.entries.size()).second) node.entries.push_back(std::move(entry));
    }
  }

  bool anchored(const yaml_char_t* anchor, const Node& node) {
    if (anchor != nullptr) anchors_[text_of(anchor)] = node;
    return true;
  }

  bool read_alias(const Event& event, Node& node) {
    const std::string name = text_of(event.event.data.alias.anchor);
    const auto found = anchors_.find(name);
    if (found == anchors_.end()) return refuse(node.at, fmt::format("'*{}' refers to nothing above it", name));
    if (!counted(node.at, weight(found->second))) return false;
    node = found->second;
    return true;
  }

  static int64_t weight(const Node& node) {
    int64_t nodes = 1;
    for (const Node& item : node.items) nodes += weight(item);
    for (const Entry& entry : node.entries) nodes += 1 + weight(entry.value);
    return nodes;
  }

  const std::string& text_;
  yaml_parser_t parser_ = {};
  std::map<std::string, Node> anchors_;
  int64_t nodes_ = 0;
};

bool inside(const std::vector<Extent>& scalars, const Place& at) {
  const auto after = std::upper_bound(scalars.begin(), scalars.end(), at,
                                      [](const Place& a, const Extent& b) { return before(a, b.begin); });
  return after != scalars.begin() && before(at, std::prev(after)->end);
}

std::vector<Comment> find_comments(const std::string& text, const std::vector<Extent>& scalars) {
  std::vector<Comment> comments;
  int64_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    for (size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1)) {
      const Place place{number, characters(line.substr(0, at)) + 1};
      const bool starts = at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t';
      if (!starts || inside(scalars, place)) continue;
      comments.push_back({place, std::string(line.substr(at + 1)), line.find_first_not_of(" \t") == at});
      break;
    }
  }
  return comments;
}

}  // namespace

const Entry* Node::entry(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

const Node* Node::find(std::string_view key) const {
  const Entry* found = entry(key);
  return found == nullptr ? nullptr : &found->value;
}

Document parse(std::string_view text) {
  Document document;
  if (text.size() > kMaxBytes) {
    document.problems.push_back({Problem::Kind::kSyntax, {1, 1}, fmt::format("larger than {} MiB", kMaxBytes >> 20)});
    return document;
  }
  const std::string clean = clean_text(text, document.problems);
  TreeBuilder builder(clean);
  if (builder.build(document.root)) {
    // Scalars come in the file's order but for keys of flow mappings; sorting costs nothing then.
    std::sort(builder.scalars.begin(), builder.scalars.end(),
              [](const Extent& a, const Extent& b) { return before(a.begin, b.begin); });
    document.comments = find_comments(clean, builder.scalars);
  } else {
    document.root = Node();
  }
  document.problems.insert(document.problems.end(), builder.problems.begin(), builder.problems.end());
  std::stable_sort(document.problems.begin(), document.problems.end(),
                   [](const Problem& a, const Problem& b) { return before(a.at, b.at); });
  return document;
}

}  // namespace millrace::yaml
