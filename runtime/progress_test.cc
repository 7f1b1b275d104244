#include "runtime/progress.h"

#include <gtest/gtest.h>

#include <memory>

namespace fathom {
namespace {

ProgressState State(int64_t step) {
  return {.step = step,
          .steps = 100,
          .loss = 3.14159,
          .validation_loss = 3.5,
          .gradient_norm = 0.75,
          .learning_rate = 3.2e-3,
          .tokens_per_second = 12345,
          .utilisation = 0.415,
          .routed_share = 0.0625,
          .seconds_left = 3723};
}

constexpr char kFull[] =
    "step 7/100  loss 3.1416  val 3.5000  norm 0.75  lr 3.20e-03  12.3k tok/s  util 41.5%  "
    "routed 6.2%  1:02:03 left";

// A stream whose text can be read back.
class Output {
 public:
  Output() : file_(open_memstream(&text_, &size_)) {}
  ~Output() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return std::string(text_, size_);
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

TEST(FormatProgressTest, ShowsAllThatFits) {
  EXPECT_EQ(FormatProgress(State(7), 200), kFull);
  EXPECT_EQ(FormatProgress({.step = 1, .steps = 2, .loss = 5, .tokens_per_second = 321}, 200),
            "step 1/2  loss 5.0000  norm 0  lr 0.00e+00  321 tok/s");
}

TEST(FormatProgressTest, DropsWhatMattersLeastFirst) {
  const int64_t full = std::string(kFull).size();
  EXPECT_EQ(FormatProgress(State(7), full), kFull);
  EXPECT_EQ(FormatProgress(State(7), full - 1).find("routed"), std::string::npos);
  EXPECT_EQ(FormatProgress(State(7), 40), "step 7/100  loss 3.1416  1:02:03 left");
  EXPECT_EQ(FormatProgress(State(7), 12), "step 7/100");
  for (int64_t width = 0; width <= full; ++width) {
    EXPECT_LE(FormatProgress(State(7), width).size(), width);
  }
}

TEST(FormatDurationTest, KnownAnswers) {
  EXPECT_EQ(FormatDuration(0), "0:00");
  EXPECT_EQ(FormatDuration(59.6), "1:00");
  EXPECT_EQ(FormatDuration(3599), "59:59");
  EXPECT_EQ(FormatDuration(360000), "100:00:00");
  EXPECT_EQ(FormatDuration(-1), "?");
  EXPECT_EQ(FormatDuration(0.0 / 0.0), "?");
}

TEST(ProgressTest, PlainLinesAreFirstLastAndFewBetween) {
  Output output;
  Progress progress(output.file(), /*terminal=*/false);
  const double times[] = {10, 10.5, 11.9, 12.0, 13.9, 14.1, 14.2};
  for (int i = 0; i < 7; ++i) progress.Update({.step = i + 1, .steps = 7}, times[i]);
  progress.Finish();
  std::string steps;
  std::string text = output.text();
  for (size_t at = text.find("step "); at != std::string::npos; at = text.find("step ", at + 1)) {
    steps += text[at + 5];
  }
  EXPECT_EQ(steps, "1467");
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

TEST(ProgressTest, FinishShowsAStepThatWasLeftOut) {
  Output output;
  Progress progress(output.file(), /*terminal=*/false);
  progress.Update({.step = 1, .steps = 9}, 0);
  progress.Update({.step = 2, .steps = 9}, 0.1);
  EXPECT_EQ(output.text().find("step 2/9"), std::string::npos);
  progress.Finish();
  EXPECT_NE(output.text().find("step 2/9"), std::string::npos);
}

TEST(ProgressTest, TerminalRedrawsOneLine) {
  Output output;
  {
    Progress progress(output.file(), /*terminal=*/true, 12);
    progress.Update(State(1), 0);
    progress.Update(State(2), 0.01);  // too soon
    progress.Update(State(3), 1);
    progress.Print("validation at step 3: 2.5");
    progress.Update(State(4), 2);
    progress.Finish();
  }
  EXPECT_EQ(output.text(),
            "\r\033[Kstep 1/100"
            "\r\033[Kstep 3/100"
            "\r\033[Kvalidation at step 3: 2.5\n"
            "\r\033[Kstep 4/100\n");
}

}  // namespace
}  // namespace fathom
