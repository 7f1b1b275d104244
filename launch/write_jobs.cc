// Writes the job files of launch/jobs: bazel run //launch:write_jobs -- "$PWD/launch/jobs"

#include <iostream>

#include "core/file.h"
#include "launch/job_table.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "write_jobs takes the directory to write to, e.g. launch/jobs\n";
    return 2;
  }
  fathom::FileSystem& files = fathom::PosixFileSystem();
  absl::Status status = files.CreateDirectories(argv[1]);
  for (const fathom::JobFile& job : fathom::MakeJobFiles()) {
    if (!status.ok()) break;
    status = fathom::WriteFileAtomically(files, fathom::JoinPath(argv[1], job.name + ".txtpb"),
                                         job.text);
  }
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  return 0;
}
