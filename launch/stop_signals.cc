#include "launch/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <thread>

namespace fathom {
namespace {

std::atomic<int> first_signal{0};

void WaitForSignals(sigset_t signals) {
  while (true) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    int none = 0;
    if (!first_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
  }
}

}  // namespace

const std::atomic<int>& WatchStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  // Threads started from here on inherit this.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(WaitForSignals, signals).detach();
  return first_signal;
}

}  // namespace fathom
