#include <dnnl.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/gemm.h"

// Products of bfloat16: oneDNN's where the processor has instructions for them, products of widened
// blocks elsewhere.
namespace fathom::cpu {
namespace {

bool HasBFloat16Products() {
  static const bool has = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
                          dnnl_cpu_isa_avx512_core_bf16;
  return has;
}

void Check(dnnl_status_t status, const char* what) {
  FATHOM_CHECK(status == dnnl_success) << "oneDNN's " << what << " failed with status " << status;
}

// A matrix product of one shape with its operands' descriptions. Made and run by one thread.
class Product {
 public:
  template <class C>
  explicit Product(const GemmArguments<BFloat16, C>& g) {
    UseCallingThreadOnly();
    Describe(&a_, g.m, g.k, g.transpose_a, g.lda, dnnl_bf16);
    Describe(&b_, g.k, g.n, g.transpose_b, g.ldb, dnnl_bf16);
    Describe(&c_, g.m, g.n, false, g.ldc, DTypeOf<C> == DType::kFloat32 ? dnnl_f32 : dnnl_bf16);
    dnnl_primitive_attr_t attributes;
    Check(dnnl_primitive_attr_create(&attributes), "attributes");
    const float alpha = g.alpha;
    if (alpha != 1) {
      Check(dnnl_primitive_attr_set_output_scales(attributes, 1, 0, &alpha), "output scale");
    }
    if (g.beta != 0) {
      dnnl_post_ops_t sum;
      Check(dnnl_post_ops_create(&sum), "post-ops");
      Check(dnnl_post_ops_append_sum(sum, g.beta), "sum");
      Check(dnnl_primitive_attr_set_post_ops(attributes, sum), "post-ops");
      dnnl_post_ops_destroy(sum);
    }
    dnnl_matmul_desc_t description;
    Check(dnnl_matmul_desc_init(&description, &a_, &b_, nullptr, &c_), "matmul description");
    dnnl_primitive_desc_t primitive_description;
    Check(dnnl_primitive_desc_create(&primitive_description, &description, attributes, Engine(),
                                     nullptr),
          "matmul");
    Check(dnnl_primitive_create(&primitive_, primitive_description), "matmul");
    dnnl_primitive_desc_destroy(primitive_description);
    dnnl_primitive_attr_destroy(attributes);
    const dnnl_memory_desc_t* descriptions[] = {&a_, &b_, &c_};
    for (int i = 0; i < 3; ++i) {
      Check(dnnl_memory_create(&memories_[i], descriptions[i], Engine(), DNNL_MEMORY_NONE),
            "memory");
    }
    Check(dnnl_stream_create(&stream_, Engine(), dnnl_stream_default_flags), "stream");
  }
  ~Product() {
    for (dnnl_memory_t memory : memories_) dnnl_memory_destroy(memory);
    dnnl_stream_destroy(stream_);
    dnnl_primitive_destroy(primitive_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void Run(const void* a, const void* b, void* c) {
    const void* pointers[] = {a, b, c};
    for (int i = 0; i < 3; ++i) {
      Check(dnnl_memory_set_data_handle(memories_[i], const_cast<void*>(pointers[i])), "memory");
    }
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, memories_[0]},
                                         {DNNL_ARG_WEIGHTS, memories_[1]},
                                         {DNNL_ARG_DST, memories_[2]}};
    Check(dnnl_primitive_execute(primitive_, stream_, 3, arguments), "matmul");
  }

 private:
  static dnnl_engine_t Engine() {
    static const dnnl_engine_t engine = [] {
      dnnl_engine_t made;
      Check(dnnl_engine_create(&made, dnnl_cpu, 0), "engine");
      return made;
    }();
    return engine;
  }

  static void Describe(dnnl_memory_desc_t* description, int64_t rows, int64_t columns,
                       bool transposed, int64_t stride, dnnl_data_type_t type) {
    const dnnl_dims_t dims = {rows, columns};
    const dnnl_dims_t strides = {transposed ? 1 : stride, transposed ? stride : 1};
    Check(dnnl_memory_desc_init_by_strides(description, 2, dims, type, strides), "description");
  }

  dnnl_memory_desc_t a_, b_, c_;
  dnnl_primitive_t primitive_ = nullptr;
  dnnl_memory_t memories_[3] = {};
  dnnl_stream_t stream_ = nullptr;
};

// What a Product is made for: sizes, strides, forms, factors.
struct ProductKey {
  std::array<int64_t, 9> integers;
  std::array<float, 2> factors;
  auto operator<=>(const ProductKey&) const = default;
};

// Making a product takes longer than running a small one, so each thread keeps those that it met.
template <class C>
Product& ProductFor(const GemmArguments<BFloat16, C>& g) {
  constexpr size_t kMaximum = 512;
  thread_local std::map<ProductKey, std::unique_ptr<Product>> products;
  const ProductKey key{{g.m, g.n, g.k, g.lda, g.ldb, g.ldc, g.transpose_a, g.transpose_b,
                        static_cast<int64_t>(sizeof(C))},
                       {g.alpha, g.beta}};
  auto found = products.find(key);
  if (found == products.end()) {
    if (products.size() >= kMaximum) products.clear();
    found = products.emplace(key, std::make_unique<Product>(g)).first;
  }
  return *found->second;
}

void Widen(const BFloat16* x, int64_t stride, int64_t rows, int64_t columns, float* wide) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      wide[i * columns + j] = static_cast<float>(x[i * stride + j]);
    }
  }
}

// wide = the transpose of x: with b as it is used, oneDNN's choice of kernels does not depend on m.
void WidenTransposed(const BFloat16* x, int64_t stride, int64_t rows, int64_t columns,
                     float* wide) {
  constexpr int64_t kColumns = 16;  // a cache line of `wide` rows at a time
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t end = std::min(columns, begin + kColumns);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = begin; j < end; ++j) {
        wide[j * rows + i] = static_cast<float>(x[i * stride + j]);
      }
    }
  }
}

constexpr int64_t kBlockRows = GemmRule<float>::kMaximumRows;
constexpr int64_t kBlockColumns = 256;
constexpr int64_t kBlockTerms = 1024;

// One block of c, m <= kBlockRows and n <= kBlockColumns; `scratch` is room for all three blocks.
template <class C>
void WidenedBlock(const GemmArguments<BFloat16, C>& g, float* scratch) {
  // Rows are filled up with zeros, so that the bits of a row do not depend on their number.
  const int64_t m = g.transpose_a ? g.m : GemmRule<float>::Rows(g.m);
  float* a = scratch;
  float* b = a + kBlockRows * kBlockTerms;
  float* sums = b + kBlockColumns * kBlockTerms;
  for (int64_t begin = 0; begin < g.k; begin += kBlockTerms) {
    const int64_t k = std::min(kBlockTerms, g.k - begin);
    if (g.transpose_a) {
      Widen(g.a + begin * g.lda, g.lda, k, m, a);
    } else {
      Widen(g.a + begin, g.lda, g.m, k, a);
      std::fill_n(a + g.m * k, (m - g.m) * k, 0.0f);
    }
    if (g.transpose_b) {
      WidenTransposed(g.b + begin, g.ldb, g.n, k, b);
    } else {
      Widen(g.b + begin * g.ldb, g.ldb, k, g.n, b);
    }
    Gemm(GemmArguments<float>{.transpose_a = g.transpose_a,
                              .m = m,
                              .n = g.n,
                              .k = k,
                              .alpha = g.alpha,
                              .a = a,
                              .lda = g.transpose_a ? m : k,
                              .b = b,
                              .ldb = g.n,
                              .beta = begin > 0 ? 1.0f : 0.0f,
                              .c = sums,
                              .ldc = g.n});
  }
  for (int64_t i = 0; i < g.m; ++i) {
    C* c = g.c + i * g.ldc;
    const float* sum = sums + i * g.n;
    for (int64_t j = 0; j < g.n; ++j) {
      const float old = g.beta == 0 ? 0.0f : g.beta * static_cast<float>(c[j]);
      c[j] = static_cast<C>(old + sum[j]);
    }
  }
}

template <class C>
void WidenedGemm(const GemmArguments<BFloat16, C>& g) {
  thread_local std::vector<float> scratch;
  scratch.resize((kBlockRows + kBlockColumns) * kBlockTerms + kBlockRows * kBlockColumns);
  for (int64_t i = 0; i < g.m; i += kBlockRows) {
    for (int64_t j = 0; j < g.n; j += kBlockColumns) {
      GemmArguments<BFloat16, C> block = g;
      block.m = std::min(kBlockRows, g.m - i);
      block.n = std::min(kBlockColumns, g.n - j);
      block.a += g.transpose_a ? i : i * g.lda;
      block.b += g.transpose_b ? j * g.ldb : j;
      block.c += i * g.ldc + j;
      WidenedBlock(block, scratch.data());
    }
  }
}

template <class C>
void ScaleOnly(const GemmArguments<BFloat16, C>& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    C* row = g.c + i * g.ldc;
    for (int64_t j = 0; j < g.n; ++j) {
      row[j] = static_cast<C>(g.beta == 0 ? 0.0f : g.beta * static_cast<float>(row[j]));
    }
  }
}

template <class C>
void AnyGemm(const GemmArguments<BFloat16, C>& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) return ScaleOnly(g);
  if (HasBFloat16Products()) {
    ProductFor(g).Run(g.a, g.b, g.c);
  } else {
    WidenedGemm(g);
  }
}

}  // namespace

void Gemm(const GemmArguments<BFloat16, float>& arguments) { AnyGemm(arguments); }
void Gemm(const GemmArguments<BFloat16, BFloat16>& arguments) { AnyGemm(arguments); }

int64_t GemmRule<BFloat16>::Rows(int64_t m) {
  if (!HasBFloat16Products()) return m;  // the widened blocks are filled up themselves
  return (m + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

}  // namespace fathom::cpu
