#include "parallel/local_communicator.h"

#include <cstdlib>
#include <iostream>

#include "core/check.h"

namespace fathom {
namespace {

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(const std::string& name, const CommunicatorOptions& options)
      : Communicator(0, 1, name, options) {}

  void Abort(const absl::Status& cause) override {
    std::cerr << rank_label() << ": " << cause << std::endl;
    std::_Exit(1);
  }

 protected:
  void Start(CollectiveRequest, std::shared_ptr<PendingOperation>) override {
    FATHOM_CHECK(false) << "groups of one run without a backend";
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(int color, int,
                                                          const std::string& name) override {
    std::unique_ptr<Communicator> group;
    if (color >= 0) group = std::make_unique<LocalCommunicator>(name, options());
    return group;
  }
};

}  // namespace

std::unique_ptr<Communicator> NewLocalCommunicator(const CommunicatorOptions& options) {
  return std::make_unique<LocalCommunicator>("world", options);
}

}  // namespace fathom
