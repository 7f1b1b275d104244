#include "runtime/step_timeline.h"

#include "absl/strings/str_format.h"
#include "core/status.h"

namespace fathom {

StepTimeline::StepTimeline(const Job& job, FileSystem& files,
                           std::function<void(const std::string&)> log, RankGroups& groups,
                           Stream& stream)
    : job_(job), files_(files), log_(std::move(log)), groups_(groups), stream_(stream) {}

void StepTimeline::BeginStep(int64_t step) {
  if (step != job_.debug.timeline_step) return;
  timeline_ = std::make_unique<Timeline>();
  communication_ = std::make_shared<CommunicationLog>();
  groups_.set_log(communication_);
  stream_.RecordOn(timeline_.get(), timeline_->Track(groups_.rank(), "step"));
}

absl::Status StepTimeline::EndStep(int64_t step) {
  if (timeline_ == nullptr) return absl::OkStatus();
  stream_.RecordOn(nullptr, 0);
  groups_.set_log(nullptr);
  for (const CommunicationLog::Record& record : communication_->records()) {
    const int track = timeline_->Track(groups_.rank(), absl::StrCat("group ", record.group));
    const std::string name(Name(record.collective));
    if (record.done) {
      timeline_->AddSpan(track, name, record.issued, record.finished, record.bytes);
    } else {
      timeline_->AddMark(track, name + " (still under way)", record.issued);
    }
  }
  const std::string path = JoinPath(
      job_.train.output, absl::StrFormat("timeline_%08d_rank_%04d.json", step, groups_.rank()));
  FATHOM_RETURN_IF_ERROR(timeline_->Write(files_, path));
  timeline_.reset();
  log_(absl::StrCat("step ", step, " is drawn in ", path,
                    groups_.mesh().world() > 1 ? ", and one such file of each other rank" : "",
                    ": ui.perfetto.dev opens it"));
  return absl::OkStatus();
}

}  // namespace fathom
