#include "parallel/communication_log.h"

namespace fathom {

CommunicationLog::Ticket CommunicationLog::Add(Record record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record.order = static_cast<int64_t>(records_.size());
  record.issued = Clock::now();
  records_.push_back(std::move(record));
  return {generation_, records_.back().order};
}

void CommunicationLog::Finish(const Ticket& ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket.generation != generation_) return;
  Record& record = records_[ticket.order];
  record.finished = Clock::now();
  record.done = true;
}

void CommunicationLog::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++generation_;
  records_.clear();
}

std::vector<CommunicationLog::Record> CommunicationLog::records() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return records_;
}

std::map<std::pair<std::string, std::string>, CommunicationLog::Total> CommunicationLog::totals()
    const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::pair<std::string, std::string>, Total> totals;
  for (const Record& record : records_) {
    Total& total = totals[{record.group, std::string(Name(record.collective))}];
    ++total.calls;
    total.bytes += record.bytes;
  }
  return totals;
}

}  // namespace fathom
