#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace fathom {

// What the live line shows.
struct ProgressState {
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;
  std::optional<double> validation_loss = std::nullopt;  // the last one
  double gradient_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  std::optional<double> utilisation = std::nullopt;  // share of the device's peak, 0 to 1
  // Share of the tokens that sparse layers process, 0 to 1.
  std::optional<double> routed_share = std::nullopt;
  std::optional<double> seconds_left = std::nullopt;
};

// "step 12/300  loss 3.1416  ...", at most `width` columns: what matters least goes first.
std::string FormatProgress(const ProgressState& state, int64_t width);

// "1:02:03", or "2:03" below an hour.
std::string FormatDuration(double seconds);

// Shows how training goes: on a terminal as one line that is redrawn, elsewhere as plain lines, the
// first, the last, and at most one in two seconds between. Used by one thread.
class Progress {
 public:
  // Writes to `out`, which must outlive it. `width`: columns of the terminal; 0 asks it at each
  // line. Without a terminal lines are not shortened.
  Progress(std::FILE* out, bool terminal, int64_t width = 0);
  ~Progress();  // ends a redrawn line

  // After each step. `now`: seconds of any clock that does not go back.
  void Update(const ProgressState& state, double now);
  // Prints a line of its own above the live line: validation results, checkpoints, warnings.
  void Print(const std::string& line);
  // After the last step: shows what Update left out, and ends the live line.
  void Finish();

 private:
  int64_t Width() const;
  void Show(const ProgressState& state, double now);

  std::FILE* out_;
  bool terminal_;
  int64_t width_;
  std::optional<double> last_shown_;       // time
  std::optional<ProgressState> left_out_;  // the last state, when it has not been shown
  bool line_open_ = false;                 // the cursor stands behind a live line
};

}  // namespace fathom
