// fathom: one binary with subcommands.

#include <csignal>
#include <cstdio>
#include <string>

#include "launch/arguments.h"
#include "launch/commands.h"

namespace fathom {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*main)(int argc, char** argv);  // gets the words after the command; nullptr: not built yet
};

constexpr Command kCommands[] = {
    {"inspect", "what a job's model is: layers, parameters, FLOPs, memory", InspectMain},
    {"prepare", "text files to a token file", PrepareMain},
    {"train", "trains, or resumes training", TrainMain},
    {"eval", "validation loss of a checkpoint, under top-k and causal routing", EvalMain},
    {"convert", "weights for another run, to or from Hugging Face; checkpoints for another layout", ConvertMain},
    {"compare", "two checkpoints or dumps, tensor by tensor", CompareMain},
    {"bench", "training and validation throughput of several jobs", nullptr},
    {"plan", "predicts step time on a cluster", nullptr},
    {"law", "scaling laws", nullptr},
    {"generate", "text from a checkpoint", nullptr},
    {"report", "one page for a run", nullptr},
};

void PrintUsage(std::FILE* out) {
  std::fprintf(out,
               "fathom pre-trains language models that are sparse in depth.\n\n"
               "usage: fathom COMMAND ...\n\n");
  for (const Command& command : kCommands) {
    if (command.main != nullptr) std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  }
  std::fprintf(out,
               "\n\"fathom COMMAND --help\" says more. A first run:\n"
               "  fathom train launch/jobs/quickstart.txtpb\n");
}

int Main(int argc, char** argv) {
  // A file that would grow beyond the process's limit is an error of the write, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  if (argc < 2) {
    PrintUsage(stderr);
    return kRefused;
  }
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(stdout);
    return kDone;
  }
  for (const Command& command : kCommands) {
    if (name != command.name) continue;
    if (command.main == nullptr) {
      std::fprintf(stderr, "fathom %s: %s: this command is not built yet\n", command.name,
                   command.summary);
      return kRefused;
    }
    return command.main(argc - 2, argv + 2);
  }
  std::fprintf(stderr, "fathom: there is no command \"%s\"; \"fathom --help\" lists them\n",
               name.c_str());
  return kRefused;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
