#include "parallel/dry_communicator.h"

#include <cstdlib>
#include <iostream>

namespace fathom {
namespace {

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(int rank, int size, const std::string& name)
      : Communicator(rank, size, name, {}) {}

  void Abort(const absl::Status& cause) override {
    std::cerr << rank_label() << ": " << cause << std::endl;
    std::_Exit(1);
  }

 protected:
  void Start(CollectiveRequest, std::shared_ptr<PendingOperation> pending) override {
    pending->Finish(absl::OkStatus());
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(int, int,
                                                          const std::string& name) override {
    return absl::UnimplementedError("group " + name +
                                    " cannot be split from a dry communicator, which does not know "
                                    "the other ranks; make it with NewDryCommunicator");
  }
};

}  // namespace

std::unique_ptr<Communicator> NewDryCommunicator(int rank, int size, const std::string& name) {
  return std::make_unique<DryCommunicator>(rank, size, name);
}

}  // namespace fathom
