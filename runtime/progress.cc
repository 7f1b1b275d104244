#include "runtime/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace fathom {
namespace {

// A redrawn line need not change faster than an eye reads; a plain one goes into a log.
constexpr double kTerminalInterval = 0.1;
constexpr double kPlainInterval = 2.0;
constexpr char kClearLine[] = "\r\033[K";

std::string Rate(double tokens_per_second) {
  if (tokens_per_second >= 1e6) return absl::StrFormat("%.2fM tok/s", tokens_per_second / 1e6);
  if (tokens_per_second >= 1e4) return absl::StrFormat("%.1fk tok/s", tokens_per_second / 1e3);
  return absl::StrFormat("%.0f tok/s", tokens_per_second);
}

}  // namespace

std::string FormatDuration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const int64_t total = std::llround(seconds);
  if (total >= 3600) {
    return absl::StrFormat("%d:%02d:%02d", total / 3600, total / 60 % 60, total % 60);
  }
  return absl::StrFormat("%d:%02d", total / 60, total % 60);
}

std::string FormatProgress(const ProgressState& state, int64_t width) {
  // In the order shown; the highest number is dropped first.
  std::vector<std::pair<int, std::string>> parts;
  parts.emplace_back(0, absl::StrFormat("step %d/%d", state.step, state.steps));
  parts.emplace_back(1, absl::StrFormat("loss %.4f", state.loss));
  if (state.validation_loss)
    parts.emplace_back(4, absl::StrFormat("val %.4f", *state.validation_loss));
  parts.emplace_back(6, absl::StrFormat("norm %.3g", state.gradient_norm));
  parts.emplace_back(7, absl::StrFormat("lr %.2e", state.learning_rate));
  parts.emplace_back(3, Rate(state.tokens_per_second));
  if (state.utilisation) {
    parts.emplace_back(5, absl::StrFormat("util %.1f%%", 100 * *state.utilisation));
  }
  if (state.routed_share) {
    parts.emplace_back(8, absl::StrFormat("routed %.1f%%", 100 * *state.routed_share));
  }
  if (state.seconds_left) parts.emplace_back(2, FormatDuration(*state.seconds_left) + " left");

  const auto join = [&parts] {
    std::string line;
    for (const auto& [unused, text] : parts) {
      if (!line.empty()) line += "  ";
      line += text;
    }
    return line;
  };
  std::string line = join();
  while (static_cast<int64_t>(line.size()) > width && parts.size() > 1) {
    parts.erase(std::max_element(parts.begin(), parts.end()));
    line = join();
  }
  if (static_cast<int64_t>(line.size()) > width) line.resize(std::max<int64_t>(0, width));
  return line;
}

Progress::Progress(std::FILE* out, bool terminal, int64_t width)
    : out_(out), terminal_(terminal), width_(width) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', out_);
}

int64_t Progress::Width() const {
  if (!terminal_) return 1000;
  if (width_ > 0) return width_;
  winsize size = {};
  if (::ioctl(::fileno(out_), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col - 1;  // a full line would wrap on some terminals
}

void Progress::Show(const ProgressState& state, double now) {
  const std::string line = FormatProgress(state, Width());
  if (terminal_) {
    std::fprintf(out_, "%s%s", kClearLine, line.c_str());
    line_open_ = true;
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
  last_shown_ = now;
  left_out_.reset();
}

void Progress::Update(const ProgressState& state, double now) {
  const double interval = terminal_ ? kTerminalInterval : kPlainInterval;
  if (!last_shown_ || now - *last_shown_ >= interval || state.step >= state.steps) {
    Show(state, now);
  } else {
    left_out_ = state;
  }
}

void Progress::Print(const std::string& line) {
  if (std::exchange(line_open_, false)) std::fputs(kClearLine, out_);
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void Progress::Finish() {
  if (left_out_) Show(ProgressState(*left_out_), *last_shown_);
  if (std::exchange(line_open_, false)) std::fputc('\n', out_);
  std::fflush(out_);
}

}  // namespace fathom
