// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Entry {
  std::string name;
  std::string data;
  bool operator==(const Entry&) const = default;
};

std::string member(std::string_view name, std::string_view data) {
  std::string out;
  EXPECT_TRUE(append_tar_member(out, name, as_bytes(data)));
  return out;
}

std::string archive_of(const std::vector<Entry>& entries) {
  std::string out;
  for (const Entry& entry : entries) out += member(entry.name, entry.data);
  append_tar_end(out);
  return out;
}

const std::string& end_blocks() {
  static const std::string blocks(1024, '\0');
  return blocks;
}

// States the checksum of a header block anew.
void seal(std::string& block) {
  block.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(block[i]);
  std::snprintf(block.data() + 148, 7, "%06o", sum);
}

// A header of any type, with the data it states and padding; fields as GNU tar writes them.
std::string raw_member(std::string_view name, char type, std::string_view data,
                       const std::function<void(std::string&)>& change = {}) {
  std::string out = member("x", data);
  std::string block = out.substr(0, 512);
  block.replace(0, 100, 100, '\0');
  block.replace(0, name.size(), name);
  block[156] = type;
  if (change) change(block);
  seal(block);
  return out.replace(0, 512, block);
}

std::string pax_record(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  for (size_t length = rest.size();; ++length) {
    if (std::to_string(length).size() + rest.size() == length) return std::to_string(length) + rest;
  }
}

Result<std::vector<Entry>> read_members(const std::string& archive) {
  MemoryReader reader(as_bytes(archive), "a.tar");
  TarReader tar(reader);
  std::vector<Entry> entries;
  for (;;) {
    ASSIGN_OR_RETURN(const auto found, tar.next());
    if (!found) return entries;
    EXPECT_LE(found->begin, found->data_offset - kTarBlock);
    EXPECT_EQ(found->end, found->data_offset + (found->size + 511) / 512 * 512);
    entries.push_back(
        {found->name, archive.substr(static_cast<size_t>(found->data_offset), static_cast<size_t>(found->size))});
  }
}

Result<std::vector<Entry>> read_views(std::string_view extent) {
  std::vector<Entry> entries;
  std::string long_name;
  for (size_t at = 0; at < extent.size();) {
    ASSIGN_OR_RETURN(const TarView view, next_tar_view(as_bytes(extent), at, long_name, "a.tar", 0));
    if (view.is_regular) entries.push_back({std::string(view.name), std::string(as_text(view.data))});
  }
  return entries;
}

Result<std::vector<SampleExtent>> read_samples(const RandomReader& reader) {
  SampleReader samples(reader);
  std::vector<SampleExtent> out;
  for (;;) {
    ASSIGN_OR_RETURN(auto sample, samples.next());
    if (!sample) return out;
    out.push_back(std::move(*sample));
  }
}
Result<std::vector<SampleExtent>> read_samples(const std::string& archive) {
  MemoryReader reader(as_bytes(archive), "a.tar");
  return read_samples(reader);
}

// The message of the error that reading members or samples of `archive` must give.
std::string error_of(const std::string& archive, ErrorCode code = ErrorCode::kCorruption) {
  const auto samples = read_samples(archive);
  if (samples) return "no error: " + std::to_string(samples->size()) + " samples";
  EXPECT_EQ(error_code_name(samples.error().code()), error_code_name(code)) << samples.error().to_string();
  return samples.error().to_string();
}

TEST(SampleName, FollowsWebdataset) {
  const auto split = [](std::string_view name) -> std::string {
    const auto parts = split_sample_name(name);
    return parts ? std::string(parts->key) + "|" + parts->field : "skipped";
  };
  EXPECT_EQ(split("a/b.seg.PNG"), "a/b|seg.png");
  EXPECT_EQ(split("README"), "skipped");
  EXPECT_EQ(split("a.d/b.jpg"), "a.d/b|jpg");
  EXPECT_EQ(split("a.d/b"), "skipped");
  EXPECT_EQ(split("./a.jpg"), "./a|jpg");
  EXPECT_EQ(split(".hidden"), "skipped");
  EXPECT_EQ(split("a."), "a|");
  EXPECT_EQ(split("dir/.h.jpg"), "dir/|h.jpg");
  EXPECT_EQ(split("a.d/.h.jpg"), "skipped");
  EXPECT_EQ(split("a.d/e/.h.jpg"), "a.d/e/|h.jpg");
  EXPECT_EQ(split("/.h"), "/|h");
  EXPECT_EQ(split("a..jpg"), "a|.jpg");
  EXPECT_EQ(split("a b.jpg"), "a b|jpg");
  EXPECT_EQ(split("Key.TXT"), "Key|txt");
  EXPECT_EQ(split("__meta__"), "skipped");
  EXPECT_EQ(split("__dir__/x.txt"), "skipped");
  EXPECT_EQ(split("__a.b__/x.txt"), "skipped");
  EXPECT_EQ(split("____"), "skipped");
  EXPECT_EQ(split("__x__.json"), "__x__|json");
  EXPECT_EQ(split("a/__dir__/x.txt"), "a/__dir__/x|txt");
  EXPECT_EQ(split("__a/b__/x.txt"), "__a/b__/x|txt");
  EXPECT_EQ(split(""), "skipped");
}

TEST(TarWriter, BytesAreTheSameOnEveryRun) {
  const std::string out = member("000000.txt", "hello");
  ASSERT_EQ(out.size(), 1024U);
  std::string expected(1024, '\0');  // and the same as Python's tarfile writes, USTAR_FORMAT
  const auto put = [&](size_t at, std::string_view text) { expected.replace(at, text.size(), text); };
  put(0, "000000.txt");
  put(100, "0000444");
  put(108, "0000000");
  put(116, "0000000");
  put(124, "00000000005");
  put(136, "00000000000");
  put(148, std::string_view("007216\0 ", 8));
  put(156, "0");
  put(257, std::string_view("ustar\00000", 8));
  put(512, "hello");
  EXPECT_EQ(out, expected);
}

TEST(TarWriter, RefusesNamesThatAreNone) {
  std::string out;
  EXPECT_EQ(append_tar_member(out, "", {}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(append_tar_member(out, std::string_view("a\0b", 3), {}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(out, "");
}

TEST(TarWriter, TakesALongNameApartOnlyWhenItMust) {
  const std::string hundred(100, 'n');
  EXPECT_EQ(member(hundred, "").size(), 512U);
  const std::string cut = std::string(155, 'd') + "/" + hundred;
  EXPECT_EQ(member(cut, "").size(), 512U);
  EXPECT_EQ(member("d" + cut, "").size(), 3 * 512U);
  EXPECT_EQ(member(hundred + "n", "").size(), 3 * 512U);
  EXPECT_THAT(member(hundred + "n", ""), HasSubstr("111 path=" + hundred + "n\n"));
  for (const std::string& name :
       {hundred, cut, "d" + cut, hundred + "n", "/" + hundred, hundred + "/", std::string(5000, 'x')}) {
    const std::vector<Entry> entries{{name, "data"}, {"next.txt", ""}};
    EXPECT_EQ(*read_members(archive_of(entries)), entries);
    EXPECT_EQ(*read_views(member(name, "data") + member("next.txt", "")), entries);
  }
}

TEST(Tar, WhatIsWrittenIsRead) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<Entry> entries(random() % 8);
    for (Entry& entry : entries) {
      entry.name.resize(1 + random() % (random() % 4 == 0 ? 400 : 40));
      for (char& c : entry.name) c = random() % 9 == 0 ? '/' : static_cast<char>(1 + random() % 255);
      entry.data.resize(random() % 2000);
      for (char& c : entry.data) c = static_cast<char>(random());
    }
    const std::string archive = archive_of(entries);
    const auto members = read_members(archive);
    ASSERT_TRUE(members) << members.error().to_string();
    EXPECT_EQ(*members, entries);
    EXPECT_EQ(*read_views(std::string_view(archive).substr(0, archive.size() - 1024)), entries);
  }
}

TEST(TarReader, ReadsWhatOthersWrite) {
  const std::string long_name = std::string(60, 'd') + "/" + std::string(120, 'n') + ".txt";
  const std::string tooth = std::string(8, '\0');
  const std::string archive =
      raw_member("pax_global_header", 'g', pax_record("comment", "made by git")) +
      raw_member("././@PaxHeader", 'x', pax_record("mtime", "1760000000.1234567")) +  // webdataset's TarWriter
      raw_member("000.txt", '0', "first") + raw_member("././@LongLink", 'L', long_name + '\0') +
      raw_member(long_name.substr(0, 100), '0', "gnu") + raw_member("././@LongLink", 'K', "target" + tooth) +
      raw_member("link", '2', "") + raw_member("some/dir/", '5', "") + raw_member("old/dir/", '\0', "") +
      raw_member("hard", '1', "") +
      raw_member(
          "PaxHeaders/n", 'x',
          pax_record("path", "täxt.txt") + pax_record("size", "3") + pax_record("SCHILY.xattr.user.x", "a=b\nc")) +
      raw_member("t.txt", '0', "pax", [](std::string& b) { b.replace(124, 12, 12, '\0'); }) +
      raw_member("v7.txt", '\0', "v7", [](std::string& b) { b.replace(257, 255, 255, '\0'); }) +
      raw_member("base256.txt", '0', "12345678",
                 [](std::string& b) { b.replace(124, 12, std::string("\x80") + std::string(10, '\0') + '\b'); }) +
      raw_member("gnu.txt", '7', "magic",
                 [](std::string& b) {
                   b.replace(257, 8, std::string("ustar  \0", 8));
                   b.replace(345, 11, "14712345670");  // GNU keeps times where ustar keeps the prefix
                   b.replace(124, 12, "          5 ");
                 }) +
      end_blocks();
  const auto members = read_members(archive);
  ASSERT_TRUE(members) << members.error().to_string();
  EXPECT_EQ(*members, (std::vector<Entry>{{"000.txt", "first"},
                                          {long_name, "gnu"},
                                          {"täxt.txt", "pax"},
                                          {"v7.txt", "v7"},
                                          {"base256.txt", "12345678"},
                                          {"gnu.txt", "magic"}}));
}

TEST(TarReader, AHeaderInFrontBelongsToItsMember) {
  const std::string global = raw_member("g", 'g', pax_record("comment", "x"));
  const std::string archive =
      global + raw_member("p", 'x', pax_record("mtime", "1.5")) + member("a.txt", "") + end_blocks();
  MemoryReader reader(as_bytes(archive));
  TarReader tar(reader);
  const auto found = *tar.next();
  EXPECT_EQ(found->begin, 1024);
  EXPECT_EQ(found->data_offset, 1024 + 1024 + 512);
  EXPECT_FALSE(*tar.next());
  EXPECT_FALSE(*tar.next());  // and stays at the end
}

TEST(TarReader, AcceptsChecksumsOfSignedBytes) {
  std::string block = member("\xFF.txt", "").substr(0, 512);
  block.replace(148, 8, 8, ' ');
  int sum = 0;
  for (const char c : block) sum += static_cast<signed char>(c);
  std::snprintf(block.data() + 148, 7, "%06o", static_cast<unsigned>(sum));
  EXPECT_EQ(read_members(block + end_blocks())->at(0).name, "\xFF.txt");
}

TEST(TarReader, RefusesWhatItDoesNotUnderstand) {
  const auto refused = [](const std::string& archive) { return error_of(archive, ErrorCode::kUnsupported); };
  EXPECT_THAT(refused(raw_member("s.bin", 'S', "x")),
              AllOf(HasSubstr("a.tar"), HasSubstr("'s.bin'"), HasSubstr("offset 0"), HasSubstr("sparse")));
  EXPECT_THAT(refused(member("a.txt", "") + raw_member("m.bin", 'M', "x")),
              AllOf(HasSubstr("offset 512"), HasSubstr("volume")));
  EXPECT_THAT(refused(raw_member("x", 'x', pax_record("GNU.sparse.major", "1")) + member("a.txt", "")),
              HasSubstr("GNU.sparse.major"));
  EXPECT_THAT(refused(raw_member("x", 'g', pax_record("path", "p")) + member("a.txt", "")),
              HasSubstr("'path' for all"));
  EXPECT_THAT(refused(raw_member("dump", 'D', "")), HasSubstr("0x44"));
  EXPECT_THAT(refused(raw_member("p", 'x', std::string((1 << 20) + 1, 'x'))), HasSubstr("1048577 bytes"));
  EXPECT_THAT(refused("\x1f\x8b" + std::string(600, 'x')), HasSubstr("gzip"));
  EXPECT_THAT(refused("\x28\xb5\x2f\xfd" + std::string(600, 'x')), HasSubstr("zstd"));
}

TEST(TarReader, ExtendedHeadersMustMakeSense) {
  const auto with_pax = [](std::string_view records) {
    return error_of(raw_member("x", 'x', records) + member("a.txt", "") + end_blocks());
  };
  for (const char* bad :
       {"5 a=b", "99 path=x\n", "3 \n", "-9 path=x\n", "x", " path=x\n", "8 =abcd\n", "9 mtime\n\n", "4 a=\n"}) {
    EXPECT_THAT(with_pax(bad), AllOf(HasSubstr("offset 0"), HasSubstr("malformed"))) << bad;
  }
  EXPECT_THAT(with_pax(pax_record("path", "")), HasSubstr("impossible 'path'"));
  for (const char* bad : {"", "-1", "1x", "99999999999999999999"})
    EXPECT_THAT(with_pax(pax_record("size", bad)), HasSubstr("impossible 'size'"));
  EXPECT_THAT(with_pax(pax_record("size", "9223372036854775807")), HasSubstr("cut"));
  EXPECT_THAT(error_of(raw_member("././@LongLink", 'L', std::string(4, '\0')) + member("a.txt", "") + end_blocks()),
              HasSubstr("empty"));
  EXPECT_THAT(error_of(raw_member("././@LongLink", 'L', "n") + end_blocks()), HasSubstr("has no member"));
}

TEST(TarReader, SizesThatLeaveTheFileAreRefused) {
  const auto sized = [](const std::string& field) {
    return error_of(member("a.txt", "") +
                    raw_member("b.txt", '0', "x", [&](std::string& b) { b.replace(124, 12, field); }) + end_blocks());
  };
  EXPECT_THAT(sized("77777777777 "), AllOf(HasSubstr("'b.txt'"), HasSubstr("offset 512"), HasSubstr("cut")));
  EXPECT_THAT(sized("\x80" + std::string(3, '\0') + "\x7F" + std::string(7, '\xFF')), HasSubstr("cut"));
  EXPECT_THAT(sized("\x80" + std::string(3, '\0') + "\x80" + std::string(7, '\0')), HasSubstr("too large"));
  EXPECT_THAT(sized(std::string(12, '\xFF')), HasSubstr("not a number"));
  EXPECT_THAT(sized("0000000000x "), HasSubstr("not a number"));
}

TEST(TarReader, TheEndMustBeTheEnd) {
  const std::string a = member("a.txt", "A"), b = member("b.txt", "B");
  EXPECT_EQ(read_samples(end_blocks())->size(), 0U);
  EXPECT_EQ(read_samples(a + end_blocks() + std::string(10240 + 7, '\0'))->size(), 1U);
  EXPECT_THAT(error_of(""), HasSubstr("ends at offset 0"));
  EXPECT_THAT(error_of(a), AllOf(HasSubstr("ends at offset 1024"), HasSubstr("end-of-archive")));
  EXPECT_THAT(error_of(a + std::string(512, '\0')), AllOf(HasSubstr("offset 1024"), HasSubstr("512 bytes")));
  EXPECT_THAT(error_of(a + std::string(512, '\0') + b + end_blocks()),
              AllOf(HasSubstr("zeros at offset 1024"), HasSubstr("at 1536"), HasSubstr("hole")));
  EXPECT_THAT(error_of(a + end_blocks() + b + end_blocks()), AllOf(HasSubstr("at 2048"), HasSubstr("joined")));
  EXPECT_THAT(error_of(a + end_blocks() + std::string(3 << 20, '\0') + "x"), HasSubstr("joined"));
}

TEST(TarView, AnExtentIsWholeMembers) {
  const auto code = [](const std::string& extent) { return read_views(extent).error().code(); };
  EXPECT_EQ(code(member("a.txt", "") + std::string(512, '\0')), ErrorCode::kCorruption);
  EXPECT_EQ(read_views(raw_member("d/", '5', "") + member("a.txt", ""))->size(), 1U);
  EXPECT_EQ(code(member("a.txt", "abc").substr(0, 1000)), ErrorCode::kCorruption);
  EXPECT_EQ(code(member("a.txt", "abc").substr(0, 511)), ErrorCode::kCorruption);
  std::string name;
  size_t at = 0;
  const auto error = next_tar_view(as_bytes(std::string(512, 'x')), at, name, "s3://b/k.tar", 4096).error().to_string();
  EXPECT_THAT(error, AllOf(HasSubstr("s3://b/k.tar"), HasSubstr("offset 4096"), HasSubstr("checksum")));
}

TEST(SampleReader, GroupsAdjacentMembers) {
  const auto samples =
      read_samples(raw_member("d/", '5', "") + member("d/a.TXT", "1") + member("README", "") +
                   member("d/a.json", "22") + member("d/b.json", "3") + member("__meta__", "") +
                   member("d/b.txt", "4") + member("d/a.json", "5") + member("d/a.txt", "") + end_blocks());
  ASSERT_TRUE(samples) << samples.error().to_string();
  ASSERT_EQ(samples->size(), 3U);  // the key "d/a" again is another sample
  const SampleExtent& first = samples->at(0);
  EXPECT_EQ(first.key, "d/a");
  EXPECT_THAT(first.fields, ElementsAre("txt", "json"));
  EXPECT_EQ(first.members.at(1).name, "d/a.json");
  EXPECT_EQ(first.members.at(1).size, 2);
  EXPECT_EQ(first.begin, 512);
  EXPECT_EQ(first.end, 512 + 1024 + 512 + 1024);
  EXPECT_EQ(samples->at(1).begin, first.end);
  EXPECT_EQ(samples->at(2).key, "d/a");
}

TEST(SampleReader, IncompleteSamplesAndRepeatedFieldsAreErrors) {
  const std::string whole = member("a.json", "") + member("a.txt", "");
  EXPECT_THAT(error_of(whole + member("b.txt", "") + end_blocks()),
              AllOf(HasSubstr("incomplete sample 'b' at offset 1024"), HasSubstr("fields txt,")));
  EXPECT_THAT(error_of(whole + member("b.json", "") + member("b.txt", "") + member("b.cls", "") + end_blocks()),
              HasSubstr("incomplete sample 'b'"));
  EXPECT_THAT(error_of(member("a.txt", "") + whole + end_blocks()),
              AllOf(HasSubstr("'a.txt' at offset 1024"), HasSubstr("repeats")));
  EXPECT_THAT(error_of(member("a.txt", "") + member("a.TXT", "") + end_blocks()), HasSubstr("repeats"));
}

class CountingReader final : public RandomReader {
 public:
  explicit CountingReader(const std::string& bytes) : memory_(as_bytes(bytes), "a.tar") {}
  std::string_view name() const override { return memory_.name(); }
  int64_t size() const override { return memory_.size(); }
  std::string_view version() const override { return {}; }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (fail_every != 0 && ++reads_ % fail_every == 0) return fail(ErrorCode::kUnavailable, "try again");
    bytes_read += static_cast<int64_t>(out.size());
    return memory_.read_at(offset, out);
  }
  mutable int64_t bytes_read = 0;
  int fail_every = 0;

 private:
  MemoryReader memory_;
  mutable int reads_ = 0;
};

std::string large_archive() {
  std::string out;
  for (const char* key : {"a", "b", "c", "d"}) {
    out += member(std::string(key) + ".json", "{}") + member(std::string(key) + ".mp4", std::string(5 << 20, 'v'));
  }
  return out + end_blocks();
}

TEST(TarReader, LargePayloadsAreNotRead) {
  const std::string archive = large_archive();
  CountingReader reader(archive);
  EXPECT_EQ(read_samples(reader)->size(), 4U);
  EXPECT_LT(reader.bytes_read, 512 << 10);
}

TEST(SampleReader, GoesOnAfterAReadThatFailed) {
  const std::string archive = large_archive();
  CountingReader reader(archive);
  reader.fail_every = 2;
  SampleReader samples(reader);
  std::vector<std::string> keys;
  int failed = 0;
  for (;;) {
    const auto sample = samples.next();
    if (!sample) {
      ASSERT_EQ(sample.error().code(), ErrorCode::kUnavailable);
      ++failed;
      continue;
    }
    if (!*sample) break;
    keys.push_back((*sample)->key);
    EXPECT_EQ((*sample)->fields.size(), 2U);
  }
  EXPECT_THAT(keys, ElementsAre("a", "b", "c", "d"));
  EXPECT_GT(failed, 2);
}

// 100 samples of two members, as in the table of what other readers do with damage.
struct DamagedTar : testing::Test {
  DamagedTar() {
    for (int i = 0; i < 100; ++i) {
      const std::string key = std::to_string(1000 + i);
      for (const char* field : {".json", ".txt"}) {
        offsets.push_back(archive.size());
        archive += member(key + field, std::string(static_cast<size_t>(600 + i), 'p'));
      }
    }
    archive += end_blocks();
  }
  std::string archive;
  std::vector<size_t> offsets;  // of the members
};

TEST_F(DamagedTar, EveryRowOfTheTableIsAnError) {
  EXPECT_EQ(read_samples(archive)->size(), 100U);
  const size_t at = offsets[100];  // sample 50
  const auto cut = [&](size_t size) { return error_of(archive.substr(0, size)); };
  EXPECT_THAT(cut(archive.size() - 1024), HasSubstr("end-of-archive"));
  EXPECT_THAT(cut(at), HasSubstr("end-of-archive"));
  EXPECT_THAT(cut(offsets[101]), HasSubstr("end-of-archive"));
  EXPECT_THAT(cut(at + 100), HasSubstr("where a header must be"));
  EXPECT_THAT(cut(at + 512 + 100), HasSubstr("'1050.json'"));
  EXPECT_THAT(cut(at + 512 + 700), HasSubstr("'1050.json'"));  // in the padding
  const auto flipped = [&](size_t place) {
    std::string damaged = archive;
    damaged[place] = static_cast<char>(damaged[place] ^ 1);
    return error_of(damaged);
  };
  EXPECT_THAT(flipped(at + 2), AllOf(HasSubstr("checksum"), HasSubstr(std::to_string(at))));
  EXPECT_THAT(flipped(2), HasSubstr("checksum"));
  EXPECT_THAT(error_of(archive.substr(0, at) + std::string(10240, '\0') + archive.substr(at)), HasSubstr("hole"));
  EXPECT_THAT(error_of(archive + archive), HasSubstr("joined"));
}

TEST(Tar, NoCutAndNoFlippedByteLosesASample) {
  std::vector<Entry> entries;
  for (const char* key : {"a", "b", "c"}) {
    entries.push_back({std::string(key) + "/" + std::string(110, 'n') + ".json", "[1]"});  // a PAX header each
    entries.push_back({std::string(key) + "/" + std::string(110, 'n') + ".txt", "text"});
  }
  const std::string archive = archive_of(entries);
  for (size_t size = 0; size < archive.size(); ++size) error_of(archive.substr(0, size));
  for (size_t i = 0; i < archive.size(); ++i) {
    for (const int flip : {1, 4, 0x40, 0x80, 0xFF}) {
      std::string damaged = archive;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const auto samples = read_samples(damaged);
      EXPECT_TRUE(!samples || samples->size() == 3) << "byte " << i << " flipped with " << flip;
    }
  }
}

}  // namespace
}  // namespace millrace::formats
