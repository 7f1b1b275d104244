#pragma once

namespace fathom {

// The subcommands. Each gets the words after its name and returns the exit status (see
// launch/arguments.h); with --help it prints what it does, with an example.
int InspectMain(int argc, char** argv);
int PrepareMain(int argc, char** argv);
int TrainMain(int argc, char** argv);
int EvalMain(int argc, char** argv);
int ConvertMain(int argc, char** argv);
int CompareMain(int argc, char** argv);

}  // namespace fathom
