#pragma once

#include <cstdint>
#include <vector>

// Which rank orthogonalises what. Pure arithmetic that every rank computes for itself, with the
// same result.
namespace fathom {

// Multiply-adds, in FLOPs, of `steps` Newton-Schulz iterations on a matrix of rows x cols: with m
// the smaller and n the larger dim, each takes 2 m m n for X X^T, 2 m m m for its square and 2 m m
// n for the product with X.
double NewtonSchulzFlops(int64_t rows, int64_t cols, int64_t steps);

// The owner of each item, with costs balanced: the most expensive item first, each to the rank that
// has the least so far. Ties go to the earlier item and to the lower rank. (Graham, "Bounds on
// multiprocessing timing anomalies", 1969: at most 4/3 - 1/(3 ranks) of the best.)
std::vector<int> AssignOwners(const std::vector<double>& costs, int ranks);

}  // namespace fathom
