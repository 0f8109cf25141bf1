// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/unpack.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "millrace/formats/byte_stream.h"
#include "millrace/formats/tar.h"

namespace millrace::sync {
namespace {

constexpr std::array<std::string_view, 5> kArchives{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd"};
constexpr std::array<std::string_view, 4> kPacked{".gz", ".tgz", ".zst", ".zstd"};
constexpr size_t kUnpackPieceBytes = 1 << 20;  // a choice; a stop is seen after each
constexpr int64_t kCheckedBytes = 64 << 20;    // a choice: larger files, which would be held in memory, are not checked
constexpr std::string_view kNpyMagic = "\x93NUMPY";

template <class Endings>
bool ends_with_any(std::string_view path, const Endings& endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return path.ends_with(ending); });
}

std::string_view first_line(std::string_view text) {
  return text.substr(0, text.find('\n'));
}

// Whether `content` has the form that the name says; std::nullopt for names that say none.
std::optional<bool> has_its_form(std::string_view name, std::string_view content) {
  if (name.ends_with(".json")) return nlohmann::json::accept(content);
  if (name.ends_with(".jsonl")) return content.empty() || nlohmann::json::accept(first_line(content));
  if (name.ends_with(".npy")) return content.starts_with(kNpyMagic);
  return std::nullopt;
}

Status check_form(const RandomReader& reader, std::string_view name, int64_t offset, int64_t size, Unpacked& unpacked) {
  if (size > kCheckedBytes || !has_its_form(name, "")) return {};
  std::string content(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(reader.read_at(offset, std::as_writable_bytes(std::span(content))));
  if (!*has_its_form(name, content)) {
    return fail(ErrorCode::kCorruption, "{} in {} is not what its name says", name, reader.name());
  }
  ++unpacked.checked;
  return {};
}

// Copies the stream to its end; `sink` may be null.
Status drain(formats::ByteStream& stream, ByteSink* sink, const std::stop_token& stop) {
  std::vector<std::byte> piece(kUnpackPieceBytes);
  for (;;) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    ASSIGN_OR_RETURN(const size_t got, stream.read(piece));
    if (got == 0) return {};
    if (sink != nullptr) RETURN_IF_ERROR(sink->append(std::span(piece).first(got)));
  }
}

Status copy_member(const RandomReader& archive, const formats::TarMember& member, const Location& to) {
  ASSIGN_OR_RETURN(const auto writer, to.storage->open_write(to.key));
  std::vector<std::byte> piece(static_cast<size_t>(std::min<int64_t>(member.size, kUnpackPieceBytes)));
  for (int64_t at = 0; at < member.size; at += std::ssize(piece)) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(member.size - at, std::ssize(piece))));
    RETURN_IF_ERROR(archive.read_at(member.data_offset + at, part));
    RETURN_IF_ERROR(writer->append(part));
  }
  return writer->commit(Durability::kVisible).map([](const ObjectInfo&) {});
}

Result<Unpacked> unpack_tar(const RandomReader& archive, const Location& into, const std::stop_token& stop) {
  Unpacked unpacked{.is_archive = true};
  formats::TarReader tar(archive);
  for (;;) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    ASSIGN_OR_RETURN(const auto member, tar.next());
    if (!member) return unpacked;
    std::string_view name = member->name;
    while (name.starts_with("./")) name.remove_prefix(2);
    RETURN_IF_ERROR(with_context(check_key(name), "a member of " + std::string(archive.name())));
    RETURN_IF_ERROR(copy_member(archive, *member, into.child(name)));
    RETURN_IF_ERROR(check_form(archive, name, member->data_offset, member->size, unpacked));
    ++unpacked.members;
    unpacked.bytes += member->size;
  }
}

}  // namespace

bool is_archive(std::string_view path) {
  return ends_with_any(path, kArchives);
}

Result<Unpacked> unpack_and_check(const Location& file, const Location& into, std::stop_token stop) {
  ASSIGN_OR_RETURN(const auto reader, file.storage->open_read(file.key));
  if (!ends_with_any(file.key, kPacked)) {
    if (is_archive(file.key)) return unpack_tar(*reader, into, stop);
    Unpacked unpacked{.bytes = reader->size()};
    RETURN_IF_ERROR(check_form(*reader, file.key, 0, reader->size(), unpacked));
    return unpacked;
  }
  ASSIGN_OR_RETURN(const auto stream, formats::open_stream(*reader));
  if (!is_archive(file.key)) {
    RETURN_IF_ERROR(drain(*stream, nullptr, stop));
    return Unpacked{.checked = 1};
  }
  // A tar is read at any place, so it lies beside its members for a while.
  const Location tar{into.storage, into.key + ".tar", into.url + ".tar"};
  ASSIGN_OR_RETURN(const auto writer, tar.storage->open_write(tar.key));
  RETURN_IF_ERROR(drain(*stream, writer.get(), stop));
  RETURN_IF_ERROR(writer->commit(Durability::kVisible));
  const auto unpacked = [&]() -> Result<Unpacked> {
    ASSIGN_OR_RETURN(const auto plain, tar.storage->open_read(tar.key));
    return unpack_tar(*plain, into, stop);
  }();
  static_cast<void>(tar.storage->remove(std::span<const std::string>(&tar.key, 1)));
  return unpacked;
}

}  // namespace millrace::sync
