// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/credentials.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "millrace/aws/detail/providers.h"
#include "millrace/base/log.h"
#include "millrace/base/thread/answer.h"
#include "millrace/base/thread/executor.h"
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
  // State of one process.
  struct State {
    ~State() { stop.request_stop(); }

    Mutex mutex;
    std::optional<Credentials> current GUARDED_BY(mutex);
    system_clock::time_point refresh_at GUARDED_BY(mutex);
    bool loading GUARDED_BY(mutex) = false;
    std::vector<Done> waiting GUARDED_BY(mutex);  // for the load
    std::unique_ptr<http::Client> client;         // of the thread; made at first use
    std::stop_source stop;
    Executor thread{1, "mr-credentials"};  // last member, so it ends before the others are destroyed
  };

  explicit Impl(CredentialsOptions with) : options(std::move(with)), state([] { return std::make_unique<State>(); }) {}

  Result<Credentials> look(State& mine) const {
    ASSIGN_OR_RETURN(const Config config, load_config(options.environment, options.profile));
    if (!mine.client) {
      http::ClientOptions client;
      client.ca_file = options.ca_file.empty() ? config.ca_bundle() : options.ca_file;
      mine.client = std::make_unique<http::Client>(client);
    }
    const ProviderContext context{config, *mine.client, options.now, options.container_host, mine.stop.get_token()};
    return look_everywhere(context, options.profile.empty() ? 0 : kFirstOfNamedProfile);
  }

  void load(State& mine) const {
    const Result<Credentials> found = look(mine);
    std::vector<Done> waiting;
    {
      const MutexLock lock(mine.mutex);
      const auto now = options.now();
      if (found) {
        mine.current = *found;
        // Credentials that live for minutes only are renewed after half of their life.
        const auto expires = found->expires;
        mine.refresh_at = expires == system_clock::time_point::max()
                              ? expires
                              : std::max(expires - kRefreshBefore, now + (expires - now) / 2);
      } else {
        mine.refresh_at = now + kRefreshAgain;
      }
      mine.loading = false;
      waiting.swap(mine.waiting);
    }
    for (const Done& done : waiting) done(found);
  }

  const CredentialsOptions options;
  PerProcess<State> state;
};

CredentialsProvider::CredentialsProvider(CredentialsOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
CredentialsProvider::~CredentialsProvider() = default;

void CredentialsProvider::get(Done done) {
  if (impl_->options.anonymous) return done(Credentials());
  Impl::State& mine = impl_->state.get();
  std::optional<Credentials> known;
  {
    const MutexLock lock(mine.mutex);
    const auto now = impl_->options.now();
    if (mine.current && now < mine.current->expires) known = mine.current;
    if (!known) mine.waiting.push_back(std::move(done));
    if (!mine.loading && (!known || now >= mine.refresh_at)) {
      mine.loading = true;
      mine.thread.submit([impl = impl_.get(), &mine] { impl->load(mine); });
    }
  }
  if (known) done(*std::move(known));
}

Result<Credentials> CredentialsProvider::get() {
  return wait_for_answer<Result<Credentials>>([&](auto done) { get(std::move(done)); });
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
