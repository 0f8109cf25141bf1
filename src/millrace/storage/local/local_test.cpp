// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/local.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/page_token.h"
#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/fault_syscalls.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Kind = SyscallFault::Kind;

std::string path_in(const Storage& storage, const std::string& key) {
  return std::string(storage.name().substr(std::string_view("file://").size())) + "/" + key;
}

void overwrite_file(Storage& storage, const std::string& key, std::string_view content) {
  const int fd = ::open(path_in(storage, key).c_str(), O_WRONLY | O_TRUNC);
  EXPECT_EQ(::write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ::close(fd);
}

// Interruptions everywhere and short transfers half of the time: a user must not notice them.
void add_harmless_faults(FaultSyscalls& sys) {
  sys.add({.count = SyscallFault::kForever, .probability = 0.1, .error = EINTR});
  for (const char* call : {"pread", "pwrite", "copy_file_range", "io_uring"}) {
    sys.add({.call = call, .count = SyscallFault::kForever, .probability = 0.5, .kind = Kind::kShort});
  }
}

struct LocalFixture {
  explicit LocalFixture(uint64_t seed) : sys(seed) {}
  TempDir dir;
  FaultSyscalls sys;
  std::shared_ptr<Storage> storage;
};

std::shared_ptr<Storage> make_local(bool faulty, LocalDirect direct = LocalDirect::kByFileSystem, bool rings = true) {
  const uint64_t seed = test_seed();
  if (faulty) std::cout << "MILLRACE_TEST_SEED=" << seed << "\n";
  auto fixture = std::make_shared<LocalFixture>(seed);
  if (faulty) add_harmless_faults(fixture->sys);
  auto storage = open_local_storage(fixture->dir.path(),
                                    {.rings = rings, .direct = direct, .syscalls = faulty ? &fixture->sys : nullptr});
  EXPECT_TRUE(storage);
  fixture->storage = std::move(*storage);
  Storage* const raw = fixture->storage.get();
  return std::shared_ptr<Storage>(std::move(fixture), raw);
}

StorageCase local_case(const std::string& name, bool faulty, LocalDirect direct, bool rings = true) {
  return {.name = name,
          .make = [=] { return make_local(faulty, direct, rings); },
          .shared_between_processes = true,
          .keeps_metadata = false,
          .overwrite_in_place = overwrite_file};
}
INSTANTIATE_TEST_SUITE_P(Local, StorageConformance,
                         ::testing::Values(local_case("local", false, LocalDirect::kByFileSystem),
                                           local_case("interrupted", true, LocalDirect::kByFileSystem),
                                           local_case("threads", false, LocalDirect::kByFileSystem, false),
                                           local_case("direct", false, LocalDirect::kAlways),
                                           local_case("directInterrupted", true, LocalDirect::kAlways),
                                           local_case("buffered", false, LocalDirect::kNever)),
                         conformance_name);

class LocalTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  void file(const std::string& name, const std::string& content = "x") { std::ofstream(path(name)) << content; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (!entry.is_directory()) found.push_back(entry.path().filename());
    }
    return found;
  }
  std::vector<std::string> keys() {
    std::vector<std::string> found;
    const Status done = for_each_object(*storage_, "", [&](const ObjectInfo& object) -> Status {
      found.push_back(object.key);
      return {};
    });
    if (!done) found.push_back("<" + done.error().to_string() + ">");
    return found;
  }

  TempDir dir_;
  FaultSyscalls sys_{1};
  std::shared_ptr<Storage> storage_ = *open_local_storage(dir_.path(), {.syscalls = &sys_});
};

TEST_F(LocalTest, TheRootMustBeADirectory) {
  file("file");
  EXPECT_EQ(open_local_storage(path("missing")).error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(open_local_storage(path("file")));
  EXPECT_EQ(open_local_storage("").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ((*open_local_storage(dir_.path() + "/./"))->name(), "file://" + dir_.path());
  EXPECT_EQ((*open_local_storage("/"))->name(), "file:///");
}

TEST_F(LocalTest, NamesWhatIsNoFile) {
  std::filesystem::create_directory(path("dir"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0666), 0);
  file("file");
  for (const char* key : {"dir", "pipe"}) {
    EXPECT_EQ(storage_->open_read(key).error().code(), ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(storage_->stat(key).error().code(), ErrorCode::kInvalidArgument) << key;
    EXPECT_THAT(storage_->open_write(key).error().to_string(), HasSubstr(path(key)));
  }
  EXPECT_EQ(storage_->remove(std::vector<std::string>{"dir"}).error().code(), ErrorCode::kInvalidArgument);
  const auto below_file = storage_->open_write("file/below/it");
  EXPECT_EQ(below_file.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(below_file.error().to_string(), HasSubstr(path("file")));
  EXPECT_EQ(storage_->open_write(std::string(300, 'n')).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(keys(), ElementsAre("file"));
}

TEST_F(LocalTest, UnfinishedWritesAreNoKeys) {
  const auto writer = storage_->open_write("object");
  ASSERT_TRUE(writer);
  const std::string temp = names().at(0);
  EXPECT_THAT(temp, AllOf(::testing::StartsWith(".millrace-tmp."), ::testing::EndsWith(".object")));
  EXPECT_EQ(storage_->open_read(temp).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(storage_->open_write("dir/" + temp).error().code(), ErrorCode::kInvalidArgument);
  const std::vector<ObjectInfo> forged{{.key = "object", .version = "object"}, {.key = "a", .version = "../" + temp}};
  file("object");
  EXPECT_EQ(storage_->abort_uploads(forged).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(keys(), ElementsAre("object"));
}

TEST_F(LocalTest, NotesAreHiddenAndGoWithTheirWrite) {
  const std::string key(240, 'k');  // so that the names of its notes are as long as names may be
  for (const int how : {0, 1, 2, 3}) {
    auto writer = storage_->open_write(key);
    ASSERT_TRUE(writer && (*writer)->append(as_bytes("x")));
    const auto noted = (*writer)->set_note("note");
    ASSERT_TRUE(noted) << noted.error().to_string();
    EXPECT_EQ(names().size(), 2u);
    EXPECT_THAT(keys(), IsEmpty());
    EXPECT_THAT(*storage_->list_uploads(""), IsEmpty()) << "it is being written";
    if (how == 0) {
      ASSERT_TRUE((*writer)->commit());
    }
    if (how == 1) writer->reset();
    if (how >= 2) {
      ASSERT_TRUE((*writer)->suspend());
      const auto uploads = storage_->list_uploads("");
      ASSERT_EQ(uploads->size(), 1u);
      file(names().at(0) == uploads->front().version ? names().at(1) : names().at(0), std::string(3, '\0'));
      auto resumed = storage_->resume_write(uploads->front());
      ASSERT_TRUE(resumed);
      EXPECT_EQ((*resumed)->note(), std::string(3, '\0')) << "a damaged note is handed on as it is";
      ASSERT_TRUE((*resumed)->suspend());
      if (how == 2) {
        ASSERT_TRUE(storage_->abort_uploads(*uploads));
      } else {
        ASSERT_TRUE(storage_->resume_write(uploads->front()));
      }
    }
    EXPECT_EQ(names().size(), how == 0 ? 1u : 0u) << how;
    ASSERT_TRUE(storage_->remove(std::vector<std::string>{key}));
  }
}

TEST_F(LocalTest, ANoteOfTheSameLengthIsWrittenOverTheLast) {
  auto writer = storage_->open_write("object");
  ASSERT_TRUE(writer && (*writer)->append(as_bytes("half")));
  ASSERT_TRUE((*writer)->set_note("note 1"));
  sys_.add({.call = "rename", .path_part = "-note", .error = EIO});
  for (const char* note : {"note 2", "note 3"}) ASSERT_TRUE((*writer)->set_note(note));
  EXPECT_FALSE((*writer)->set_note("longer than that"));
  EXPECT_TRUE((*writer)->set_note("longer than that")) << "only one rename fails";
  ASSERT_TRUE((*writer)->set_note("note 4"));
  ASSERT_TRUE((*writer)->suspend());
  for (const char* last : {"note 4", "note 5"}) {
    const auto resumed = storage_->resume_write(storage_->list_uploads("")->at(0));
    ASSERT_TRUE(resumed);
    EXPECT_EQ((*resumed)->note(), last);
    ASSERT_TRUE((*resumed)->set_note("note 0") && (*resumed)->set_note("note 5") && (*resumed)->suspend());
  }
}

TEST_F(LocalTest, ANoteWithoutItsFileIsFoundAndGoes) {
  for (const bool resumes : {false, true}) {
    const auto writer = storage_->open_write("dir/object");
    ASSERT_TRUE(writer && (*writer)->set_note("note") && (*writer)->suspend());
    for (const std::string& name : names()) {
      if (name.find("-note.") == name.npos) std::filesystem::remove(path("dir/" + name));
    }
    ASSERT_EQ(names().size(), 1u);
    const auto uploads = storage_->list_uploads("dir/");
    ASSERT_EQ(uploads->size(), 1u);
    EXPECT_EQ(uploads->front().key, "dir/object");
    if (resumes) {
      EXPECT_EQ(storage_->resume_write(uploads->front()).error().code(), ErrorCode::kNotFound)
          << "nothing to go on with";
    } else {
      ASSERT_TRUE(storage_->abort_uploads(*uploads));
    }
    EXPECT_THAT(names(), IsEmpty());
  }
}

TEST_F(LocalTest, AFailedResumeKeepsWhatWasWritten) {
  const auto writer = storage_->open_write("object");
  ASSERT_TRUE(writer && (*writer)->append(as_bytes("half")) && (*writer)->set_note("note") && (*writer)->suspend());
  const auto uploads = storage_->list_uploads("");
  ASSERT_EQ(uploads->size(), 1u);
  EXPECT_EQ(storage_->resume_write(uploads->front(), {.size_hint_bytes = INT64_MAX / 2}).error().code(),
            ErrorCode::kResourceExhausted);
  for (const char* call : {"open", "flock", "stat", "fstat", "pread"}) {
    sys_.add({.call = call, .path_part = ".millrace-tmp", .error = EIO});
    EXPECT_FALSE(storage_->resume_write(uploads->front())) << call;
  }
  const auto resumed = storage_->resume_write(uploads->front(), {.size_hint_bytes = 100});
  ASSERT_TRUE(resumed);
  EXPECT_EQ((*resumed)->note(), "note");
  ASSERT_TRUE((*resumed)->write_at(4, as_bytes(" whole")));
  ASSERT_TRUE((*resumed)->commit());
  EXPECT_EQ(*read_object(*storage_, "object"), "half whole");
  EXPECT_THAT(names(), ElementsAre("object"));
}

TEST_F(LocalTest, WhatMayNotBeGivenAwayIsKept) {
  sys_.add({.call = "fchown", .error = EPERM});
  ASSERT_TRUE(write_object(*storage_, "object", "x", {.posix = PosixAttributes{.mode = 0104755, .owner = 12345}}));
  EXPECT_EQ(storage_->stat("object")->posix->mode, 0100755u) << "a stranger's set-user-id bit";
  EXPECT_EQ(storage_->stat("object")->posix->owner, ::getuid());
  ASSERT_TRUE(write_object(*storage_, "times", "x", {.posix = PosixAttributes{.mode = 0}}));
  EXPECT_NE(storage_->stat("times")->posix->mode & 0777, 0u) << "an unknown mode is none";
}

TEST_F(LocalTest, ModesComeFromTheUmask) {
  const mode_t before = ::umask(027);
  ASSERT_TRUE(write_object(*storage_, "object", "x"));
  ::umask(before);
  struct stat info{};
  ASSERT_EQ(::stat(path("object").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(LocalTest, FollowsLinksButNotInCircles) {
  std::filesystem::create_directories(path("real/deep"));
  file("real/object", "content");
  std::filesystem::create_symlink(path("real/object"), path("link"));
  std::filesystem::create_directory_symlink(path("real"), path("dir-link"));
  std::filesystem::create_directory_symlink(path("real"), path("real/deep/loop"));
  std::filesystem::create_symlink(path("nowhere"), path("dangling"));
  std::filesystem::create_symlink(path("self"), path("self"));
  EXPECT_THAT(keys(), ElementsAre("dir-link/object", "link", "real/object"));
  EXPECT_EQ(*read_object(*storage_, "dir-link/object"), "content");
  EXPECT_EQ(storage_->stat("link")->size, 7);
  EXPECT_THAT(storage_->list("", {.recursive = false})->prefixes, ElementsAre("dir-link/", "real/"));
  ASSERT_TRUE(write_object(*storage_, "link", "replaced"));
  EXPECT_EQ(*read_object(*storage_, "real/object"), "content");
  EXPECT_FALSE(storage_->open_write("dangling/object"));
}

TEST_F(LocalTest, ListsWhatIsNoFileWhereAsked) {
  std::filesystem::create_directories(path("real/deep"));
  file("real/object", "content");
  std::filesystem::create_symlink(path("real/object"), path("link"));
  std::filesystem::create_directory_symlink(path("real"), path("dir-link"));
  std::filesystem::create_directory_symlink(path("real"), path("real/deep/loop"));
  std::filesystem::create_symlink(path("nowhere"), path("dangling"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const auto listed = [&](ListOptions options) {
    std::vector<std::string> lines;
    do {
      const auto page = storage_->list("", options);
      EXPECT_TRUE(page);
      for (const ObjectInfo& object : page->objects) {
        lines.push_back("f!s"[object.kind == ObjectKind::kFile   ? 0
                              : object.kind == ObjectKind::kLink ? 1
                                                                 : 2] +
                        (" " + object.key));
      }
      options.page_token = page->next_page_token;
    } while (!options.page_token.empty());
    return lines;
  };
  for (const int64_t max_keys : {1, 2, 100}) {
    EXPECT_THAT(listed({.max_keys = max_keys, .others = true}),
                ElementsAre("! dangling", "! dir-link/deep/loop/", "f dir-link/object", "f link", "s pipe",
                            "! real/deep/loop/", "f real/object"));
    EXPECT_THAT(listed({.max_keys = max_keys, .follow_links = false, .others = true}),
                ElementsAre("! dangling", "! dir-link", "! link", "s pipe", "! real/deep/loop", "f real/object"));
    EXPECT_THAT(listed({.max_keys = max_keys, .follow_links = false}), ElementsAre("f real/object"));
  }
}

TEST_F(LocalTest, TheNextPageReadsNoDirectoryAgain) {
  std::filesystem::create_directories(path("many"));
  for (int i = 0; i < 100; ++i) file("many/" + std::to_string(100 + i), "x");
  ListOptions options{.max_keys = 10};
  options.page_token = storage_->list("", options)->next_page_token;
  EXPECT_EQ(key_of_token(options.page_token), "many/109");
  sys_.add({.call = "getdents", .path_part = "", .error = EIO});
  const auto page = storage_->list("", options);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->objects.front().key, "many/110");
  // A page that was given before comes from the directories.
  EXPECT_EQ(storage_->list("", options).error().sys_errno(), EIO);
  EXPECT_EQ(storage_->list("", options)->objects.front().key, "many/110");
}

TEST_F(LocalTest, ARestoredTimeShowsInChanged) {
  file("object", "content");
  const ObjectInfo before = *storage_->stat("object");
  struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
  const auto ns = before.modified.wrapped_ns();
  times[1] = {ns / 1'000'000'000, ns % 1'000'000'000};
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::fstream(path("object"), std::ios::in | std::ios::out) << "CONTENT";
  ASSERT_EQ(::utimensat(AT_FDCWD, path("object").c_str(), times, 0), 0);
  const ObjectInfo after = *storage_->stat("object");
  EXPECT_EQ(after.version, before.version);
  EXPECT_NE(after.changed, before.changed);
}

TEST_F(LocalTest, AListingThatFailsIsAnError) {
  for (const char* key : {"a/1", "b/1", "c/1"}) {
    ASSERT_TRUE(write_object(*storage_, key, "x", {}, Durability::kVisible));
  }
  for (const char* call : {"open", "getdents", "fstat"}) {
    sys_.add({.call = call, .path_part = "/b", .error = EACCES});
    EXPECT_EQ(storage_->list("").error().code(), ErrorCode::kPermissionDenied) << call;
  }
  sys_.add({.call = "stat", .path_part = "/b/1", .error = EIO});
  EXPECT_THAT(storage_->list("").error().to_string(), HasSubstr("/b/1"));
  EXPECT_EQ(storage_->list("")->objects.size(), 3u);
}

TEST_F(LocalTest, AFailedStepLeavesNothing) {
  const auto faultless = *open_local_storage(dir_.path());
  ASSERT_TRUE(write_object(*faultless, "dir/object", "old"));
  for (const char* call :
       {"open", "flock", "fstat", "statvfs", "pwrite", "ftruncate", "fchmod", "futimens", "fdatasync", "rename"}) {
    for (const int64_t skip : {0, 1}) {
      sys_.clear();
      sys_.add({.call = call, .path_part = "/dir", .skip = skip, .count = SyscallFault::kForever, .error = EIO});
      const WriteOptions options{.size_hint_bytes = 100, .posix = storage_->stat("dir/object")->posix};
      const auto done = write_object(*storage_, "dir/object", "new", options);
      EXPECT_TRUE(!done || skip == 1) << call;
      EXPECT_THAT(names(), ElementsAre("object")) << call;
      const auto content = read_object(*faultless, "dir/object");
      ASSERT_TRUE(content) << call << ": " << content.error().to_string();
      if (!done) {
        EXPECT_EQ(*content == "new", done.error().to_string().find("visible, but") != std::string::npos) << call;
      }
      ASSERT_TRUE(write_object(*faultless, "dir/object", "old", {}, Durability::kVisible));
    }
  }
}

TEST_F(LocalTest, ABriefWriteHasANameOnlyAtItsEnd) {
  const auto writer = storage_->open_write("dir/object", {.brief = true});
  ASSERT_TRUE(writer) << writer.error().to_string();
  ASSERT_TRUE((*writer)->write_at(0, as_bytes("content")));
  if (names().size() == 1) GTEST_SKIP() << "no files without a name here";
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_EQ((*writer)->set_note("x").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ((*writer)->suspend().error().code(), ErrorCode::kUnsupported);
  ASSERT_TRUE((*writer)->commit());
  EXPECT_EQ(*read_object(*storage_, "dir/object"), "content");
}

TEST_F(LocalTest, ABriefWriteWorksWhereFilesNeedNames) {
  for (const int error : {EOPNOTSUPP, EISDIR}) {
    const auto storage = *open_local_storage(dir_.path(), {.syscalls = &sys_});
    sys_.add({.call = "open", .error = error});
    for (const std::string key : {"dir/a", "dir/b", "dir/a"}) {
      ASSERT_TRUE(write_object(*storage, key, "content of " + key, {.brief = true}));
      EXPECT_EQ(*read_object(*storage, key), "content of " + key);
    }
  }
  EXPECT_THAT(names(), UnorderedElementsAre("a", "b"));
}

TEST_F(LocalTest, AFailedStepOfABriefWriteLeavesNothing) {
  const auto faultless = *open_local_storage(dir_.path());
  for (const bool is_there : {false, true}) {
    for (const char* call : {"open", "fstat", "pwrite", "futimens", "fdatasync", "link_fd", "flock", "rename", "dup"}) {
      ASSERT_TRUE(faultless->remove(std::vector<std::string>{"dir/object"}));
      if (is_there) {
        ASSERT_TRUE(write_object(*faultless, "dir/object", "old"));
      }
      sys_.clear();
      sys_.add({.call = call, .path_part = "/dir", .count = SyscallFault::kForever, .error = EIO});
      const auto done = write_object(*storage_, "dir/object", "new", {.brief = true});
      sys_.clear();
      const auto content = read_object(*faultless, "dir/object");
      const bool is_new = done || done.error().to_string().find("visible, but") != std::string::npos;
      EXPECT_EQ(content.value_or("nothing"), is_new ? "new" : is_there ? "old" : "nothing") << call;
      EXPECT_EQ(names().size(), content ? 1U : 0U) << call;
    }
  }
}

TEST_F(LocalTest, ATornWriteIsAnErrorAndLeavesNothing) {
  sys_.add({.call = "pwrite", .kind = Kind::kTorn, .error = ENOSPC});
  const auto done = write_object(*storage_, "object", std::string(10'000, 'x'));
  EXPECT_EQ(done.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(done.error().to_string(), AllOf(HasSubstr(path("object")), HasSubstr("[0, 10000)")));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(LocalTest, SpaceIsCheckedBefore) {
  const auto refused = storage_->open_write("object", {.size_hint_bytes = INT64_MAX / 2});
  ASSERT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().to_string(), AllOf(HasSubstr(path("object")), HasSubstr("free")));
  sys_.add({.call = "fallocate", .error = ENOSPC});
  EXPECT_EQ(storage_->open_write("object", {.size_hint_bytes = 10}).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(names(), IsEmpty());
  sys_.add({.call = "fallocate", .error = EOPNOTSUPP});
  EXPECT_TRUE(write_object(*storage_, "object", "x", {.size_hint_bytes = 10}));
}

TEST_F(LocalTest, AQuotaThatIsReachedInTheMiddleLeavesNothing) {
  for (const char* call : {"pwrite", "fallocate", "fdatasync"}) {
    sys_.clear();
    sys_.add({.call = call, .count = SyscallFault::kForever, .error = EDQUOT});
    const auto done = write_object(*storage_, "object", std::string(10'000, 'x'), {.size_hint_bytes = 10'000});
    ASSERT_FALSE(done) << call;
    EXPECT_EQ(done.error().code(), ErrorCode::kResourceExhausted) << call;
    EXPECT_THAT(done.error().to_string(), HasSubstr("Disk quota exceeded"));
    EXPECT_THAT(names(), IsEmpty()) << call;
  }
}

TEST_F(LocalTest, ALastSyncThatFailsSaysSo) {
  sys_.add({.call = "fsync", .error = EIO});
  const auto done = write_object(*storage_, "object", "x");
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().to_string(), HasSubstr("visible, but may not survive"));
  EXPECT_EQ(*read_object(*storage_, "object"), "x");
}

TEST_F(LocalTest, WorksWhereTheFileSystemCanDoLess) {
  for (const char* call : {"flock", "copy_file_range", "fallocate"}) {
    sys_.add({.call = call, .count = SyscallFault::kForever, .error = EOPNOTSUPP});
  }
  sys_.add({.call = "rename_noreplace", .count = SyscallFault::kForever, .error = EINVAL});
  const WriteOptions if_absent{.condition = WriteOptions::Condition::kIfAbsent, .size_hint_bytes = 10};
  const auto written = write_object(*storage_, "object", "content", if_absent);
  ASSERT_TRUE(written) << written.error().to_string();
  EXPECT_EQ(write_object(*storage_, "object", "x", if_absent).error().code(), ErrorCode::kAlreadyExists);
  const auto reader = storage_->open_read("object");
  const auto writer = storage_->open_write("copy");
  ASSERT_TRUE((*writer)->copy_range(**reader, 0, 7, 0));
  ASSERT_TRUE((*writer)->commit());
  EXPECT_EQ(*read_object(*storage_, "copy"), "content");
  const WriteOptions if_version{.condition = WriteOptions::Condition::kIfVersion, .version = written->version};
  EXPECT_EQ(write_object(*storage_, "object", "x", if_version).error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(storage_->remove(std::vector<std::string>{"copy"}));
  EXPECT_THAT(names(), ElementsAre("object"));
}

TEST_F(LocalTest, AnAbortAndABeginningWriterDoNotMeet) {
  // The moment between open and flock: the file looks abandoned, another process lists and aborts it.
  class Meddler final : public Syscalls {
   public:
    std::function<void()> before_lock;
    int flock(int fd, int operation) override {
      if (auto meddle = std::exchange(before_lock, nullptr)) meddle();
      return Syscalls::flock(fd, operation);
    }
  } sys;
  const auto storage = *open_local_storage(dir_.path(), {.syscalls = &sys});
  int aborted = 0;
  sys.before_lock = [&] {
    const auto uploads = storage_->list_uploads("");
    aborted = static_cast<int>(uploads->size());
    EXPECT_TRUE(storage_->abort_uploads(*uploads));
  };
  ASSERT_TRUE(write_object(*storage, "object", "content"));
  EXPECT_EQ(aborted, 1);
  EXPECT_EQ(*read_object(*storage_, "object"), "content");
}

// Two processes: one makes the directories of an object, the other removes each that is empty as soon as it is there.
TEST_F(LocalTest, EmptyDirectoriesThatVanishAreMadeAgain) {
  class Remover final : public Syscalls {
   public:
    std::string victim;
    int calls = 0;
    int mkdir(const char* path, mode_t mode) override {
      if (std::string_view(path).starts_with(victim + "/") && calls++ < 3) ::rmdir(victim.c_str());
      return Syscalls::mkdir(path, mode);
    }
    int link_fd(int fd, const char* to) override {
      if (calls++ == 0) std::filesystem::remove(std::filesystem::path(to).parent_path());
      return Syscalls::link_fd(fd, to);
    }
  } sys;
  const auto storage = *open_local_storage(dir_.path(), {.syscalls = &sys});
  sys.victim = dir_.path() + "/step";
  ASSERT_TRUE(write_object(*storage, "step/attempt/object", "content"));
  EXPECT_EQ(sys.calls, 4);
  EXPECT_EQ(*read_object(*storage_, "step/attempt/object"), "content");
  sys.calls = 0;
  ASSERT_TRUE(write_object(*storage, "other/brief", "content", {.brief = true}));
  EXPECT_EQ(*read_object(*storage_, "other/brief"), "content");
}

TEST_F(LocalTest, OpenFilesAreNotLeaked) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  ASSERT_TRUE(write_object(*storage_, "a/object", "x"));  // the first opens the file system too
  const auto before = open_files();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(write_object(*storage_, "a/object", "x"));
    ASSERT_TRUE(read_object(*storage_, "a/object"));
    ASSERT_TRUE(storage_->make_durable(std::vector<std::string>{"a/object"}));
    ASSERT_TRUE(storage_->list(""));
    ASSERT_TRUE(storage_->list_uploads(""));
    static_cast<void>(storage_->open_write("a"));
    sys_.add({.call = "rename", .error = EIO});
    EXPECT_FALSE(write_object(*storage_, "a/object", "x"));
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace millrace
