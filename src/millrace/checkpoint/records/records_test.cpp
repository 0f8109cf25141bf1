// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"

namespace millrace::checkpoint {
namespace {

using testing::HasSubstr;

PartRecord example_part() {
  PartRecord part{.step = 7, .attempt = "r0002-abc", .rank = 1, .world_size = 2, .file_bytes = 4096 + 48};
  part.data_offset = 4096;
  part.header_hash = {1, 2};
  part.state = R"({"x": "\u0000 é \" \\"})";
  part.tensors.push_back({"a", formats::Dtype::kF32, {4, 3}, {{2, 0}, {2, 3}}, 0, 24, {{3, 4}}});
  part.tensors.push_back({"b", formats::Dtype::kF64, {3}, {{0}, {3}}, 24, 24, {{5, 6}}});
  return part;
}

Manifest example_manifest() {
  Manifest manifest{.step = 7, .attempt = "r0002-abc"};
  manifest.created = std::chrono::sys_days(std::chrono::year(2026) / 2 / 3) + std::chrono::nanoseconds(1'000'000'007);
  manifest.parts = {{100, {1, 2}, 5'000}, {200, {3, 4}, 6'000}};
  manifest.tensors.push_back(
      {{"a", formats::Dtype::kBF16, {4, 2}, 16}, {{0, {{0, 0}, {3, 2}}}, {1, {{3, 0}, {1, 2}}}}});
  manifest.tensors.push_back({{"b", formats::Dtype::kU8, {}, 1}, {{1, {}}}});
  manifest.state = "{\"loss\": 1e-05}";
  manifest.line = Lineage{{"r0000-x", 3}, {"r0002-abc", 6}};
  return manifest;
}

// Written by hand, so with a checksum of its own.
std::string sealed(nlohmann::json document) {
  document.erase("checksum");
  document["checksum"] = to_hex(xxh3_128(document.dump()));
  return document.dump();
}

TEST(Records, ComeBackAsTheyWere) {
  const std::string text = serialize(example_part());
  const auto part = parse_part(text, "here");
  ASSERT_TRUE(part) << explain(part);
  EXPECT_EQ(serialize(*part), text);
  EXPECT_EQ(part->state, example_part().state);
  ASSERT_NE(part->find("a"), nullptr);
  EXPECT_EQ(part->find("a")->box, (Box{{2, 0}, {2, 3}}));
  EXPECT_EQ(part->find("c"), nullptr);

  const std::string manifest_text = serialize(example_manifest());
  const auto manifest = parse_manifest(manifest_text, "here");
  ASSERT_TRUE(manifest) << explain(manifest);
  EXPECT_EQ(serialize(*manifest), manifest_text);
  EXPECT_EQ(manifest->created, example_manifest().created);
  EXPECT_EQ(manifest->line, example_manifest().line);
  EXPECT_THAT(manifest_text, HasSubstr(R"("created":"2026-02-03T00:00:01.000000007Z")"));
}

TEST(Records, AnotherProgramCanCheckTheChecksum) {
  const std::string text = serialize(example_manifest());
  EXPECT_EQ(sealed(nlohmann::json::parse(text)), text);
}

// The text is canonical, whatever the strings hold: another JSON library writes the same.
TEST(Records, AreCanonicalJson) {
  PartRecord part = example_part();
  for (int c = 1; c < 0x80; ++c) part.state += static_cast<char>(c);
  part.state += std::string(1, '\0') + "\xF0\x9F\x98\x80";
  part.tensors[1].name = "b\t\"\\\x1f";
  const std::string text = serialize(part);
  EXPECT_EQ(sealed(nlohmann::json::parse(text)), text);
  EXPECT_EQ(parse_part(text, "here").value().state, part.state);
}

// Version 3: what did not change lies in files of earlier steps.
PartRecord example_shared_part() {
  PartRecord part = example_part();
  part.shares = true;
  part.sources = {{.step = 3, .attempt = "r0001-x", .file_bytes = 5'000, .data_offset = 4'096, .header_hash = {7, 8}}};
  part.tensors[0].source = 0;
  part.tensors[0].begin = 880;
  return part;
}
Manifest example_shared_manifest() {
  Manifest manifest = example_manifest();
  manifest.shares = true;
  manifest.bases = {{"r0000-x", 3}, {"r0001-x", 3}, {"r0002-abc", 5}};
  manifest.parts[1].referred_bytes = 24;
  return manifest;
}

TEST(Records, SayWhichEarlierFilesTheyReferTo) {
  const std::string text = serialize(example_shared_part());
  EXPECT_EQ(sealed(nlohmann::json::parse(text)), text);
  const auto part = parse_part(text, "here");
  ASSERT_TRUE(part) << explain(part);
  EXPECT_EQ(serialize(*part), text);
  EXPECT_EQ(part->referred_bytes(), 24);
  EXPECT_FALSE(part->in_folders);
  ASSERT_EQ(part->sources.size(), 1U);
  EXPECT_EQ(part->sources[0].step, 3);
  EXPECT_EQ(part->find("a")->source, 0U);
  EXPECT_EQ(part->find("b")->source, std::nullopt);

  const std::string manifest_text = serialize(example_shared_manifest());
  EXPECT_EQ(sealed(nlohmann::json::parse(manifest_text)), manifest_text);
  const auto manifest = parse_manifest(manifest_text, "here");
  ASSERT_TRUE(manifest) << explain(manifest);
  EXPECT_EQ(serialize(*manifest), manifest_text);
  EXPECT_EQ(manifest->bases, example_shared_manifest().bases);
  EXPECT_EQ(step_info(*manifest).referred_bytes, 24);
  EXPECT_THAT(manifest_text, HasSubstr("\"version\":3"));
}

TEST(Records, AWrongReferenceIsCorruption) {
  const auto part_says = [](const char* pointer, nlohmann::json value) {
    auto document = nlohmann::json::parse(serialize(example_shared_part()));
    document[nlohmann::json::json_pointer(pointer)] = std::move(value);
    const auto part = parse_part(sealed(document), "here");
    EXPECT_CODE(part, ErrorCode::kCorruption);
    return part ? "" : part.error().to_string();
  };
  EXPECT_THAT(part_says("/tensors/0/source", 1), HasSubstr("source is not"));
  EXPECT_THAT(part_says("/tensors/0/begin", 881), HasSubstr("ends behind its file"));
  EXPECT_THAT(part_says("/sources/0/step", 7), HasSubstr("sources[0]: is not an earlier step"));
  EXPECT_THAT(part_says("/sources/0/attempt", "../x"), HasSubstr("not the name of an attempt"));
  EXPECT_THAT(part_says("/sources/0/data_offset", 5'001), HasSubstr("data_offset is not"));
  auto document = nlohmann::json::parse(serialize(example_shared_manifest()));
  document["bases"][2]["step"] = 7;
  const auto manifest = parse_manifest(sealed(document), "here");
  EXPECT_CODE(manifest, ErrorCode::kCorruption);
  EXPECT_THAT(explain(manifest), HasSubstr("bases[2]: is not in the order of steps"));
}

TEST(Records, ANewerVersionIsRefusedAsSuch) {
  auto document = nlohmann::json::parse(serialize(example_manifest()));
  document["version"] = 4;
  const auto manifest = parse_manifest(sealed(document), "here");
  EXPECT_CODE(manifest, ErrorCode::kUnsupported);
  EXPECT_CODE(parse_part(serialize(example_manifest()), "here"), ErrorCode::kCorruption);
}

// Right checksums around wrong content: what a broken or hostile writer could leave.
TEST(Records, WrongContentIsCorruptionWithTheReason) {
  const auto part_says = [](const char* pointer, nlohmann::json value) {
    auto document = nlohmann::json::parse(serialize(example_part()));
    document[nlohmann::json::json_pointer(pointer)] = std::move(value);
    const auto part = parse_part(sealed(document), "here");
    EXPECT_CODE(part, ErrorCode::kCorruption);
    return part ? "" : part.error().to_string();
  };
  EXPECT_THAT(part_says("/rank", 2), HasSubstr("rank is not a whole number in [0, 1]"));
  EXPECT_THAT(part_says("/step", -1), HasSubstr("step is not"));
  EXPECT_THAT(part_says("/step", 1.5), HasSubstr("step is not"));
  EXPECT_THAT(part_says("/attempt", "../../x"), HasSubstr("not the name of an attempt"));
  EXPECT_THAT(part_says("/data_offset", 1LL << 40), HasSubstr("data_offset is not"));
  EXPECT_THAT(part_says("/chunk_bytes", 0), HasSubstr("chunk_bytes is not"));
  EXPECT_THAT(part_says("/chunk_bytes", 1LL << 40), HasSubstr("chunk_bytes is not"));
  EXPECT_THAT(part_says("/chunk_bytes", 16), HasSubstr("1 hashes for 2 chunks"));
  EXPECT_THAT(part_says("/header_hash", "xyz"), HasSubstr("header_hash is not"));
  EXPECT_THAT(part_says("/tensors", 5), HasSubstr("tensors is not a list"));
  EXPECT_THAT(part_says("/tensors/0/name", "b"), HasSubstr("not in the order of names"));
  EXPECT_THAT(part_says("/tensors/0/dtype", "F31"), HasSubstr("unknown dtype"));
  EXPECT_THAT(part_says("/tensors/0/begin", 30), HasSubstr("ends behind its file"));
  EXPECT_THAT(part_says("/tensors/0/shape", {1LL << 40, 1LL << 40}), HasSubstr("overflows"));
  EXPECT_THAT(part_says("/tensors/0/box_shape", {2, 4}), HasSubstr("is not inside"));
  EXPECT_THAT(part_says("/tensors/0/hashes", nlohmann::json::array()), HasSubstr("0 hashes for 1 chunks"));
  EXPECT_THAT(part_says("/tensors/1", "b"), HasSubstr("is not an object"));

  const auto manifest_says = [](const char* pointer, nlohmann::json value) {
    auto document = nlohmann::json::parse(serialize(example_manifest()));
    document[nlohmann::json::json_pointer(pointer)] = std::move(value);
    const auto manifest = parse_manifest(sealed(document), "here");
    EXPECT_CODE(manifest, ErrorCode::kCorruption);
    return manifest ? "" : manifest.error().to_string();
  };
  EXPECT_THAT(manifest_says("/world_size", 3), HasSubstr("one entry a rank"));
  EXPECT_THAT(manifest_says("/created", "yesterday"), HasSubstr("created is not a time"));
  EXPECT_THAT(manifest_says("/created", "9999-99-99T00:00:00.000000000Z"), HasSubstr("created is not a time"));
  EXPECT_THAT(manifest_says("/tensors/0/boxes/0/part", 2), HasSubstr("part is not"));
  EXPECT_THAT(manifest_says("/tensors/0/boxes/0/part", 1), HasSubstr("not in the order of parts"));
  EXPECT_THAT(manifest_says("/parts/0/hash", 1), HasSubstr("hash is not"));
  EXPECT_THAT(manifest_says("/line", 1), HasSubstr("line is not a list"));
  const auto ancestor = [](const char* attempt, int64_t step) {
    return nlohmann::json{{"attempt", attempt}, {"step", step}};
  };
  EXPECT_THAT(manifest_says("/line", nlohmann::json::array({ancestor("x", 1)})),
              HasSubstr("line[0].attempt is not the name of an attempt"));
  EXPECT_THAT(manifest_says("/line", nlohmann::json::array({ancestor("r0-a", 1LL << 60)})),
              HasSubstr("not in the order of steps"));
  EXPECT_THAT(manifest_says("/line", nlohmann::json::array({ancestor("r0-a", 2), ancestor("r1-a", 2)})),
              HasSubstr("line[1]: is not in"));
}

TEST(Keys, NamesAreExactlyThose) {
  EXPECT_EQ(step_name(100), "step-000000000100");
  EXPECT_EQ(parse_step_name("step-000000000100"), 100);
  EXPECT_EQ(parse_step_name(step_name(INT64_MAX)), INT64_MAX);
  for (const char* name : {"step-100", "step-00000000010x", "step--00000000001", "step-", "tep-000000000100", "latest",
                           "step-99999999999999999999"})
    EXPECT_EQ(parse_step_name(name), std::nullopt) << name;
  EXPECT_EQ(restart_of("r0003-9f1c2ab4"), 3);
  EXPECT_EQ(restart_of("r123456-a"), 123'456);
  for (const char* name : {"", "r", "r1", "r1-", "r-a", "0001-a", "r1-A", "r1-a/b", "r1-..", "r99999999999-a", "r-1-a"})
    EXPECT_EQ(restart_of(name), std::nullopt) << name;
}

}  // namespace
}  // namespace millrace::checkpoint
