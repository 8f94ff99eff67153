// Says in which library a process crashed: each frame's library goes to stderr, then whoever
// handled the signal before (Python's faulthandler) does.

#include <csignal>
#include <execinfo.h>
#include <unistd.h>

namespace {

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
const int MOST_FRAMES = 64;
const int OWN_FRAMES = 2; // this handler, and what the kernel calls it by
const char TITLE[] = "Native stack (most recent call first):\n";

struct sigaction before[NSIG];
void* frames[MOST_FRAMES];

void Report(int signal, siginfo_t* info, void* context) {
  // Only what may be called in a signal's handler: nothing here allocates memory.
  const struct sigaction& other = before[signal];
  sigaction(signal, &other, nullptr); // a crash in here is the other's
  int count = backtrace(frames, MOST_FRAMES);
  if (count > OWN_FRAMES && write(STDERR_FILENO, TITLE, sizeof(TITLE) - 1) > 0) {
    backtrace_symbols_fd(frames + OWN_FRAMES, count - OWN_FRAMES, STDERR_FILENO);
  }
  if (other.sa_flags & SA_SIGINFO) {
    other.sa_sigaction(signal, info, context);
  } else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) {
    other.sa_handler(signal);
  } else {
    raise(signal);
  }
}

} // namespace

extern "C" {

void horovod_report_crashes() {
  // The first call loads the library that unwinds stacks, which a handler must not do.
  backtrace(frames, MOST_FRAMES);
  struct sigaction own = {};
  own.sa_sigaction = Report;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&own.sa_mask);
  for (int signal : SIGNALS) {
    sigaction(signal, &own, &before[signal]);
  }
}

} // extern "C"
