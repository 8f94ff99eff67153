#include "rest.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace horovod {
namespace common {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than what lies between the collectives of a training step.
const auto AFTER = std::chrono::milliseconds(50);
// What a rank may be late that another one waits for without a collective: when Horovod is shut
// down, or a process set is made.
const auto LONGEST = std::chrono::milliseconds(10);

std::mutex mutex;
std::condition_variable changed;
bool woken = false;
Clock::time_point busy; // the background thread's own

} // namespace

void RestLater() { busy = Clock::now(); }

void Rest() {
  if (Clock::now() - busy < AFTER) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait_for(lock, LONGEST, [] { return woken; });
  woken = false;
}

void WakeUp() {
  {
    std::lock_guard<std::mutex> guard(mutex);
    woken = true;
  }
  changed.notify_one();
}

} // namespace common
} // namespace horovod
