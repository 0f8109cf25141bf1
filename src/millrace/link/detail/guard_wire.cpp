// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/detail/guard_wire.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace millrace::link {

namespace {

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidArgument, "{} is too long for a socket: set MILLRACE_LINKS to a shorter folder",
                path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// SAFETY: the sockets API takes every address as one of sockaddr.
const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Result<Descriptor> make_socket() {
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made.get() < 0) return tl::unexpected<Error>(errno_error(errno, "make a socket"));
  return made;
}

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int));

}  // namespace

Status send_message(int socket, const GuardMessage& message, int descriptor, bool may_wait) {
  GuardMessage copy = message;
  iovec part{.iov_base = &copy, .iov_len = sizeof copy};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  while (true) {
    if (::sendmsg(socket, &header, MSG_NOSIGNAL | (may_wait ? 0 : MSG_DONTWAIT)) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return fail(ErrorCode::kResourceExhausted, "the other side does not read");
    return fail(ErrorCode::kUnavailable, "the other side is gone ({})", errno_error(errno, "sendmsg").message());
  }
}

Result<ReceivedMessage> receive_message(int socket) {
  ReceivedMessage received;
  iovec part{.iov_base = &received.message, .iov_len = sizeof received.message};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof received.message)) {
    return fail(ErrorCode::kUnavailable, "the other side is gone");
  }
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    received.descriptor = Descriptor(descriptor);
  }
  return received;
}

Result<Descriptor> listen_at(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path));
  ASSIGN_OR_RETURN(Descriptor socket, make_socket());
  ::unlink(path.c_str());
  if (::bind(socket.get(), generic(address), sizeof address) != 0 || ::listen(socket.get(), 16) != 0) {
    return tl::unexpected<Error>(errno_error(errno, "listen at " + path));
  }
  return socket;
}

Result<Descriptor> connect_to(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path));
  ASSIGN_OR_RETURN(Descriptor socket, make_socket());
  if (::connect(socket.get(), generic(address), sizeof address) == 0) return socket;
  if (errno == ENOENT || errno == ECONNREFUSED) return fail(ErrorCode::kNotFound, "no guardian listens at {}", path);
  return tl::unexpected<Error>(errno_error(errno, "connect to " + path));
}

}  // namespace millrace::link
