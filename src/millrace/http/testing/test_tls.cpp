// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/testing/test_tls.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

namespace millrace::http {
namespace {

void require(bool fine) {
  if (!fine) throw std::runtime_error("test server: OpenSSL made no certificate");
}

void add_extension(X509* certificate, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  require(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* self_signed(EVP_PKEY* key) {
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  // SAFETY: the text is ASCII, which the function takes as unsigned char.
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("millrace test"), -1, -1,
                             0);
  X509_set_issuer_name(certificate, name);
  add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(certificate, NID_subject_alt_name, "IP:127.0.0.1");
  require(X509_sign(certificate, key, EVP_sha256()) > 0);
  return certificate;
}

std::string as_pem(X509* certificate) {
  BIO* memory = BIO_new(BIO_s_mem());
  require(PEM_write_bio_X509(memory, certificate) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  std::string pem(data, static_cast<size_t>(size));
  BIO_free(memory);
  return pem;
}

}  // namespace

TlsIdentity::TlsIdentity() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  require(key != nullptr);
  X509* certificate = self_signed(key);
  certificate_ = as_pem(certificate);
  context_ = SSL_CTX_new(TLS_server_method());
  require(SSL_CTX_use_certificate(context_, certificate) == 1 && SSL_CTX_use_PrivateKey(context_, key) == 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

TlsIdentity::~TlsIdentity() {
  SSL_CTX_free(context_);
}

Stream::Stream(int fd, const TlsIdentity* identity) : fd_(fd) {
  if (identity == nullptr) return;
  ssl_ = SSL_new(identity->context());
  SSL_set_fd(ssl_, fd_);
  SSL_set_accept_state(ssl_);
}

Stream::~Stream() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_);
  SSL_free(ssl_);
  ::close(fd_);
}

bool Stream::read_some(std::string& into) {
  std::array<char, 128 << 10> buffer;
  const ssize_t got = ssl_ != nullptr ? SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()))
                                      : ::recv(fd_, buffer.data(), buffer.size(), 0);
  if (got <= 0) return false;
  into.append(buffer.data(), static_cast<size_t>(got));
  return true;
}

bool Stream::write_all(std::string_view bytes) {
  constexpr size_t kPieceBytes = 1 << 20;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kPieceBytes);
    const ssize_t sent = ssl_ != nullptr ? SSL_write(ssl_, piece.data(), static_cast<int>(piece.size()))
                                         : ::send(fd_, piece.data(), piece.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void Stream::shut_down() {
  ::shutdown(fd_, SHUT_RDWR);
}

void Stream::reset_on_close() {
  const linger at_once{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

}  // namespace millrace::http
