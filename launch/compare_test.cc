#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

struct Result {
  int status;
  std::string output;
};

Result Compare(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  const int status = CompareMain(argv.size(), argv.data());
  return {status, ::testing::internal::GetCapturedStdout()};
}

class CompareMainTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::vector<float>& values) {
    const std::vector<NamedArray> arrays = {{.name = "lm_head.weight",
                                             .dtype = DType::kFloat32,
                                             .shape = {static_cast<int64_t>(values.size())},
                                             .data = values.data()}};
    const std::string path = JoinPath(directory_, name);
    EXPECT_TRUE(WriteSafetensorsFile(PosixFileSystem(), path, arrays, {}).ok());
    return path;
  }
  std::string directory_ = NewTestDirectory();
};

TEST_F(CompareMainTest, EqualFilesAreOneLine) {
  const Result result = Compare({Write("a", {1, 2}), Write("b", {1, 2})});
  EXPECT_EQ(result.status, kDone);
  EXPECT_EQ(result.output, "equal: 1 tensors\n");
}

TEST_F(CompareMainTest, ADifferenceIsNamedAndFails) {
  const std::string a = Write("a", {1, 2}), b = Write("b", {1, 2.5});
  const Result strict = Compare({a, b});
  EXPECT_EQ(strict.status, kRunFailed);
  EXPECT_EQ(strict.output,
            "beyond lm_head.weight: at [1] 2 and 2.5, relative difference 0.2, L2 ratio 0.186, 1 "
            "of 2 elements differ\n"
            "different: 1 differ, 1 of them beyond the tolerance 0 (compared: 1 tensors)\n");
  const Result loose = Compare({a, b, "--rtol", "0.2"});
  EXPECT_EQ(loose.status, kDone);
  EXPECT_EQ(loose.output.substr(0, 22), "within lm_head.weight:");
  EXPECT_EQ(Compare({a, b, "--rtol", "0.19"}).status, kRunFailed);
}

TEST_F(CompareMainTest, BadInputHasAnotherStatus) {
  const std::string a = Write("a", {1, 2}), torn = JoinPath(directory_, "torn");
  WriteTestFile(torn, "x");
  EXPECT_EQ(Compare({a}).status, kRefused);
  EXPECT_EQ(Compare({a, a, a}).status, kRefused);
  EXPECT_EQ(Compare({a, JoinPath(directory_, "missing")}).status, kRefused);
  EXPECT_EQ(Compare({a, torn}).status, kRefused);
  EXPECT_EQ(Compare({a, a, "--rtol", "x"}).status, kRefused);
  EXPECT_EQ(Compare({a, a, "--rtol", "-1"}).status, kRefused);
  EXPECT_EQ(Compare({a, a, "--rtol", "nan"}).status, kRefused);
  EXPECT_EQ(Compare({a, a, "--unknown"}).status, kRefused);
  EXPECT_EQ(Compare({"--help"}).status, kDone);
}

}  // namespace
}  // namespace fathom
