#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace fathom {

// Stands for rank `rank` of `size` without any other rank: operations touch no data, are recorded
// and are done at once. It sizes the memory of a layout and counts its traffic with the very code
// that trains, on a dry device. Split cannot know the other ranks' colors, so a group of any mesh
// axis is made with this function, too.
std::unique_ptr<Communicator> NewDryCommunicator(int rank, int size, const std::string& name);

}  // namespace fathom
