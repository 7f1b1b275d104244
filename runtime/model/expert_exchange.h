#pragma once

#include <cstdint>
#include <vector>

#include "parallel/expert/expert_group.h"
#include "runtime/model/pass.h"

namespace fathom {

// How rows travel to the ranks of their experts and back. Counts are known to the host, which
// sizes what is received by them.
struct ExpertExchange {
  int64_t sent = 0;      // rows that this rank sends, by expert
  int64_t received = 0;  // rows that this rank's experts get, from all ranks
  std::vector<int64_t> send_rows, receive_rows;  // to and from each rank
  std::vector<int64_t> expert_rows;              // of each of this rank's experts
  // What arrives lies source by source. [received] int32, absent on one rank: where row p of the
  // order by expert, and within an expert by source, lies in what arrives, and the inverse.
  Tensor to_expert_major, to_source_major;
};

// `counts` [E] int32: rows that this rank has for each expert, `expected` in all where every row is
// in use. Exchanges the counts and waits for them. On a dry device every expert gets the same.
ExpertExchange PlanExchange(Pass& pass, ExpertGroup& group, const Tensor& counts, int64_t expected);

// Rows on their way.
class ExpertTransfer {
 public:
  // From the order by expert on the rows' own ranks to that on the experts' ranks: x [sent, d]
  // becomes y [received, d]; or back when `home`, y's rows being those that were sent. On one rank
  // y is x itself, and nothing runs. Scratch stays in the arena until its scope ends.
  ExpertTransfer(Pass& pass, ExpertGroup& group, const ExpertExchange& exchange, bool home,
                 const Tensor& x, const Tensor& y);
  // y is there for what is launched next. Once.
  void Finish();

 private:
  Pass& pass_;
  ExpertGroup& group_;
  const ExpertExchange& exchange_;
  bool home_;
  Tensor arrived_;  // source by source
  Tensor y_;
  Completion completion_;
};

}  // namespace fathom
