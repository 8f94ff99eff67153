#include "pace.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace horovod {
namespace common {
namespace {

// As nothing more has come for so long (a part of the cycle time), the last tensor is there.
const int QUIET_PART = 5;
// Ranks whose collectives do not match ask so long at full pace, and then at this one.
const auto PATIENCE = std::chrono::seconds(1);
const auto SLOW = std::chrono::milliseconds(10);

std::mutex mutex;
std::condition_variable changed;
bool fresh = false;   // something is handed over that has not been asked for
bool asleep = false;  // the thread is to be woken by it
bool woken = false;
int waiting = 0;
PaceClock::time_point first; // of what is fresh
PaceClock::time_point latest;
PaceClock::time_point useful; // the background thread's own

} // namespace

void AwaitCycle(const Cycle& last) {
  std::unique_lock<std::mutex> lock(mutex);
  auto due = last.began + last.time;
  if (!last.did_nothing || !last.is_open) {
    useful = PaceClock::now();
  }
  if (last.is_fixed) {
    changed.wait_until(lock, due, [] { return woken; });
    woken = false;
    return;
  }
  auto until = due;
  if (!last.is_open) {
    until = PaceClock::now() + last.longest;
  } else if (due - useful > PATIENCE) {
    until = last.began + std::max<PaceClock::duration>(last.time, SLOW);
  }
  asleep = until > due;
  changed.wait_until(lock, until, [] { return woken || (fresh && (asleep || waiting)); });
  asleep = false;
  while (fresh && !woken && !waiting) {
    auto quiet = std::max(latest + last.time / QUIET_PART, due);
    auto next = std::min(std::max(first, last.began) + last.time, quiet);
    if (PaceClock::now() >= next) {
      break;
    }
    changed.wait_until(lock, next);
  }
  woken = false;
}

void TensorHandedOver() {
  std::lock_guard<std::mutex> guard(mutex);
  latest = PaceClock::now();
  if (!fresh) {
    fresh = true;
    first = latest;
    if (asleep || waiting > 0) {
      changed.notify_one();
    }
  }
}

void TensorsTaken() {
  std::lock_guard<std::mutex> guard(mutex);
  fresh = false;
}

void WaitBegins() {
  std::lock_guard<std::mutex> guard(mutex);
  if (waiting++ == 0 && fresh) {
    changed.notify_one();
  }
}

void WaitEnds() {
  std::lock_guard<std::mutex> guard(mutex);
  --waiting;
}

void WakeUp() {
  std::lock_guard<std::mutex> guard(mutex);
  woken = true;
  changed.notify_one();
}

} // namespace common
} // namespace horovod
