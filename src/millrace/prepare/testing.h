// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test helpers of this room: a small tokenizer, files and folders as values, random text. Not thread-safe.

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/testing/helpers.h"
#include "millrace/base/text/utf8.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/prepare/prepare.h"
#include "millrace/storage/url.h"

namespace millrace::prepare {

// Returns a byte-level BPE over all bytes with a few merges, and a post-processor that puts <|bos|> in front.
inline std::string small_tokenizer_json() {
  nlohmann::json vocabulary;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string token;
    append_utf8(itself ? byte : next++, token);
    vocabulary[token] = byte;
  }
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"t", "h"}, {"th", "e"}, {"\xC4\xA0", "a"}, {"\xC4\xA0", "the"}, {"i", "n"}, {"e", "r"}, {"\xC3", "\xA9"}};
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : pairs) {
    if (!vocabulary.contains(left) || !vocabulary.contains(right)) continue;
    merges.push_back(left + " " + right);
    vocabulary[left + right] = vocabulary.size();
  }
  const auto bos = static_cast<uint32_t>(vocabulary.size());
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json single = {{{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}},
                                 {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}};
  const nlohmann::json bos_token = {{"id", bos},       {"content", "<|bos|>"}, {"single_word", false},
                                    {"lstrip", false}, {"rstrip", false},      {"normalized", false},
                                    {"special", true}};
  nlohmann::json root = {{"version", "1.0"},      {"truncation", nullptr},
                         {"padding", nullptr},    {"added_tokens", nlohmann::json::array({bos_token})},
                         {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
                         {"decoder", byte_level}};
  root["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", single},
      {"special_tokens", {{"<|bos|>", {{"id", "<|bos|>"}, {"ids", {bos}}, {"tokens", {"<|bos|>"}}}}}}};
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", vocabulary},
                   {"merges", merges}};
  return root.dump();
}

inline void write_file(const std::string& path, std::string_view content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns every file below `path`, including hidden ones.
inline std::map<std::string, std::string> folder_content(const std::string& path) {
  std::map<std::string, std::string> files;
  if (!std::filesystem::exists(path)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files[std::filesystem::relative(entry.path(), path)] = read_file(entry.path());
  }
  return files;
}

inline std::vector<std::string> names_of(const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  for (const auto& [name, content] : files) names.push_back(name);
  return names;
}

// Returns `documents` lines of words. Some are empty, end in CRLF or contain non-ASCII; a few are long.
inline std::string random_text(std::mt19937_64& random, int documents) {
  static const std::vector<std::string> kWords = {"the", "then", "in", "error", "a",  "caf\xC3\xA9",      "it's", "42",
                                                  "  ",  "\t",   "x",  "other", "--", "\xE4\xB8\xAD\xE6", "z\xFF"};
  std::string text;
  for (int i = 0; i < documents; ++i) {
    const auto words = random() % (random() % 50 == 0 ? 2000 : 20);
    for (uint64_t word = 0; word < words; ++word) text += kWords[random() % kWords.size()] + " ";
    text += random() % 8 == 0 ? "\r\n" : "\n";
  }
  return text;
}

struct ReadSample {
  std::string key;
  std::map<std::string, std::string> fields;
  bool operator==(const ReadSample&) const = default;
};

// Reads the samples of a shard with the strict reader.
[[nodiscard]] inline Result<std::vector<ReadSample>> read_shard(std::string_view tar, const std::string& name) {
  const MemoryReader memory(as_bytes(tar), name);
  formats::SampleReader reader(memory);
  std::vector<ReadSample> samples;
  for (;;) {
    ASSIGN_OR_RETURN(const auto extent, reader.next());
    if (!extent) return samples;
    ReadSample sample{extent->key, {}};
    for (size_t i = 0; i < extent->members.size(); ++i) {
      const formats::TarMember& member = extent->members[i];
      sample.fields[extent->fields[i]] =
          tar.substr(static_cast<size_t>(member.data_offset), static_cast<size_t>(member.size));
    }
    samples.push_back(std::move(sample));
  }
}

// Checks that every visible shard is a complete archive and matches its index, if it has one.
[[nodiscard]] inline Status check_visible(const std::string& path) {
  const auto files = folder_content(path);
  for (const auto& [name, content] : files) {
    if (name.find('/') != std::string::npos || name.front() == '.' || !name.ends_with(".tar")) continue;
    RETURN_IF_ERROR(read_shard(content, name));
    const auto index_file = files.find(name + ".index");
    if (index_file == files.end()) continue;
    ASSIGN_OR_RETURN(const auto index, formats::parse_shard_index(as_bytes(index_file->second), index_file->first));
    RETURN_IF_ERROR(formats::check_shard(MemoryReader(as_bytes(content), name), index));
  }
  return {};
}

}  // namespace millrace::prepare
