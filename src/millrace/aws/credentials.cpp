// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/credentials.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/aws/detail/providers.h"
#include "millrace/base/log.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/base/thread/sync.h"
#include "millrace/http/http.h"

namespace millrace::aws {
namespace {

using std::chrono::system_clock;

constexpr std::chrono::minutes kRefreshBefore{5};  // the SDKs of AWS renew 5 to 15 minutes before
constexpr std::chrono::seconds kRefreshAgain{30};  // ten tries before the old ones expire

struct CredentialPlace {
  const char* name;
  Result<Found> (*look)(const ProviderContext&);
};
constexpr CredentialPlace kPlaces[] = {{"environment", from_environment},
                                       {"web identity", from_web_identity},
                                       {"profile", from_profile},
                                       {"container", from_container},
                                       {"instance", from_instance}};
// A profile that the caller names wins over keys that happen to be in the environment.
constexpr size_t kFirstOfNamedProfile = 2;

Result<Credentials> look_everywhere(const ProviderContext& context, size_t first) {
  std::string tried;
  for (size_t i = first; i < std::size(kPlaces); ++i) {
    ASSIGN_OR_RETURN(Found found,
                     with_context(kPlaces[i].look(context), fmt::format("credentials, {}", kPlaces[i].name)));
    if (found.credentials && found.credentials->expires <= context.now()) {
      return fail(ErrorCode::kPermissionDenied, "credentials, {}: they have expired", kPlaces[i].name);
    }
    if (found.credentials) {
      log(LogLevel::kDebug, "credentials: {}", kPlaces[i].name);
      return std::move(*found.credentials);
    }
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", kPlaces[i].name, found.missing);
  }
  return fail(ErrorCode::kPermissionDenied, "no credentials for S3 ({})", tried);
}

}  // namespace

struct CredentialsProvider::Impl {
  // State of one process. One load at a time: the thread that set `loading` owns it.
  struct State {
    ~State() { stop.request_stop(); }

    Mutex mutex;
    CondVar changed;
    std::optional<Credentials> current GUARDED_BY(mutex);
    system_clock::time_point refresh_at GUARDED_BY(mutex);
    bool loading GUARDED_BY(mutex) = false;
    std::optional<Error> failure GUARDED_BY(mutex);  // of the last load
    std::unique_ptr<http::Client> client;            // for loads; made at first use
    std::stop_source stop;
    Thread refresher GUARDED_BY(mutex);  // last member, so it ends before the others are destroyed
  };

  explicit Impl(CredentialsOptions with) : options(std::move(with)), state([] { return std::make_unique<State>(); }) {}

  Result<Credentials> load(State& mine) const {
    ASSIGN_OR_RETURN(const Config config, load_config(options.environment, options.profile));
    if (!mine.client) {
      http::ClientOptions client;
      client.ca_file = options.ca_file.empty() ? config.ca_bundle() : options.ca_file;
      mine.client = std::make_unique<http::Client>(client);
    }
    const ProviderContext context{config, *mine.client, options.now, options.container_host, mine.stop.get_token()};
    return look_everywhere(context, options.profile.empty() ? 0 : kFirstOfNamedProfile);
  }

  void finish(State& mine, Result<Credentials> loaded) const {
    const MutexLock lock(mine.mutex);
    const auto now = options.now();
    if (loaded) {
      mine.current = std::move(*loaded);
      mine.failure.reset();
      // Credentials that live for minutes only are renewed after half of their life.
      const auto expires = mine.current->expires;
      mine.refresh_at = expires == system_clock::time_point::max()
                            ? expires
                            : std::max(expires - kRefreshBefore, now + (expires - now) / 2);
    } else {
      mine.failure = std::move(loaded).error();
      mine.refresh_at = now + kRefreshAgain;
    }
    mine.loading = false;
    mine.changed.notify_all();
  }

  void refresh_behind(State& mine) const REQUIRES_LOCK(mine.mutex) {
    mine.loading = true;
    mine.refresher = Thread("mr-credentials", [this, &mine] { finish(mine, load(mine)); });
  }

  // The credentials; or nullopt when the caller must load them.
  std::optional<Result<Credentials>> current_or_turn(State& mine) const {
    const MutexLock lock(mine.mutex);
    for (bool waited = false;; waited = true) {
      const auto now = options.now();
      if (mine.current && now < mine.current->expires) {
        if (now >= mine.refresh_at && !mine.loading) refresh_behind(mine);
        return *mine.current;
      }
      if (!mine.loading) {
        if (waited && mine.failure) return tl::unexpected(*mine.failure);
        mine.loading = true;
        return std::nullopt;
      }
      mine.changed.wait(mine.mutex);
    }
  }

  const CredentialsOptions options;
  PerProcess<State> state;
};

CredentialsProvider::CredentialsProvider(CredentialsOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
CredentialsProvider::~CredentialsProvider() = default;

Result<Credentials> CredentialsProvider::get() {
  if (impl_->options.anonymous) return Credentials();
  Impl::State& mine = impl_->state.get();
  if (auto known = impl_->current_or_turn(mine)) return std::move(*known);
  Result<Credentials> loaded = impl_->load(mine);
  impl_->finish(mine, loaded);
  return loaded;
}

void CredentialsProvider::refused(const Credentials& credentials) {
  Impl::State& mine = impl_->state.get();
  const MutexLock lock(mine.mutex);
  if (mine.current && mine.current->access_key == credentials.access_key &&
      mine.current->session_token == credentials.session_token) {
    mine.current.reset();
  }
}

}  // namespace millrace::aws
