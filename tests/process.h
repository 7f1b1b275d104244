#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace fathom {

// A program that a test has started. It is killed, and waited for, when the object goes.
class Process {
 public:
  // The first word is the program's path, or a name that is looked up in PATH. Standard output and
  // standard error go to the file `log`.
  Process(const std::vector<std::string>& command, const std::string& log);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  void Signal(int signal) const;
  // Stops it where it is (SIGSTOP). False when it has ended already.
  bool Pause();
  void Kill();
  bool HasEnded();
  // Its exit status as a shell gives it: 128 + signal where a signal ended it.
  int Wait();
  // The same; nullopt when it has not ended by then.
  std::optional<int> WaitFor(std::chrono::seconds limit);

 private:
  pid_t id_;
  std::optional<int> status_;  // as waitpid gives it, once it has ended
};

}  // namespace fathom
