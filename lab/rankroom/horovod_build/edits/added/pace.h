// When the background thread begins a cycle: it asks all ranks then which collectives are ready.
//
// A cycle takes every rank's part, and a rank that waits in one for others only sleeps. So a rank
// with nothing to do leaves it at that, and one that has something comes as soon as more is of no
// use: when its caller waits, or nothing more is handed over. HOROVOD_CYCLE_TIME is the longest
// that tensors are collected, and the shortest time between the beginnings of two cycles in which
// nobody waits.

#ifndef HOROVOD_PACE_H
#define HOROVOD_PACE_H

#include <chrono>

namespace horovod {
namespace common {

using PaceClock = std::chrono::steady_clock;

// What the background thread knows as it has finished a cycle.
struct Cycle {
  PaceClock::time_point began;
  PaceClock::duration time; // HOROVOD_CYCLE_TIME
  bool is_open;             // tensors are handed over here, or elsewhere, whose time is not yet
  bool did_nothing;         // no collective took place in it
  bool is_fixed;            // begin the next one after `time`, whatever comes: it is being tuned
  PaceClock::duration longest; // so long a rank with nothing to do is not missed by others
};

// The background thread's wait for its next cycle.
void AwaitCycle(const Cycle& last);

// From any thread: a tensor is handed over.
void TensorHandedOver();

// The background thread has taken those that were, and asks for them in this cycle.
void TensorsTaken();

// From any thread: it waits for a tensor; and no longer does.
void WaitBegins();
void WaitEnds();

// From any thread: begin a cycle now.
void WakeUp();

} // namespace common
} // namespace horovod

#endif // HOROVOD_PACE_H
