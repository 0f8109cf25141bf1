// SPDX-License-Identifier: Apache-2.0
#pragma once

// TLS for the test server: a certificate made on the spot, and a connection that speaks TLS or not. A Stream belongs
// to one thread, but for shut_down().

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace millrace::http {

class TlsIdentity {
 public:
  TlsIdentity();
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;
  const std::string& certificate() const { return certificate_; }  // PEM
  SSL_CTX* context() const { return context_; }

 private:
  SSL_CTX* context_ = nullptr;
  std::string certificate_;
};

class Stream {
 public:
  // Takes `fd` over. `identity` may be null: no TLS.
  Stream(int fd, const TlsIdentity* identity);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // At least one byte into the end of `into`; false at the end of the connection.
  bool read_some(std::string& into);
  bool write_all(std::string_view bytes);
  // From another thread: reads and writes end.
  void shut_down();
  // The close will be a reset.
  void reset_on_close();

 private:
  const int fd_;
  SSL* ssl_ = nullptr;
};

}  // namespace millrace::http
