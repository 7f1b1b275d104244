#include "launch/run_environment.h"

#include <algorithm>
#include <cstdio>
#include <thread>

namespace fathom {

std::unique_ptr<Device> MakeDevice(const Job& job) {
  const int threads = job.device.threads > 0
                          ? job.device.threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::make_unique<CpuDevice>(threads);
}

void LogLine(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

absl::Status CheckProcessor() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this program is built for x86-64 processors with AVX2 and FMA (2013 on), and this one lacks "
      "them: rebuild with --copt=-march=native");
}

}  // namespace fathom
