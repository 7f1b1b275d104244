#pragma once

#include <string>
#include <vector>

namespace fathom {

// A job file of launch/jobs.
struct JobFile {
  std::string name;  // without ".txtpb"
  std::string text;
};

// Every job file, as `write_jobs` writes it. Each is a job that validates.
std::vector<JobFile> MakeJobFiles();

}  // namespace fathom
