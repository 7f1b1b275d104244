#pragma once

namespace fathom {

// In which order a pipeline's stages run their micro-batches.
enum class PipelineSchedule {
  kGPipe,        // all forwards, then all backwards (Huang et al., 2018)
  k1F1B,         // one forward, one backward, after a warm-up (Narayanan et al., 2019)
  kInterleaved,  // 1F1B over several chunks of layers per stage (Narayanan et al., 2021)
};

}  // namespace fathom
