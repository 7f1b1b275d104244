#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "core/cpu_device.h"
#include "core/random.h"
#include "kernels/launch.h"

// What the tests of operations share.
namespace fathom::testing {

// A CPU with its stream.
struct Cpu {
  explicit Cpu(int threads = 2) : device(threads), stream(device.NewStream()) {}
  template <class Operation>
  void operator()(const Operation& operation) {
    Launch(*stream, operation);
  }
  CpuDevice device;
  std::unique_ptr<Stream> stream;
};

template <class T>
Tensor View(std::vector<T>& elements) {
  return Tensor(elements.data(), DTypeOf<T>, {static_cast<int64_t>(elements.size())});
}

// A matrix with room between its rows, all NaN at first, so that whatever is read or written
// without need shows.
template <class T>
struct Matrix {
  Matrix(int64_t rows, int64_t columns, int64_t padding = 3)
      : rows(rows),
        columns(columns),
        stride(columns + padding),
        data(rows * stride + 1, static_cast<T>(std::nan(""))) {}

  // Standard normal values times `size`, a function of the seed.
  static Matrix Random(uint64_t seed, int64_t rows, int64_t columns, int64_t padding = 3,
                       double size = 1) {
    Matrix matrix(rows, columns, padding);
    matrix.Randomize(seed, rows, size);
    return matrix;
  }
  void Randomize(uint64_t seed, int64_t first_rows, double size = 1) {
    for (int64_t i = 0; i < first_rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        (*this)(i, j) = static_cast<T>(size * NormalAt(seed, 0, i * columns + j));
      }
    }
  }

  T& operator()(int64_t i, int64_t j) { return data[i * stride + j]; }
  const T& operator()(int64_t i, int64_t j) const { return data[i * stride + j]; }
  Tensor tensor() { return Tensor(data.data(), DTypeOf<T>, {rows, stride}).Columns(0, columns); }
  // One row as a vector.
  Tensor vector() { return Tensor(data.data(), DTypeOf<T>, {columns}); }

  // Whether everything but the first `used_rows` rows is still NaN.
  bool UntouchedBeyond(int64_t used_rows) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < stride; ++j) {
        if ((i >= used_rows || j >= columns) &&
            !std::isnan(static_cast<double>(data[i * stride + j])))
          return false;
      }
    }
    return true;
  }

  int64_t rows, columns, stride;
  std::vector<T> data;
};

// Rounding of a few hundred operations; in bfloat16 that of the result.
template <class T>
constexpr double kTolerance = std::is_same_v<T, double>     ? 1e-12
                              : std::is_same_v<T, BFloat16> ? 1.0 / 256
                                                            : 1e-5;

// The largest |a - b| of the first rows, relative to the largest |b|; infinite for a NaN in a.
template <class A, class B>
double Difference(const Matrix<A>& a, const Matrix<B>& b, int64_t first_rows = -1) {
  double difference = 0;
  double largest = 0;
  for (int64_t i = 0; i < (first_rows < 0 ? b.rows : first_rows); ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      const double distance = std::abs(static_cast<double>(a(i, j)) - static_cast<double>(b(i, j)));
      if (std::isnan(distance)) return std::numeric_limits<double>::infinity();
      difference = std::max(difference, distance);
      largest = std::max(largest, std::abs(static_cast<double>(b(i, j))));
    }
  }
  return difference == 0 ? 0 : difference / largest;
}

template <class T>
bool SameBits(const T* a, const T* b, int64_t n) {
  return std::memcmp(a, b, n * sizeof(T)) == 0;
}

// The largest difference between `gradient` and the central differences of loss() over the
// elements of x, relative to the largest of either.
template <class Loss>
double GradientError(Matrix<double>& x, const Matrix<double>& gradient, const Loss& loss) {
  Matrix<double> numeric(x.rows, x.columns);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.columns; ++j) {
      constexpr double kStep = 1e-5;
      const double value = x(i, j);
      x(i, j) = value + kStep;
      const double above = loss();
      x(i, j) = value - kStep;
      const double below = loss();
      x(i, j) = value;
      numeric(i, j) = (above - below) / (2 * kStep);
    }
  }
  return Difference(gradient, numeric);
}

// sum_ij a_ij b_ij: a scalar loss whose gradient by a is b.
template <class T>
double InnerProduct(const Matrix<T>& a, const Matrix<T>& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) sum += a(i, j) * b(i, j);
  }
  return sum;
}

}  // namespace fathom::testing
