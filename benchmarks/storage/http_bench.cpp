// SPDX-License-Identifier: Apache-2.0

// What a request costs the HTTP transport (http/), without a store behind it: the server is a forked child that
// answers every GET with as many bytes of one buffer as its Range asks for, and throws away what is PUT. The figures
// are the CPU of this process, user and system, of all its threads; the server's is not in them.
//   ninja -C build/dev millrace_http_bench, then
//   build/dev/benchmarks/storage/millrace_http_bench [--tls] [--threads N] [WORKLOAD...]      all workloads without one
//   get-16k get-64k get-64k-64 get-1m get-1m-64 get-8m put-16k put-8m put-64m
// The second number in a name is how many requests are in flight (else 16; 8 of the large ones).

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>

#include "millrace/http/http.h"
#include "millrace/http/testing/test_server.h"

namespace millrace::http {
namespace {

struct Workload {
  const char* name;
  Method method;
  int64_t bytes;
  int in_flight;
  int64_t requests;
};
constexpr Workload kWorkloads[] = {
    {"get-16k", Method::kGet, 16 << 10, 16, 40'000},    {"get-64k", Method::kGet, 64 << 10, 16, 20'000},
    {"get-64k-64", Method::kGet, 64 << 10, 64, 20'000}, {"get-1m", Method::kGet, 1 << 20, 16, 4'000},
    {"get-1m-64", Method::kGet, 1 << 20, 64, 4'000},    {"get-8m", Method::kGet, 8 << 20, 8, 500},
    {"put-16k", Method::kPut, 16 << 10, 16, 40'000},    {"put-8m", Method::kPut, 8 << 20, 8, 500},
    {"put-64m", Method::kPut, 64 << 20, 8, 64},
};

// ---- the null server: one thread, plain sockets ----

struct Connection {
  std::string head;
  int64_t body_left = 0;  // of a PUT, still to come
  std::string answer;     // to send, then `send_left` bytes of the buffer
  int64_t send_left = 0;
};

void answer_head(Connection& c) {
  long long first = 0, last = 0, length = 0;
  if (const size_t range = c.head.find("Range: bytes="); range != c.head.npos) {
    std::sscanf(c.head.c_str() + range, "Range: bytes=%lld-%lld", &first, &last);
  }
  if (const size_t at = c.head.find("Content-Length: "); at != c.head.npos) {
    std::sscanf(c.head.c_str() + at, "Content-Length: %lld", &length);
  }
  c.body_left = length;
  const bool get = c.head.starts_with("GET");
  c.send_left = get ? last - first + 1 : 0;
  c.answer = fmt::format(
      "HTTP/1.1 {}\r\nx-amz-request-id: 0123456789\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\nETag: \"{:032}\"\r\n"
      "Content-Range: bytes {}-{}/*\r\nContent-Length: {}\r\n\r\n",
      get ? "206 Partial Content" : "200 OK", 0, first, last, c.send_left);
  c.head.clear();
}

// False when the connection ended.
bool serve(int fd, Connection& c, std::string& buffer) {
  for (;;) {
    if (c.answer.empty() && c.send_left == 0) {
      const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
      if (got < 0) return true;
      std::string_view bytes(buffer.data(), static_cast<size_t>(got));
      if (c.body_left == 0) {
        c.head += bytes;
        const size_t end = c.head.find("\r\n\r\n");
        if (end == c.head.npos) continue;
        bytes = bytes.substr(bytes.size() - (c.head.size() - end - 4));
        c.head.resize(end + 4);
        answer_head(c);
      }
      c.body_left -= static_cast<int64_t>(bytes.size());
      while (c.body_left > 0) {  // waits: the client sends on all its connections
        const ssize_t more = ::recv(fd, buffer.data(), buffer.size(), 0);
        if (more <= 0) return false;
        c.body_left -= more;
      }
    }
    while (!c.answer.empty() || c.send_left > 0) {
      iovec parts[2] = {{c.answer.data(), c.answer.size()},
                        {buffer.data(), static_cast<size_t>(std::min<int64_t>(c.send_left, 1 << 20))}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN;
      const size_t of_head = std::min(static_cast<size_t>(sent), c.answer.size());
      c.answer.erase(0, of_head);
      c.send_left -= sent - static_cast<ssize_t>(of_head);
    }
  }
}

[[noreturn]] void run_null_server(int listener) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string buffer(1 << 20, 'x');
  std::map<int, Connection> connections;
  const int epoll = ::epoll_create1(0);
  const auto add = [&](int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  };
  add(listener, EPOLLIN);
  for (;;) {
    epoll_event events[64];
    const int count = ::epoll_wait(epoll, events, 64, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int accepted = ::accept(listener, nullptr, nullptr);
        const int on = 1;
        ::setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connections[accepted];
        add(accepted, EPOLLIN | EPOLLOUT | EPOLLET);
      } else if (!serve(fd, connections[fd], buffer)) {
        connections.erase(fd);
        ::close(fd);
      }
    }
  }
}

int start_null_server() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  // SAFETY: every sockaddr begins alike; that is how the calls take them.
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, any, size) != 0 || ::listen(listener, 512) != 0) std::abort();
  ::getsockname(listener, any, &size);
  if (::fork() == 0) run_null_server(listener);
  ::close(listener);
  return ntohs(address.sin_port);
}

// With TLS the server is the tests' own, in a child as well.
std::string start_tls_server(const std::string& ca_file) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  if (::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string content(64 << 20, 'x');
    TestServer server([&](const ReceivedRequest& r) { return r.method == "GET" ? serve_range(r, content) : Reply{}; },
                      {.tls = true});
    std::ofstream(ca_file) << server.certificate();
    const std::string url = server.url("");
    if (::write(ends[1], url.data(), url.size()) < 0) std::abort();
    for (;;) ::pause();
  }
  char text[100];
  const ssize_t got = ::read(ends[0], text, sizeof text);
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

// ---- the client ----

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Makes `requests` requests of the workload, work.in_flight at a time. False: one failed.
bool run_requests(Client& client, const std::string& url, const Workload& work, std::string& memory, int64_t requests) {
  std::atomic<int64_t> left = requests;
  std::atomic<int64_t> running = 0;
  std::atomic<bool> fine = true;
  const auto bytes = static_cast<size_t>(work.bytes);
  std::function<void(size_t)> next = [&](size_t slot) {
    if (left.fetch_sub(1) <= 0) {
      running.fetch_sub(1);
      running.notify_all();
      return;
    }
    Request request{.method = work.method, .url = url + "/bucket/some/key-0001"};
    const std::span<char> part(memory.data() + slot * bytes, bytes);
    if (work.method == Method::kGet) {
      request.headers = {fmt::format("Range: bytes=0-{}", bytes - 1)};
      request.out = std::as_writable_bytes(part);
    } else {
      request.body = std::as_bytes(part);
    }
    request.headers.emplace_back("x-amz-date: 20261121T120000Z");
    request.headers.emplace_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    request.headers.emplace_back("Authorization: " + std::string(200, 'a'));
    client.start(std::move(request), [&, slot](Result<Response> answer) {
      if (!answer || answer->status / 100 != 2) fine = false;
      next(slot);
    });
  };
  running = work.in_flight;
  for (int i = 0; i < work.in_flight; ++i) next(static_cast<size_t>(i));
  for (int64_t now; (now = running.load()) > 0;) running.wait(now);
  return fine;
}

void measure(const std::string& url, const ClientOptions& options, const Workload& work) {
  Client client(options);
  std::string memory(static_cast<size_t>(work.bytes * work.in_flight), 'm');
  run_requests(client, url, work, memory, work.in_flight * 4);
  std::vector<double> cpu, wall;
  for (int round = 0; round < 5; ++round) {
    const double before = cpu_seconds();
    const auto begin = Clock::now();
    if (!run_requests(client, url, work, memory, work.requests)) fmt::print("{}: a request failed\n", work.name);
    cpu.push_back(cpu_seconds() - before);
    wall.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(cpu.begin(), cpu.end());
  std::sort(wall.begin(), wall.end());
  const double count = static_cast<double>(work.requests);
  const double gigabytes = count * static_cast<double>(work.bytes) / 1e9;
  fmt::print("{:<11} {:8.1f} us CPU a request {:8.1f} us wall {:7.3f} CPU-s/GB {:6.2f} GB/s\n", work.name,
             cpu[2] / count * 1e6, wall[2] / count * 1e6, cpu[2] / gigabytes, gigabytes / wall[2]);
}

int run(int argc, char** argv) {
  std::vector<std::string> chosen(argv + 1, argv + argc);
  ClientOptions options;
  bool tls = false;
  std::erase_if(chosen, [&](const std::string& text) { return text == "--tls" && (tls = true); });
  if (const auto flag = std::find(chosen.begin(), chosen.end(), "--threads"); flag != chosen.end()) {
    options.threads = std::atoi((flag + 1)->c_str());
    chosen.erase(flag, flag + 2);
  }
  std::string url;
  if (tls) {
    options.ca_file = fmt::format("/tmp/http-bench-{}.pem", ::getpid());
    url = start_tls_server(options.ca_file);
  } else {
    url = fmt::format("http://127.0.0.1:{}", start_null_server());
  }
  for (const Workload& work : kWorkloads) {
    if (chosen.empty() || std::find(chosen.begin(), chosen.end(), work.name) != chosen.end())
      measure(url, options, work);
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("peak memory {} MiB\n", usage.ru_maxrss / 1024);
  if (tls) ::unlink(options.ca_file.c_str());
  return 0;
}

}  // namespace
}  // namespace millrace::http

int main(int argc, char** argv) {
  return millrace::http::run(argc, argv);
}
