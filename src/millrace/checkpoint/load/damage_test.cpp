// SPDX-License-Identifier: Apache-2.0
// Every byte of a small checkpoint changed, and every length cut: an error or the exact content, never other data.
#include "millrace/checkpoint/io/damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using testing::HasSubstr;

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    arrays_["wide"] = make_array(formats::Dtype::kF32, {4, 4}, 77);
    std::vector<RankTensors> ranks(2);
    for (const auto& [name, array] : arrays_) {
      if (name != "wide") ranks[0].add(name, array, box_of_all(array.shape));
    }
    ranks[0].add("wide", arrays_.at("wide"), {{0, 0}, {4, 2}});
    ranks[1].add("wide", arrays_.at("wide"), {{0, 2}, {4, 2}});
    const auto zero = make_saver(root_, {.attempt = "r0000-a", .rank = 0, .world_size = 2});
    const auto one = make_saver(root_, {.attempt = "r0000-a", .rank = 1, .world_size = 2});
    const auto first = zero->save(1, ranks[0].tensors(), "{\"a\": 1}", "null").value();
    ASSERT_TRUE(one->save(1, ranks[1].tensors(), "", "null").value()->wait());
    ASSERT_TRUE(first->wait());
  }

  std::string key(const std::string& name) const { return root_.child("step-000000000001/" + name).key; }
  std::string read(const std::string& name) const { return read_object(*root_.storage, key(name)).value(); }
  void write(const std::string& name, const std::string& content) {
    ASSERT_TRUE(write_object(*root_.storage, key(name), content));
  }

  // What somebody who restores sees.
  Status restore() const {
    ASSIGN_OR_RETURN(const auto steps, list_steps(root_));
    if (steps.size() != 1) return fail(ErrorCode::kInternal, "{} steps", steps.size());
    if (steps[0].damage) return tl::unexpected<Error>(*steps[0].damage);
    ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(root_, 1));
    if (checkpoint->state() != "{\"a\": 1}") return fail(ErrorCode::kInternal, "another state");
    ASSIGN_OR_RETURN(const auto rank_state, checkpoint->rank_state(1));
    if (rank_state != "null") return fail(ErrorCode::kInternal, "another rank state");
    return load_and_compare(root_, 1, arrays_);
  }
  Status verify() const {
    ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(root_, 1));
    return checkpoint->verify(1);
  }

  // Tries `damaged` as the content of `name`. Loading need not see what it does not read; verify must see all.
  void expect_found(const std::string& name, const std::string& damaged, bool by_restore, const std::string& where) {
    write(name, damaged);
    const Status restored = restore(), verified = verify();
    if (by_restore) {
      EXPECT_TRUE(!restored && restored.error().code() == ErrorCode::kCorruption) << where << explain(restored);
    } else if (!restored) {
      EXPECT_EQ(restored.error().code(), ErrorCode::kCorruption) << where << explain(restored);
    }
    EXPECT_TRUE(!verified && verified.error().code() == ErrorCode::kCorruption) << where << explain(verified);
  }

  void try_all(const std::string& name, bool by_restore, size_t stride) {
    const std::string good = read(name);
    for (size_t i : places_to_damage((good.size() + stride - 1) / stride)) {
      i *= stride;
      for (const int mask : {1, 0x20, 0xFF}) {
        std::string damaged = good;
        damaged[i] = static_cast<char>(damaged[i] ^ mask);
        expect_found(name, damaged, by_restore, "byte " + std::to_string(i) + " ");
        if (HasFailure()) return;
      }
    }
    for (size_t size : places_to_damage((good.size() + stride - 1) / stride)) {
      size *= stride;
      expect_found(name, good.substr(0, size), true, "size " + std::to_string(size) + " ");
      if (HasFailure()) return;
    }
    expect_found(name, good + "x", true, "one byte more");
    write(name, good);
    EXPECT_OK(restore());
    EXPECT_OK(verify());
  }

  const Location root_ = memory_root();
  Arrays arrays_ = small_arrays(1);
};

TEST_F(Damage, OfTheManifest) {
  try_all("manifest.json", true, 1);
}
TEST_F(Damage, OfAPartRecord) {
  try_all("r0000-a/part-00000-of-00002.json", true, 1);
  try_all("r0000-a/part-00001-of-00002.json", true, 1);
}
// The header, which other programs read, too.
TEST_F(Damage, OfTheData) {
  try_all("r0000-a/rank-00000-of-00002.safetensors", true, 7);
  std::string file = read("r0000-a/rank-00001-of-00002.safetensors");
  for (size_t i = file.size() - 32; i < file.size(); ++i) {
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    expect_found("r0000-a/rank-00001-of-00002.safetensors", damaged, true, "byte " + std::to_string(i));
  }
}

TEST_F(Damage, FilesThatAreMissingOrMixedUp) {
  for (const char* name : {"r0000-a/part-00000-of-00002.json", "r0000-a/rank-00001-of-00002.safetensors"}) {
    const std::string good = read(name);
    ASSERT_TRUE(root_.storage->remove(std::vector<std::string>{key(name)}));
    EXPECT_CODE(restore(), ErrorCode::kCorruption);
    const Status verified = verify();
    EXPECT_CODE(verified, ErrorCode::kCorruption);
    EXPECT_THAT(verified.error().to_string(), HasSubstr("test://run/step-000000000001/" + std::string(name)))
        << "a URL that can be pasted";
    write(name, good);
  }
  const std::string zero = read("r0000-a/part-00000-of-00002.json");
  write("r0000-a/part-00000-of-00002.json", read("r0000-a/part-00001-of-00002.json"));
  EXPECT_CODE(restore(), ErrorCode::kCorruption);
  write("r0000-a/part-00000-of-00002.json", zero);
  ASSERT_TRUE(write_object(*root_.storage, root_.child("step-000000000002/manifest.json").key, read("manifest.json")));
  EXPECT_CODE(Checkpoint::open(root_, 2), ErrorCode::kCorruption);  // the manifest of another step
}

TEST_F(Damage, AllOfItIsReported) {
  std::string file = read("r0000-a/rank-00000-of-00002.safetensors");
  file[100] = '!';
  file[file.size() - 1] ^= 1;
  write("r0000-a/rank-00000-of-00002.safetensors", file);
  write("r0000-a/part-00001-of-00002.json", "");
  std::vector<Error> found;
  const auto checkpoint = Checkpoint::open(root_, 1);
  ASSERT_TRUE(checkpoint) << explain(checkpoint);
  const Status status = (*checkpoint)->verify(2, {}, nullptr, [&](const Error& error) { found.push_back(error); });
  EXPECT_CODE(status, ErrorCode::kCorruption);
  EXPECT_EQ(found.size(), 3U);
}

// What keeps its own class, so that a restore can tell a lost block from a server that does not answer.
TEST(DamageInReading, KeepsItsClass) {
  for (const int reason : {EIO, EACCES, ETIMEDOUT}) {
    const auto plan = std::make_shared<FaultPlan>();
    const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
    EXPECT_OK(save_and_wait(*make_saver(root), 1, small_arrays(1)));
    for (const char* file : {"rank-", "part-", "manifest"}) {
      plan->clear();
      plan->add({.call = FaultCall::kRead, .key_part = file, .count = 1, .error = errno_error(reason, "read it")});
      const Status status = load_and_compare(root, 1, small_arrays(1));
      ASSERT_FALSE(status) << file;
      EXPECT_EQ(status.error().sys_errno(), reason) << file;
      EXPECT_EQ(is_damage(status.error()), reason != ETIMEDOUT);
    }
    plan->clear();
    plan->add({.call = FaultCall::kRead, .key_part = "manifest", .error = errno_error(reason, "read it")});
    const auto steps = list_steps(root);
    if (reason == ETIMEDOUT) {
      EXPECT_CODE(steps, ErrorCode::kTimeout);
    } else {
      ASSERT_TRUE(steps && steps->size() == 1 && steps->front().damage);
      EXPECT_EQ(steps->front().damage->sys_errno(), reason);
    }
  }
}

TEST(DamageInReading, AFolderInAFilesPlaceIsDamage) {
  for (const char* name :
       {"manifest.json", "r0000-test/part-00000-of-00001.json", "r0000-test/rank-00000-of-00001.safetensors"}) {
    const TempDir directory;
    const Location root = local_root(directory.path());
    EXPECT_OK(save_and_wait(*make_saver(root), 1, small_arrays(1)));
    const std::string path = directory.path() + "/run/step-000000000001/" + name;
    ASSERT_EQ(::unlink(path.c_str()), 0);
    ASSERT_EQ(::mkdir(path.c_str(), 0777), 0);
    const Status status = load_and_compare(root, 1, small_arrays(1));
    EXPECT_CODE(status, ErrorCode::kCorruption);
    EXPECT_THAT(status.error().to_string(), HasSubstr(name));
  }
}

// A disk that answers other bytes than were written, once, anywhere.
TEST(DamageInReading, IsNeverData) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  EXPECT_OK(save_and_wait(*make_saver(root), 1, small_arrays(1)));
  int64_t reads = 0;
  for (;; ++reads) {
    plan->clear();
    plan->add({.call = FaultCall::kRead, .skip = reads, .flip_bit = true});
    const int64_t hits = plan->hits();
    const Status status = load_and_compare(root, 1, small_arrays(1));
    if (plan->hits() == hits) break;
    EXPECT_CODE(status, ErrorCode::kCorruption);
  }
  EXPECT_GE(reads, 3) << "manifest, part record, data";
}

}  // namespace
}  // namespace millrace::checkpoint
