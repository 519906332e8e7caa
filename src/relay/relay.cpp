// SPDX-License-Identifier: MIT
#include "relay/relay.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/background_thread.hpp"
#include "base/log.hpp"
#include "base/own_process.hpp"
#include "base/test_point.hpp"
#include "numeric/float_environment.hpp"
#include "protocol/host_access.hpp"
#include "relay/progress.hpp"
#include "transport/network.hpp"

namespace sluice::relay {
namespace {

// After the last event the thread looks again at once, for so long; then it sleeps between looks. Where
// it has a processor to itself it costs nobody anything to go on looking.
constexpr std::int64_t kEagerNs = 200'000;
constexpr std::int64_t kEagerAloneNs = 20'000'000;
// What comes from other nodes does not wake it. A nap is as long as a hundredth of the time for which nothing has come:
// so what comes at last is seen a hundredth later than it might be, and a communicator at rest costs next to nothing.
constexpr std::int64_t kNapNsMin = 100'000;
constexpr std::int64_t kNapNsMax = 1'000'000;
constexpr std::int64_t kNapParts = 100;
constexpr unsigned long kTimerSlackNs = 1000;  // Else naps are half as long again.
// How long a closed communicator serves peers that live and have not closed theirs: so many times the
// patience, within bounds; and for one, however long that is: nobody is given up sooner.
constexpr std::int64_t kLingerPatiences = 10;
constexpr std::int64_t kLingerNsMin = 2'000'000'000;
constexpr std::int64_t kLingerNsMax = 10'000'000'000;

}  // namespace

/// What outlives the engine for a while.
struct Relay::Thread {
  Thread(Opening opening, Site site_, MakeTraffic make_traffic_)
      : site(std::move(site_)),
        make_traffic(std::move(make_traffic_)),
        endpoint(std::move(opening.endpoint)),
        patience(opening.patience),
        processors(opening.processors) {}
  ~Thread() {
    go(Go::end);
    if (thread.joinable()) thread.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  /// Before connect(), so that all learn of a thread that cannot be had; it waits for begin().
  Status start();
  Status connect(bootstrap::Group& group, base::Deadline deadline, const Status& started);
  void begin() noexcept { go(Go::run); }
  void run();
  void serve();

  Site site;
  MakeTraffic make_traffic;
  // Uses the site's memory, and the engine's that make_traffic holds: destroyed before them.
  std::unique_ptr<transport::Endpoint> endpoint;
  std::chrono::nanoseconds patience;
  const int processors;
  std::atomic<bool> closing{false};  // Stored by ~Relay, loaded by serve().
  std::atomic<bool> ended{false};    // Stored by run(), loaded by Lingering.
  const base::OwnProcess process;
  std::thread thread;

 private:
  enum class Go : std::uint8_t { wait, run, end };
  /// Once: what comes later changes nothing.
  void go(Go what) noexcept {
    Go expected = Go::wait;
    go_.compare_exchange_strong(expected, what, std::memory_order_release);  // Pairs with start().
    go_.notify_one();
  }
  void end() noexcept;
  void fail(const char* why) noexcept;

  std::atomic<Go> go_{Go::wait};
};

namespace {

/// Threads of relays that are gone. The end of the process waits for them.
class Lingering {
 public:
  /// Allocates nothing: a communicator may end for want of memory.
  void add(std::list<std::unique_ptr<Relay::Thread>> thread) {
    const std::lock_guard lock(mutex_);
    leave_parents();
    std::erase_if(threads_, [](const auto& each) {
      return each->ended.load(std::memory_order_acquire);  // Pairs with the release store in run().
    });
    threads_.splice(threads_.end(), thread);
  }
  void join() {
    const std::lock_guard lock(mutex_);
    leave_parents();
    threads_.clear();
  }

 private:
  /// A forked child has not its parent's threads, but shares the descriptors of their endpoints: they are
  /// neither joined nor destroyed there.
  void leave_parents() {
    std::erase_if(threads_,
                  [](auto& each) { return each->process.forked() && each.release() != nullptr; });
  }

  std::mutex mutex_;
  std::list<std::unique_ptr<Relay::Thread>> threads_;
};

// Never destroyed: a communicator may be static, and close after all else. (Then nobody waits.)
Lingering& lingering() {
  static Lingering& all = *new Lingering;
  return all;
}

// Not sooner than there is something to wait for: what the program has set up until then is still there.
void wait_at_exit() {
  struct JoinAtExit {
    ~JoinAtExit() { lingering().join(); }
  };
  static const JoinAtExit join{};
}

}  // namespace

Status Relay::Thread::start() {
  try {
    static_cast<void>(lingering());  // There when it is needed, whatever memory there is then.
    base::test_point(base::TestPoint::before_progress, site.rank);
    thread = base::start_background_thread("sluice-relay", [this] {
      go_.wait(Go::wait, std::memory_order_acquire);  // Pairs with go().
      if (go_.load(std::memory_order_acquire) == Go::run) run();
    });
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "cannot start a progress thread: too little memory");
  } catch (const std::system_error& error) {
    return Status(StatusCode::io_error,
                  std::string("cannot start a progress thread: ") + error.what());
  }
  return {};
}

Status Relay::Thread::connect(bootstrap::Group& group, base::Deadline deadline,
                              const Status& started) {
  const int rank = site.rank;
  Result<std::string> mine = endpoint->introduction();
  auto gathered = group.all_gather(mine.ok() ? *mine : "", deadline);
  if (!gathered.ok()) return gathered.status();
  Status status = group.agree(started.ok() ? mine.status() : started, deadline);
  if (!status.ok()) return status;
  for (int peer = 0; peer < site.nodes.ranks() && status.ok(); ++peer) {
    if (site.nodes.together(peer, rank)) continue;
    status = endpoint->connect(peer, (*gathered)[static_cast<std::size_t>(peer)]);
  }
  return group.agree(status, deadline);
}

void Relay::Thread::end() noexcept {
  // Pairs with the loads in Site::relay_ended and Waiter::cut_off of the neighbours.
  protocol::HostAccess::add_bits(*site.at<std::uint64_t>(site.rank, site.own().closed()),
                                 kRelayEnded);
  site.ring_all();
}

void Relay::Thread::run() {
  const numeric::FloatEnvironment floats;
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  try {
    serve();
  } catch (const std::exception& error) {  // Memory that is not to be had.
    fail(error.what());
  }
  end();
  endpoint.reset();
  make_traffic = nullptr;  // With what it holds.
  site.memory.reset();
  site.peers.reset();
  ended.store(true, std::memory_order_release);  // Pairs with the load in Lingering::add.
}

// Progress is gone, or was never there: this rank gives all other nodes up, and those whom it serves for
// its neighbours, too. What was put is read no longer once the endpoint is gone, so nobody has to wait for that.
void Relay::Thread::fail(const char* why) noexcept {
  base::log_error(
      "rank {}: its progress thread ends, and with it all that goes to, or comes from, other "
      "nodes: {}",
      site.rank, why);
  for (int peer = 0; peer < site.nodes.ranks(); ++peer) {
    if (!site.nodes.together(peer, site.rank)) site.give_up(peer, site.rank, kGivenUp);
  }
  for (const int source : site.own().served()) {
    for (const int reader : site.neighbours()) site.give_up(source, reader, kGivenUp);
  }
  endpoint.reset();
  for (const protocol::Kind kind : {protocol::Kind::dispatch, protocol::Kind::combine}) {
    // Pairs with the load in Relay::flushed.
    protocol::HostAccess::store_release(
        *site.at<std::uint64_t>(site.rank, site.own().flushed(kind)), ~std::uint64_t{0});
  }
  end();
  // The engine still wakes it.
  while (!closing.load(std::memory_order_acquire))  // Pairs with the store in ~Relay.
    std::this_thread::sleep_for(std::chrono::nanoseconds(kNapNsMax));
}

void Relay::Thread::serve() {
  Progress progress(site, *endpoint, patience, make_traffic);
  const std::int64_t eager_ns = processors >= 2 ? kEagerAloneNs : kEagerNs;
  // Who has a processor for each thread keeps it: to yield it is a call to the system between two looks.
  const bool yields = processors < transport::LibfabricSettings::kReceiverProcessors;
  std::int64_t busy_ns = base::now_ns();  // When something came, or went, last.
  std::int64_t end_ns = 0;
  for (;;) {
    const bool any = progress.step();
    const std::int64_t now_ns = base::now_ns();
    if (end_ns == 0 &&
        closing.load(std::memory_order_acquire)) {  // Pairs with the store in ~Relay.
      end_ns = now_ns + std::max(patience.count(), std::clamp(kLingerPatiences * patience.count(),
                                                              kLingerNsMin, kLingerNsMax));
      progress.close();
    } else if (end_ns != 0 && (now_ns > end_ns || progress.finished())) {
      break;
    }
    if (any) {
      busy_ns = now_ns;
    } else if (now_ns < busy_ns + eager_ns) {
      if (yields) ::sched_yield();
    } else {
      memory::Sleeper sleeper(site.doorbell(site.rank));
      // Looked at once more: what came before the announcement did not ring.
      if (progress.step()) {
        busy_ns = base::now_ns();
      } else {
        sleeper.sleep(std::clamp((now_ns - busy_ns) / kNapParts, kNapNsMin, kNapNsMax));
      }
    }
  }
}

Result<std::unique_ptr<Relay>> Relay::start(bootstrap::Group& group, Opening opening, Site site,
                                            MakeTraffic make_traffic, base::Deadline deadline) {
  site.layouts = std::move(opening.layouts);
  site.chunk_bytes = opening.chunk_bytes;
  std::list<std::unique_ptr<Thread>> one;
  one.push_back(
      std::make_unique<Thread>(std::move(opening), std::move(site), std::move(make_traffic)));
  Thread& thread = *one.front();
  const Status started = thread.start();
  if (Status status = thread.connect(group, deadline, started); !status.ok()) return status;
  std::unique_ptr<Relay> relay(new Relay(std::move(one)));
  thread.begin();
  return relay;
}

Relay::Relay(std::list<std::unique_ptr<Thread>> thread) : thread_(std::move(thread)) {}

Relay::Thread& Relay::thread() const noexcept {
  return *thread_.front();
}

Relay::~Relay() {
  if (thread().process.forked()) {
    // The parent's relay works on: nothing of what they share is touched, nor freed.
    static_cast<void>(thread_.front().release());
    return;
  }
  const Site& site = thread().site;
  // Pairs with the load in Progress::finished of the neighbours.
  protocol::HostAccess::add_bits(*site.at<std::uint64_t>(site.rank, site.own().closed()),
                                 kRelayClosed);
  thread().closing.store(true, std::memory_order_release);  // Pairs with the load in serve().
  // Not woken: it may be at its end already, and its endpoint gone.
  wait_at_exit();
  lingering().add(std::move(thread_));
}

const Site& Relay::site() const noexcept {
  return thread().site;
}

void Relay::publish(protocol::CellKind kind, std::uint64_t epoch) noexcept {
  const Site& site = thread().site;
  // Pairs with the loads in Outbox::published and, of the neighbours, NodeSums::published.
  protocol::HostAccess::store_release(
      *site.at<std::uint64_t>(site.rank, site.own().published(kind)), epoch);
  wake();
  if (kind != protocol::CellKind::combine) return;
  // They may wait for it with their sums.
  for (const int neighbour : site.neighbours()) {
    if (neighbour != site.rank) site.doorbell(neighbour).ring();
  }
}

bool Relay::flushed(protocol::Kind kind, std::uint64_t epoch) const noexcept {
  const Site& site = thread().site;
  // Pairs with the store in Progress::tell_flushed.
  return protocol::HostAccess::load_acquire(
             *site.at<std::uint64_t>(site.rank, site.own().flushed(kind))) >= epoch;
}

std::chrono::nanoseconds Relay::patience() const noexcept {
  return thread().patience;
}

void Relay::read(Statistics& statistics) const {
  const Site& site = thread().site;
  const window::RelayLayout& own = site.own();
  // Pairs with the stores in Postings::post_chunks and Progress::take_chunks.
  const auto word = [&](std::size_t offset) {
    return static_cast<std::int64_t>(
        protocol::HostAccess::load_acquire(*site.at<std::uint64_t>(site.rank, offset)));
  };
  for (int peer = 0; peer < site.nodes.ranks(); ++peer) {
    statistics.network_bytes.push_back(word(own.bytes_put(peer)));
  }
  statistics.network_first_put_ns = word(own.first_put());
  statistics.network_last_arrival_ns = word(own.last_arrival());
}

void Relay::wake() noexcept {
  thread().site.doorbell(thread().site.rank).ring();
}

}  // namespace sluice::relay
