#ifndef HOROVOD_REST_H
#define HOROVOD_REST_H

namespace horovod {
namespace common {

// The background thread's cycles grow longer while there is nothing to do. Nobody waits for that:
// a collective needs every rank, and each wakes its own thread as it comes to it.

// For the background thread: there was something to do in this cycle.
void RestLater();

// For the background thread, between two cycles: sleep if there was nothing to do for a while.
void Rest();

// From any thread: there is something to do.
void WakeUp();

} // namespace common
} // namespace horovod

#endif // HOROVOD_REST_H
