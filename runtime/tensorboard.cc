#include "runtime/tensorboard.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "proto/tensorboard_event.pb.h"

namespace fathom {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr char kFileVersion[] = "brain.Event:2";

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}();

// The format's guard against checksums of checksums.
uint32_t Mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

template <class T>
std::string LittleEndian(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The time in the name of a file that sorts behind all event files of the directory.
absl::StatusOr<int64_t> NextTime(FileSystem& files, const std::string& directory, double now) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  int64_t time = static_cast<int64_t>(now);
  for (const std::string& name : names) {
    if (name.rfind(kPrefix, 0) != 0) continue;
    const int64_t other = std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10);
    time = std::max(time, other + 1);
  }
  return time;
}

absl::Status Append(WritableFile& file, const proto::TensorBoardEvent& event) {
  return file.Append(TfRecord(event.SerializeAsString()));
}

}  // namespace

uint32_t Crc32c(std::string_view data) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

std::string TfRecord(std::string_view data) {
  const std::string length = LittleEndian<uint64_t>(data.size());
  return length + LittleEndian(Mask(Crc32c(length))) + std::string(data) +
         LittleEndian(Mask(Crc32c(data)));
}

absl::StatusOr<std::unique_ptr<EventWriter>> EventWriter::Create(FileSystem& files,
                                                                 const std::string& directory,
                                                                 int64_t step, double now) {
  FATHOM_ASSIGN_OR_RETURN(const int64_t time, NextTime(files, directory, now));
  const std::string name = absl::StrFormat("%s%010d.fathom", std::string(kPrefix), time);
  FATHOM_ASSIGN_OR_RETURN(auto file, files.OpenForWrite(JoinPath(directory, name)));
  proto::TensorBoardEvent event;
  event.set_wall_time(now);
  event.set_file_version(kFileVersion);
  FATHOM_RETURN_IF_ERROR(Append(*file, event));
  if (step > 0) {
    event.set_step(step + 1);
    event.mutable_session_log()->set_status(proto::TensorBoardSessionLog::START);
    FATHOM_RETURN_IF_ERROR(Append(*file, event));
  }
  return std::unique_ptr<EventWriter>(new EventWriter(std::move(file)));
}

absl::Status EventWriter::Write(const TrainRecord& record, double now) {
  Values values = {{"train/consumed_sequences", static_cast<double>(record.consumed_sequences)},
                   {"train/loss", record.loss},
                   {"train/auxiliary_loss", record.auxiliary_loss},
                   {"train/gradient_norm", record.gradient_norm},
                   {"train/learning_rate", record.learning_rate},
                   {"train/tokens_per_second", record.tokens_per_second},
                   {"train/seconds", record.seconds}};
  if (record.experts.has_value()) {
    values.push_back({"train/expert_violation", record.experts->violation});
    values.push_back({"train/expert_entropy", record.experts->entropy});
  }
  return WriteValues(record.step, now, values);
}

absl::Status EventWriter::Write(const ValidationRecord& record, double now) {
  return WriteValues(
      record.step, now,
      {{"validation/consumed_sequences", static_cast<double>(record.consumed_sequences)},
       {"validation/loss_topk", record.loss_topk},
       {"validation/loss_causal", record.loss_causal},
       {"validation/seconds", record.seconds}});
}

absl::Status EventWriter::WriteValues(int64_t step, double now, const Values& values) {
  proto::TensorBoardEvent event;
  event.set_wall_time(now);
  event.set_step(step);
  for (const auto& [tag, number] : values) {
    proto::TensorBoardSummary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(number));
  }
  return Append(*file_, event);
}

}  // namespace fathom
