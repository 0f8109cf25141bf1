// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/testing/transfer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "millrace/storage/local/local.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::sync {
namespace {

// Each part takes a while, so that a copy lasts longer than the way to it.
std::shared_ptr<Storage> slowed(const std::shared_ptr<Storage>& storage) {
  auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .delay = std::chrono::milliseconds(3)});
  return make_fault_storage(storage, plan);
}

}  // namespace

Side memory_side() {
  return {.storage = make_memory_storage("test")};
}
Side local_side() {
  auto dir = std::make_shared<TempDir>(TempDir::Place::kMemory);
  return {.storage = *open_local_storage(dir->path()), .dir = dir};
}
Side parts_side() {
  auto service = std::make_shared<PartsService>();
  return {.storage = make_parts_storage(service), .service = service};
}

std::string content_of(int64_t size, uint64_t seed) {
  std::string content(static_cast<size_t>(size), '\0');
  std::mt19937_64 random(seed);
  size_t at = 0;
  for (; at + 8 <= content.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(content.data() + at, &word, 8);
  }
  for (; at < content.size(); ++at) content[at] = static_cast<char>(random());
  return content;
}

void put(const Location& at, const std::string& content) {
  const auto written =
      write_object(*at.storage, at.key, content, {.size_hint_bytes = std::ssize(content)}, Durability::kVisible);
  ASSERT_TRUE(written) << written.error().to_string();
}

std::string get(const Location& at) {
  const auto content = read_object(*at.storage, at.key, int64_t{1} << 30);
  return content ? *content : "<" + content.error().to_string() + ">";
}

void put_with_hashes(TransferEngine& engine, const Side& side, const std::string& key, const std::string& content) {
  if (!side.service) return put(side.at(key), content);
  const Side from = memory_side();
  put(from.at(key), content);
  const auto copied = engine.copy(from.at(key), *from.storage->stat(key), side.at(key), {.delta = false});
  ASSERT_TRUE(copied) << copied.error().to_string();
}

void leave_unfinished(TransferEngine& engine, const Location& from, const Location& to, int64_t parts) {
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kWrite,
             .skip = parts,
             .count = FaultRule::kForever,
             .error = Error(ErrorCode::kUnavailable, "the end")});
  // One write at a time, so that the parts that arrive are the first ones.
  const Location broken{make_fault_storage(to.storage, plan, /*operations_at_once=*/1), to.key, to.url};
  const auto report = engine.copy(from, *from.storage->stat(from.key), broken);
  ASSERT_FALSE(report);
  ASSERT_EQ(to.storage->list_uploads(to.key)->size(), 1u) << report.error().to_string();
}

void damage_leftover(const Side& side, int how) {
  for (const auto& entry : std::filesystem::directory_iterator(side.dir->path())) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(".millrace-tmp.")) continue;
    const bool is_note = name.find("-note.") != name.npos;
    if (is_note && how == 2) std::filesystem::remove(entry.path());
    if (is_note != (how == 1) || how == 2) continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(is_note ? 20 : kBlockBytes + 5);
    const int byte = file.peek();
    file.seekp(is_note ? 20 : kBlockBytes + 5);
    file.put(static_cast<char>(byte ^ 1));
  }
}

void overwrite_in_place(const std::string& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const int first = file.peek();
  file.seekp(0).put(static_cast<char>(first ^ 1));
}

int64_t copy_until_killed(const Location& from, const Location& to, int64_t bytes, std::chrono::microseconds after) {
  int pipe_ends[2];
  EXPECT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Progress progress;
    const Thread teller("teller", [&] {
      for (int64_t told = -1;;) {
        const int64_t now = progress.snapshot().bytes;
        if (now != told && ::write(pipe_ends[1], &now, sizeof now) == sizeof now) told = now;
        std::this_thread::yield();
      }
    });
    const auto engine = TransferEngine::create();
    const Location slow{slowed(to.storage), to.key, to.url};
    const auto done = (*engine)->copy(from, *from.storage->stat(from.key), slow, {}, {}, &progress);
    if (!done) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(pipe_ends[1]);
  int64_t told = -1;
  while (told < bytes && ::read(pipe_ends[0], &told, sizeof told) == sizeof told) {
  }
  std::this_thread::sleep_for(after);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed before it was killed";
  while (::read(pipe_ends[0], &told, sizeof told) == sizeof told) {
  }
  ::close(pipe_ends[0]);
  return told;
}

}  // namespace millrace::sync
