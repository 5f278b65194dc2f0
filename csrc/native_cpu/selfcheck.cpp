// Checks every instruction set of this processor on random problems against a plain FP64
// evaluation, without Python: for sanitizers, emulators and machines that have only a C++ compiler.
//
//   selfcheck [problems] [seed]      exits with 1 and a description at the first wrong result
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gemm.h"
#include "parallel.h"
#include "select.h"

namespace mxgemm {
namespace {

constexpr double kValue[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

std::mt19937_64 random_bits;
int below(int limit) { return static_cast<int>(random_bits() % static_cast<uint64_t>(limit)); }

struct Operand {
  int64_t rows, blocks, codes_stride, scales_stride;
  std::vector<uint8_t> codes, scales;

  Matrix view() const { return {codes.data(), scales.data(), codes_stride, scales_stride}; }
  double scale(int64_t r, int64_t b) const {
    const int byte = scales[r * scales_stride + b];
    return byte == kScaleNaN ? NAN : std::ldexp(1.0, byte - kScaleOne);
  }
  double code(int64_t r, int64_t k) const {
    const uint8_t byte = codes[r * codes_stride + k / 2];
    return kValue[k % 2 ? byte >> 4 : byte & 15];
  }
};

enum class Scales { kRegular, kSpread, kShifted, kAny };

// Codes up to a magnitude and scales of which sums stay exact where `kind` is regular, spread or
// shifted.
Operand make_operand(int64_t rows, int64_t blocks, int magnitudes, int spread, Scales kind) {
  Operand o{rows, blocks, blocks * kBlockBytes + below(3), blocks + below(3), {}, {}};
  o.codes.resize(static_cast<size_t>(rows * o.codes_stride));
  o.scales.resize(static_cast<size_t>(rows * o.scales_stride), 255);
  for (auto& byte : o.codes) {
    const int low = below(magnitudes) | below(2) << 3, high = below(magnitudes) | below(2) << 3;
    byte = static_cast<uint8_t>(low | high << 4);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int base = kind == Scales::kShifted ? below(255 - spread) : 120;
    for (int64_t b = 0; b < blocks; ++b) {
      int byte = base + (spread ? below(spread + 1) : 0);
      if (kind == Scales::kAny) byte = 107 + below(41);
      if (below(40) == 0) {
        std::memset(&o.codes[r * o.codes_stride + b * kBlockBytes], below(2) ? 0x88 : 0,
                    kBlockBytes);
        byte = below(255);
      }
      o.scales[r * o.scales_stride + b] = static_cast<uint8_t>(byte);
    }
    if (below(30) == 0) o.scales[r * o.scales_stride + below(static_cast<int>(blocks))] = kScaleNaN;
  }
  return o;
}

struct Problem {
  Operand a, b;
  bool exact;
  std::vector<double> product, magnitude;
};

Problem make_problem() {
  const int sizes[] = {1, 2, 3, 5, 8, 17, 31, 33, 49, 64, 97};
  const int64_t m = sizes[below(11)] + below(4), n = sizes[below(11)] + below(4);
  const int64_t blocks = below(3) == 0 ? 1 + below(70) : 1 + below(8);
  const auto kind = static_cast<Scales>(below(4));
  const int magnitudes = kind == Scales::kRegular ? 8 : 2 + below(6);
  // 24 bits hold 4 max^2 K 2^spread.
  const double largest = kValue[magnitudes - 1];
  const int spread = static_cast<int>(
      std::floor(24 - std::log2(4 * largest * largest * 32.0 * static_cast<double>(blocks))));
  Problem p{{}, {}, kind != Scales::kAny, {}, {}};
  const int of_a = kind == Scales::kRegular ? 0 : spread / 2,
            of_b = kind == Scales::kRegular ? 0 : spread - spread / 2;
  p.a = make_operand(m, blocks, magnitudes, of_a, kind);
  p.b = make_operand(n, blocks, magnitudes, of_b, kind);
  p.product.assign(static_cast<size_t>(m * n), 0);
  p.magnitude = p.product;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0, size = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        double dot = 0, abs = 0;
        for (int64_t k = b * kBlock; k < (b + 1) * kBlock; ++k) {
          const double term = p.a.code(r, k) * p.b.code(c, k);
          dot += term;
          abs += std::fabs(term);
        }
        const double scale = p.a.scale(r, b) * p.b.scale(c, b);
        sum += dot * scale;
        size += abs * scale;
      }
      p.product[r * n + c] = sum;
      p.magnitude[r * n + c] = size;
    }
  }
  return p;
}

[[noreturn]] void fail(const Kernels& kernels, const Problem& p, const std::string& what,
                       int64_t index, double got, double right) {
  std::printf("FAILED %s (%s) m=%ld n=%ld blocks=%ld: %s at %ld: got %.9g (%a), right %.9g (%a)\n",
              kernels.isa, kernels.tile_name, static_cast<long>(p.a.rows),
              static_cast<long>(p.b.rows), static_cast<long>(p.a.blocks), what.c_str(),
              static_cast<long>(index), got, got, right, right);
  std::exit(1);
}

bool same(float got, float right) {
  return std::memcmp(&got, &right, 4) == 0 || (std::isnan(got) && std::isnan(right));
}

void check_product(const Kernels& kernels, const Problem& p, Path path, bool prepare, int threads) {
  const int64_t m = p.a.rows, n = p.b.rows, stride = n + below(3);
  std::vector<float> out(static_cast<size_t>(m * stride), 12345.0f);
  GemmCall call{};
  call.m = m;
  call.n = n;
  call.blocks = p.a.blocks;
  call.a = p.a.view();
  call.b = p.b.view();
  std::unique_ptr<PreparedColumns> prepared;
  if (prepare) {
    prepared = prepare_columns(kernels, call.b, n, call.blocks, threads);
    call.prepared = prepared.get();
    call.b = {};
  }
  call.epilogue.out = {out.data(), stride, DType::kFloat32};
  call.threads = threads;
  call.path = path;
  gemm(kernels, call);
  const double gamma = static_cast<double>(p.a.blocks) * 0x1p-24;
  for (int64_t i = 0; i < m * n; ++i) {
    const float got = out[i / n * stride + i % n];
    const auto right = static_cast<float>(p.product[i]);
    const bool good = p.exact || path == Path::kWide || std::isnan(right)
                          ? same(got, right) || (right == 0 && got == 0)
                          : std::fabs(got - p.product[i]) <=
                                1.01 * gamma * p.magnitude[i] + std::fabs(right) * 0x1p-24;
    if (!good) fail(kernels, p, "path " + std::to_string(static_cast<int>(path)), i, got, right);
  }
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = n; c < stride; ++c) {
      if (out[r * stride + c] != 12345.0f)
        fail(kernels, p, "written past the row", r, out[r * stride + c], 12345.0);
    }
  }
}

// One value through the whole epilogue, by its formula.
struct Through {
  double d, z;
};

Through epilogue_of(const Epilogue& e, double product, double bias, double c, double aux) {
  const double z = product * e.alpha + bias;
  const auto act = [](Activation activation, double x) {
    if (activation == Activation::kRelu) return x <= 0 ? 0.0 : x;
    if (activation == Activation::kGelu) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    if (activation == Activation::kGeluTanh) {
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
    return x;
  };
  const auto slope = [](Activation activation, double x) {
    if (activation == Activation::kRelu) return x > 0 ? 1.0 : 0.0;
    if (activation == Activation::kGelu) {
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    }
    const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  };
  const double d = e.dact == Activation::kNone ? act(e.activation, z) : z * slope(e.dact, aux);
  return {d + e.beta * c, z};
}

void check_epilogue(const Kernels& kernels, const Problem& p, int threads) {
  const int64_t m = p.a.rows, n = p.b.rows;
  const auto count = static_cast<size_t>(m * n);
  std::vector<float> out(count), c(count), aux_in(count), aux_out(count),
      bias(static_cast<size_t>(n)), bias_grad(static_cast<size_t>(n));
  for (auto* values : {&c, &aux_in, &bias}) {
    for (auto& value : *values) value = static_cast<float>(below(2001) - 1000) / 256;
  }
  GemmCall call{};
  call.m = m;
  call.n = n;
  call.blocks = p.a.blocks;
  call.a = p.a.view();
  call.b = p.b.view();
  call.threads = threads;
  call.bias_grad = bias_grad.data();
  Epilogue& e = call.epilogue;
  e.out = {out.data(), n, DType::kFloat32};
  e.alpha = std::ldexp(1.0, below(9) - 4);
  e.beta = std::ldexp(1.0, below(3) - 1);
  e.c = {c.data(), n, DType::kFloat32};
  const bool backward = below(2);
  if (backward) {
    e.dact = static_cast<Activation>(1 + below(3));
    e.aux_in = {aux_in.data(), n, DType::kFloat32};
  } else {
    e.activation = static_cast<Activation>(below(4));
    e.aux_out = {aux_out.data(), n, DType::kFloat32};
    e.bias = {bias.data(), 0, DType::kFloat32};
  }
  gemm(kernels, call);
  std::vector<double> sums(static_cast<size_t>(n)), sizes(sums);
  for (int64_t i = 0; i < m * n; ++i) {
    const Through right = epilogue_of(e, p.product[i], backward ? 0 : bias[i % n], c[i], aux_in[i]);
    const double slack = 4 * 0x1p-24 * (std::fabs(right.d) + std::fabs(e.beta * c[i])) +
                         std::fabs(right.z) * 0x1p-30;
    const bool good = std::fabs(out[i] - right.d) <= slack ||
                      (std::isnan(out[i]) && std::isnan(right.d)) ||
                      out[i] == static_cast<float>(right.d);
    if (!good) fail(kernels, p, "epilogue", i, out[i], right.d);
    if (!backward && !same(aux_out[i], static_cast<float>(right.z)) && aux_out[i] != 0) {
      fail(kernels, p, "aux_out", i, aux_out[i], right.z);
    }
    sums[i % n] += right.d;
    sizes[i % n] += std::fabs(right.d) + slack * 0x1p24;
  }
  for (int64_t i = 0; i < n; ++i) {
    const bool good = std::fabs(bias_grad[i] - sums[i]) <= 0x1p-22 * sizes[i] ||
                      same(bias_grad[i], static_cast<float>(sums[i]));
    if (!good) fail(kernels, p, "bias_grad", i, bias_grad[i], sums[i]);
  }
}

void check_weight_only(const Kernels& kernels, const Problem& p, int threads) {
  const int64_t m = p.a.rows, n = p.b.rows, k = p.a.blocks * kBlock;
  std::vector<uint16_t> x(static_cast<size_t>(m * k));
  for (auto& value : x) value = static_cast<uint16_t>(0x3F80 + below(128) + (below(2) << 15));
  std::vector<float> out(static_cast<size_t>(m * n));
  const auto prepared = prepare_columns(kernels, p.b.view(), n, p.a.blocks, threads);
  WeightOnlyCall call{m, n, p.a.blocks, x.data(), k, DType::kBFloat16, prepared.get(), {}, threads};
  call.epilogue.out = {out.data(), n, DType::kFloat32};
  weight_only_gemm(kernels, call);
  for (int64_t i = 0; i < m * n; ++i) {
    double sum = 0, size = 0;
    for (int64_t j = 0; j < k; ++j) {
      const uint32_t bits = static_cast<uint32_t>(x[i / n * k + j]) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      const double term = value * p.b.code(i % n, j) * p.b.scale(i % n, j / kBlock);
      sum += term;
      size += std::fabs(term);
    }
    const double slack = 2 * static_cast<double>(k) * 0x1p-24 * size + 0x1p-140;
    const bool overflow = size > 0x1p127;
    if (std::isnan(sum) ? !std::isnan(out[i]) : !overflow && !(std::fabs(out[i] - sum) <= slack)) {
      fail(kernels, p, "weight_only", i, out[i], sum);
    }
  }
}

// A source for the quantizer: exponents about a row's own, ties, zeros, now and then any bits.
std::vector<uint8_t> make_source(DType dtype, int64_t rows, int64_t k) {
  const size_t size = dtype == DType::kFloat32 ? 4 : 2;
  const int fraction = dtype == DType::kFloat32 ? 23 : (dtype == DType::kBFloat16 ? 7 : 10);
  const int largest = dtype == DType::kFloat16 ? 30 : 254, wild = below(4) ? 400 : 5;
  std::vector<uint8_t> x(static_cast<size_t>(rows * k) * size);
  for (int64_t r = 0; r < rows; ++r) {
    const int base = below(largest);
    for (int64_t c = 0; c < k; ++c) {
      const int exponent = std::clamp(base - below(6), 0, largest);
      auto bits = static_cast<uint32_t>(exponent) << fraction;
      // Few leading bits of the fraction make ties; all of it, what lies beside them.
      const uint32_t part = static_cast<uint32_t>(random_bits()) & ((1u << fraction) - 1);
      bits |= below(2) ? part : part & (7u << (fraction - 3));
      if (below(8) == 0) bits = 0;
      bits |= static_cast<uint32_t>(below(2)) << (8 * size - 1);
      if (below(wild) == 0) bits = static_cast<uint32_t>(random_bits());
      std::memcpy(&x[static_cast<size_t>(r * k + c) * size], &bits, size);
    }
    if (below(16) == 0) std::memset(&x[static_cast<size_t>(r * k) * size], 0, 32 * size);
  }
  return x;
}

// Every instruction set must give the scalar quantizer's bytes.
void check_quantizer(const Kernels& kernels, const Kernels& right, int threads) {
  const int64_t rows = 1 + below(150), padded_rows = (rows + 63) / 64 * 64;
  const int64_t k = below(2) ? 64 * (1 + below(4)) : 64 * (1 + below(20));
  QuantizeCall q{};
  q.dtype = static_cast<DType>(1 + below(3));
  const std::vector<uint8_t> x = make_source(q.dtype, rows, k);
  q.x = x.data();
  q.rows = rows;
  q.k = q.stored_k = q.row_stride = k;
  q.column_stride = 1;
  const int32_t biases[] = {0, 0x200000, 0x3FFFFF, 0x7FFFFF, kSearch};
  q.rounding_bias = biases[below(5)];
  q.prescale = 1;
  if (below(2)) {
    q.stochastic = below(2);
    q.seed = random_bits();
    q.rotation_size = 16 * below(3);
    if (q.rotation_size == 32) q.rotation_size = 64;
    q.rotation_signs = random_bits();
    q.block_2d = below(2);
    q.prescale = below(2) ? 0.75f : 1.0f;
  }
  QuantizeCall qt = q;
  std::swap(qt.rows, qt.k);
  std::swap(qt.row_stride, qt.column_stride);
  qt.stored_k = padded_rows;
  qt.stream = 1;
  std::vector<uint8_t> results[2];
  const Kernels* tables[] = {&kernels, &right};
  for (int i = 0; i < 2; ++i) {
    const int64_t sizes[] = {rows * k / 2, rows * k / 32, k * padded_rows / 2,
                             k * padded_rows / 32};
    results[i].assign(static_cast<size_t>(sizes[0] + sizes[1] + sizes[2] + sizes[3]), 0xAA);
    q.codes = results[i].data();
    q.scales = q.codes + sizes[0];
    qt.codes = q.scales + sizes[1];
    qt.scales = qt.codes + sizes[2];
    quantize_pair(*tables[i], q, qt, threads);
    std::vector<uint8_t> codes(static_cast<size_t>(sizes[0])),
        scales(static_cast<size_t>(sizes[1]));
    QuantizeCall single = q;
    single.codes = codes.data();
    single.scales = scales.data();
    quantize(*tables[i], single, threads);
    if (std::memcmp(codes.data(), q.codes, codes.size()) ||
        std::memcmp(scales.data(), q.scales, scales.size())) {
      std::printf("FAILED %s: quantize and quantize_pair differ\n", tables[i]->isa);
      std::exit(1);
    }
  }
  if (results[0] != results[1]) {
    const auto at = std::mismatch(results[0].begin(), results[0].end(), results[1].begin()).first -
                    results[0].begin();
    std::printf(
        "FAILED %s: quantizer differs from %s at byte %ld (%#x, %#x): rows=%ld k=%ld dtype=%d "
        "bias=%#x stochastic=%d "
        "rotation=%d signs=%#lx block_2d=%d prescale=%g\n",
        kernels.isa, right.isa, static_cast<long>(at), results[0][at], results[1][at],
        static_cast<long>(rows), static_cast<long>(k), static_cast<int>(q.dtype),
        static_cast<unsigned>(q.rounding_bias), q.stochastic, q.rotation_size,
        static_cast<unsigned long>(q.rotation_signs), q.block_2d, static_cast<double>(q.prescale));
    std::exit(1);
  }
}

std::vector<const Kernels*> all_tables() {
  std::vector<const Kernels*> tables;
  for (const std::string& isa : available_isas()) {
    if (isa == "avx512_vnni") {
      tables.push_back(avx512_vnni_kernels(true));
      tables.push_back(avx512_vnni_kernels(false));
    } else {
      tables.push_back(&select_kernels(isa));
    }
  }
  return tables;
}

void run(int problems, uint64_t seed) {
  random_bits.seed(seed);
  const auto tables = all_tables();
  for (const Kernels* kernels : tables) std::printf("%s (%s)\n", kernels->isa, kernels->tile_name);
  for (int i = 0; i < problems; ++i) {
    const Problem p = make_problem();
    const int threads = 1 + below(3);
    for (const Kernels* kernels : tables) {
      for (const Path path : {Path::kFewRows, Path::kTile, Path::kWide}) {
        check_product(*kernels, p, path, below(2), threads);
      }
      if (p.exact) check_epilogue(*kernels, p, threads);
      if (p.a.rows < 10) check_weight_only(*kernels, p, threads);
      check_quantizer(*kernels, *tables.back(), threads);
    }
  }
  std::printf("%d problems, seed %lu: no difference\n", problems, static_cast<unsigned long>(seed));
}

}  // namespace
}  // namespace mxgemm

int main(int argc, char** argv) {
  mxgemm::run(argc > 1 ? std::atoi(argv[1]) : 200,
              argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
