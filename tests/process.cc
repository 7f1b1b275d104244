#include "tests/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/check.h"

namespace fathom {

Process::Process(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  id_ = fork();
  FATHOM_CHECK(id_ >= 0);
  if (id_ > 0) return;
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  dup2(out, 1);
  dup2(out, 2);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

Process::~Process() {
  if (!status_.has_value()) Kill();
}

void Process::Signal(int signal) const {
  // An ended process's number may be another's by now.
  if (!status_.has_value()) kill(id_, signal);
}

bool Process::Pause() {
  Signal(SIGSTOP);
  int status;
  FATHOM_CHECK(waitpid(id_, &status, WUNTRACED) == id_);
  if (WIFSTOPPED(status)) return true;
  status_ = status;
  return false;
}

void Process::Kill() {
  Signal(SIGKILL);
  Wait();
}

bool Process::HasEnded() {
  int status;
  if (!status_.has_value() && waitpid(id_, &status, WNOHANG) == id_) status_ = status;
  return status_.has_value();
}

int Process::Wait() {
  int status;
  if (!status_.has_value() && waitpid(id_, &status, 0) == id_) status_ = status;
  FATHOM_CHECK(status_.has_value());
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

std::optional<int> Process::WaitFor(std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!HasEnded()) {
    if (std::chrono::steady_clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return Wait();
}

}  // namespace fathom
